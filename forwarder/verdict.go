package forwarder

import (
	"errors"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
)

// outcome says what came of one turn of a worker.
type outcome struct {
	// claimed is how many rows it has dealt with.
	claimed   int
	confirmed int
	// barred says that others hold all lanes that it might have looked into.
	barred bool
	// left are the rows that stay as they were, where that is asked for.
	left map[int64]bool
	// obstacle is the first failure that the next turn would meet again: it looks like
	// the broker's, not like that of one message or one destination. Where there are
	// several brokers, their absence is kept apart, and it is nil.
	obstacle error
}

// verdict divides a published batch: what is confirmed will be settled, what is delayed
// waits on its own, what is dead goes to the dead letters, and the rest stays in the outbox
// as it is.
type verdict struct {
	outcome

	confirmed []int64
	delayed   []failure
	dead      []failure
	// freed are the units of which a row that waited is gone.
	freed units
	// tried are the units whose first row failed alone, in a way that may be the broker's.
	tried []int64
}

// judge says what becomes of each row. Brokers are judged apart from each other.
func (w *worker) judge(rows []row, done attempted) verdict {
	v := verdict{outcome: outcome{claimed: len(rows)}}
	for _, part := range w.byBroker(rows, done) {
		p := w.judgePart(part)
		w.noteBroker(part, p)
		v.confirmed = append(v.confirmed, p.confirmed...)
		v.delayed = append(v.delayed, p.delayed...)
		v.dead = append(v.dead, p.dead...)
		v.freed.addAll(p.freed)
		v.tried = append(v.tried, p.tried...)
		v.outcome.confirmed += len(p.confirmed)
		if part.broker == "" {
			v.obstacle = p.obstacle
		}
	}
	return v
}

// part is what of a batch goes to one broker.
type part struct {
	broker  string
	rows    []row
	results []error
	alone   []bool
}

func (w *worker) byBroker(rows []row, done attempted) []*part {
	alone := make([]bool, len(rows))
	for place, isAlone := range done.alone {
		alone[place] = isAlone
	}
	if w.routes == nil {
		return []*part{{rows: rows, results: done.results, alone: alone}}
	}
	var parts []*part
	known := map[string]*part{}
	for i := range rows {
		broker := w.brokerOf(&rows[i])
		p := known[broker]
		if p == nil {
			p = &part{broker: broker}
			known[broker] = p
			parts = append(parts, p)
		}
		p.rows, p.results = append(p.rows, rows[i]), append(p.results, done.results[i])
		p.alone = append(p.alone, alone[i])
	}
	return parts
}

// brokerOf names the broker of several. It is empty where there is but one, or no route.
func (w *worker) brokerOf(r *row) string {
	if w.routes == nil {
		return ""
	}
	broker, _ := w.routes.Broker(r.outgoing.Destination)
	return broker
}

func (w *worker) judgePart(p *part) verdict {
	v := verdict{confirmed: make([]int64, 0, len(p.rows))}
	w.convict(p)
	waits := false // for a destination
	back := ""     // the destination that is known to be there
	for i, err := range p.results {
		if err == nil {
			r := &p.rows[i]
			v.confirm(r)
			if destination := r.outgoing.Destination; destination != back {
				back = destination
				w.away.destinationBack(destination)
			}
			continue
		}
		switch r := p.rows[i]; {
		case errors.Is(err, ErrRefused):
			v.fail(w.config.MaxAttempts, failure{row: r, spent: 1, err: err})
			if w.probing { // what refuses is there
				w.away.destinationBack(r.outgoing.Destination)
			}
		case errors.Is(err, ErrRouteUnavailable):
			v.fail(w.config.MaxAttempts, failure{row: r, spent: 0, err: err})
			w.away.destinationBack(r.outgoing.Destination)
		case errors.Is(err, ErrKeyHeld), errors.Is(err, errLater):
		case errors.Is(err, ErrUnavailable):
			if p.alone[i] {
				v.tried = append(v.tried, r.unitHash)
			}
		case errors.Is(err, ErrDestinationUnavailable):
			w.away.destinationGone(p.broker, r.outgoing.Destination, err)
			waits, back = true, ""
		default:
			v.fail(w.config.MaxAttempts, failure{row: r, spent: 0, err: err})
		}
	}
	v.obstacle = obstacle(p.results, waits || len(v.delayed)+len(v.dead) > 0)
	return v
}

// convict makes refusals of failures that say nothing, or tell of the broker's absence, where
// they must be the message's own fault: where the broker takes others while this one fails
// again and again. Each then waits longer from time to time, and is a dead letter in the end.
func (w *worker) convict(p *part) {
	w.suspects.remember(p)
	passed := slices.Contains(p.results, nil)
	if passed || slices.ContainsFunc(p.results, looksAway) {
		w.suspects.heard(p.broker, passed)
	}
	for i, err := range p.results {
		switch {
		case !looksAway(err) || errors.Is(err, errBrokerAway):
		case errors.Is(err, ErrUnavailable) && !p.alone[i]:
		case w.suspects.failed(p.broker, p.rows[i].seq, passed):
			p.results[i] = Refused(err)
		}
	}
}

// leftOf returns the rows of a batch that nothing has become of.
func (v *verdict) leftOf(rows []row) map[int64]bool {
	left := map[int64]bool{}
	for _, r := range rows {
		left[r.seq] = true
	}
	for _, seq := range v.confirmed {
		delete(left, seq)
	}
	for _, f := range slices.Concat(v.delayed, v.dead) {
		delete(left, f.row.seq)
	}
	return left
}

func (v *verdict) confirm(r *row) {
	v.confirmed = append(v.confirmed, r.seq)
	if r.waiting {
		v.freed.add(*r)
	}
}

// fail delays a row, or finds it dead.
func (v *verdict) fail(maxAttempts int, f failure) {
	if errors.Is(f.err, ErrPermanent) || f.row.attempts+f.spent >= int64(maxAttempts) && f.spent > 0 {
		v.dead = append(v.dead, f)
	} else {
		v.delayed = append(v.delayed, f)
	}
}

// free lets the units of rows go on that are gone.
func (v *verdict) free(gone []failure) {
	for _, f := range gone {
		if f.row.waiting {
			v.freed.add(f.row)
		}
	}
}

// noteBroker keeps account of the brokers where there are several.
func (w *worker) noteBroker(p *part, v verdict) {
	switch {
	case p.broker == "":
	case v.obstacle == nil, len(v.confirmed) > 0:
		w.away.brokerBack(p.broker)
	case errors.Is(v.obstacle, errBrokerAway):
		w.away.hold(p.broker, p.destinations())
	default:
		w.away.brokerGone(p.broker, p.destinations(), !p.isSurelyTheBrokers(), v.obstacle)
	}
}

func (p *part) destinations() []string {
	names := make([]string, len(p.rows))
	for i, r := range p.rows {
		names[i] = r.outgoing.Destination
	}
	return names
}

// isSurelyTheBrokers says whether a failure is the broker's by its kind.
func (p *part) isSurelyTheBrokers() bool {
	return slices.ContainsFunc(p.results, func(err error) bool {
		return errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrRefused)
	})
}

// obstacle looks for the broker's absence. Keys that are held are one only where
// nothing else came of the batch: a publisher that holds keys without a failure would
// be asked again in a tight loop.
func obstacle(results []error, changed bool) error {
	for _, err := range results {
		if looksAway(err) {
			return err
		}
	}
	for _, err := range results {
		if errors.Is(err, ErrKeyHeld) && !changed {
			return err
		}
	}
	return nil
}

// tell says what was written, and remembers what the next turns are to do.
func (w *worker) tell(v *verdict) {
	for _, f := range v.delayed {
		w.logger.Error("Message was not published, it will be tried again; its unit waits", f.err, f.fields())
	}
	for _, f := range v.dead {
		w.logger.Error("Message was not published, it is moved to the dead letters", f.err, f.fields())
	}
	w.suspects.forget(v.confirmed)
	for _, f := range v.dead {
		w.suspects.forget([]int64{f.row.seq})
	}
	if w.probing { // several tries at once, and nothing to remember
		return
	}
	w.lookSoon = w.lookSoon || len(v.freed.hashes) > 0
	switch {
	case len(v.tried) == 0, len(w.tried) >= maxTried:
		w.tried = v.tried
	default:
		w.tried = append(w.tried, v.tried...)
	}
}

func (f failure) fields() watermill.LogFields {
	return watermill.LogFields{
		"seq":           f.row.seq,
		"message_uuid":  f.row.id,
		"destination":   f.row.outgoing.Destination,
		"partition_key": f.row.outgoing.PartitionKey,
		"attempts":      f.row.attempts + f.spent,
	}
}
