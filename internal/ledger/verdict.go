package ledger

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

// facts is all that the verdict rests on.
type facts struct {
	ordered bool
	// written is every event that was written in any transaction; committed those whose
	// business row exists.
	written   map[string]event
	committed []string
	// waiting are in the outbox, dead among the dead letters.
	waiting []string
	dead    []string
	// deliveries of one queue are in the order of the broker.
	deliveries []Delivery
	effects    map[string]int
	balances   map[string]int
}

// verdict holds the facts against each other. See Violations for the meaning of each.
func (f facts) verdict() Violations {
	var v Violations
	delivered := f.count()
	committed := set(f.committed)
	accounted := set(f.waiting, f.dead, slices.Collect(maps.Keys(delivered)))
	for _, id := range f.committed {
		if !accounted[id] {
			v.Lost = append(v.Lost, f.name(id))
		}
	}
	for id, times := range delivered {
		if !committed[id] {
			v.Phantoms = append(v.Phantoms, fmt.Sprintf("%s, delivered %d times", f.name(id), times))
		}
	}
	v.Altered = f.altered()
	if f.ordered {
		v.OutOfOrder = f.outOfOrder()
	}
	f.judgeEffects(&v, delivered)
	return v
}

func (f facts) count() map[string]int {
	delivered := map[string]int{}
	for _, d := range f.deliveries {
		delivered[d.ID]++
	}
	return delivered
}

func (f facts) duplicates() int { return len(f.deliveries) - len(f.count()) }

func (f facts) altered() (altered []string) {
	for _, d := range f.deliveries {
		e, known := f.written[d.ID]
		if !known {
			continue // a phantom
		}
		key := e.partitionKey
		if key == "" {
			key = e.id
		}
		if d.Destination != e.destination {
			altered = append(altered, fmt.Sprintf("%s came to the destination %q, want %q", f.name(d.ID), d.Destination, e.destination))
		}
		if d.PartitionKey != key {
			altered = append(altered, fmt.Sprintf("%s has the key %q", f.name(d.ID), d.PartitionKey))
		}
		if !bytes.Equal(d.Payload, e.payload) {
			altered = append(altered, fmt.Sprintf("%s has the payload %q, want %q", f.name(d.ID), d.Payload, e.payload))
		}
		if !maps.Equal(d.Metadata, e.metadata) {
			altered = append(altered, fmt.Sprintf("%s has the metadata %q, want %q", f.name(d.ID), d.Metadata, e.metadata))
		}
	}
	return altered
}

// outOfOrder looks at the first delivery of each event through each broker: within a
// unit, none may come after a later one, and all must come through one queue, since two
// have no common order. With one broker, nothing lost and no phantom the sequence is then exactly 1, 2, 3
// and so on.
func (f facts) outOfOrder() (violations []string) {
	type unit struct{ broker, destination, key string }
	type arrival struct{ broker, id string }
	last := map[unit]event{}
	queue := map[unit]string{}
	seen := map[arrival]bool{}
	for _, d := range f.deliveries {
		e, known := f.written[d.ID]
		if !known || e.partitionKey == "" || seen[arrival{d.Broker, d.ID}] {
			continue
		}
		seen[arrival{d.Broker, d.ID}] = true
		u := unit{d.Broker, e.destination, e.partitionKey}
		if before, ok := queue[u]; ok && before != d.Queue {
			violations = append(violations, fmt.Sprintf("%s came through %s, earlier ones through %s", f.name(d.ID), d.Queue, before))
		}
		queue[u] = d.Queue
		if e.n < last[u].n {
			violations = append(violations, fmt.Sprintf("%s came after %s", f.name(d.ID), f.name(last[u].id)))
			continue
		}
		last[u] = e
	}
	return violations
}

// judgeEffects: each event that was delivered has exactly one effect, in the rows and
// in the sums. What is not delivered is judged elsewhere.
func (f facts) judgeEffects(v *Violations, delivered map[string]int) {
	sums := map[string]int{}
	for id := range delivered {
		sums[f.written[id].key]++
		switch times := f.effects[id]; {
		case times == 0:
			v.MissingEffects = append(v.MissingEffects, f.name(id))
		case times > 1:
			v.DoubleEffects = append(v.DoubleEffects, fmt.Sprintf("%s has %d", f.name(id), times))
		}
	}
	for id, times := range f.effects {
		if delivered[id] == 0 {
			v.DoubleEffects = append(v.DoubleEffects, fmt.Sprintf("%s has %d, and was not delivered", f.name(id), times))
		}
	}
	for key := range set(slices.Collect(maps.Keys(sums)), slices.Collect(maps.Keys(f.balances))) {
		if f.balances[key] != sums[key] {
			v.WrongBalances = append(v.WrongBalances, fmt.Sprintf("%s has %d, want %d", key, f.balances[key], sums[key]))
		}
	}
}

// name says what an event is about.
func (f facts) name(id string) string {
	e, known := f.written[id]
	if !known {
		return fmt.Sprintf("%q (never written)", id)
	}
	return fmt.Sprintf("%s (%s, n %d)", id, e.key, e.n)
}

func set(lists ...[]string) map[string]bool {
	members := map[string]bool{}
	for _, list := range lists {
		for _, member := range list {
			members[member] = true
		}
	}
	return members
}
