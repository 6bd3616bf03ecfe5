package forwarder

import (
	"errors"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
)

// outcome says what came of one turn of a worker.
type outcome struct {
	claimed   int
	confirmed int
	// obstacle is the first failure that the next turn would meet again: it looks like
	// the broker's, not like that of one message or one destination. Where there are
	// several brokers, their absence is kept apart, and it is nil.
	obstacle error
}

// verdict divides a published batch: what is confirmed will be settled, what is
// delayed waits on its own, and the rest stays in the outbox as it is.
type verdict struct {
	outcome

	confirmed []int64
	delayed   []failure
}

// judge says what becomes of each row. Brokers are judged apart from each other.
func (w *worker) judge(rows []row, results []error) verdict {
	v := verdict{outcome: outcome{claimed: len(rows)}}
	for _, part := range w.byBroker(rows, results) {
		p := w.judgePart(part)
		w.noteBroker(part, p)
		v.confirmed = append(v.confirmed, p.confirmed...)
		v.delayed = append(v.delayed, p.delayed...)
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
}

func (w *worker) byBroker(rows []row, results []error) []*part {
	if w.routes == nil {
		return []*part{{rows: rows, results: results}}
	}
	var parts []*part
	known := map[string]*part{}
	for i, r := range rows {
		broker := w.brokerOf(r)
		p := known[broker]
		if p == nil {
			p = &part{broker: broker}
			known[broker] = p
			parts = append(parts, p)
		}
		p.rows, p.results = append(p.rows, r), append(p.results, results[i])
	}
	return parts
}

// brokerOf names the broker of several. It is empty where there is but one, or no route.
func (w *worker) brokerOf(r row) string {
	if w.routes == nil {
		return ""
	}
	broker, _ := w.routes.Broker(r.outgoing.Destination)
	return broker
}

func (w *worker) judgePart(p *part) verdict {
	var v verdict
	waits := false // for a destination
	for i, err := range p.results {
		switch r := p.rows[i]; {
		case err == nil:
			v.confirmed = append(v.confirmed, r.seq)
			w.away.destinationBack(r.outgoing.Destination)
		case errors.Is(err, ErrRefused):
			v.delayed = append(v.delayed, newFailure(r, err))
			w.logFailure(r, err)
			if w.probing { // what refuses is there
				w.away.destinationBack(r.outgoing.Destination)
			}
		case errors.Is(err, ErrKeyHeld), errors.Is(err, ErrUnavailable):
		case errors.Is(err, ErrDestinationUnavailable):
			w.away.destinationGone(p.broker, r.outgoing.Destination, err)
			waits = true
		default:
			v.delayed = append(v.delayed, newFailure(r, err))
			w.logFailure(r, err)
		}
	}
	if len(v.confirmed) > 0 {
		v.spendAttempts()
	}
	v.obstacle = obstacle(p.results, waits || len(v.delayed) > 0)
	return v
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

// spendAttempts counts failures that say nothing as refusals: the broker took other
// messages meanwhile. Each then waits longer from time to time, and cannot stand in
// front of healthy ones at every turn.
func (v *verdict) spendAttempts() {
	for i := range v.delayed {
		v.delayed[i].spent = 1
	}
}

func newFailure(r row, err error) failure {
	f := failure{seq: r.seq, err: err}
	if errors.Is(err, ErrRefused) {
		f.spent = 1
	}
	return f
}

// obstacle looks for the broker's absence. Keys that are held are one only where
// nothing else came of the batch: a publisher that holds keys without a failure would
// be asked again in a tight loop.
func obstacle(results []error, changed bool) error {
	for _, err := range results {
		if err != nil && !errors.Is(err, ErrRefused) && (errors.Is(err, ErrUnavailable) || !classified(err)) {
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

func (w *worker) logFailure(r row, err error) {
	w.logger.Error("Message was not published, it will be tried again; its unit waits", err, watermill.LogFields{
		"seq":           r.seq,
		"message_uuid":  r.outgoing.Message.UUID,
		"destination":   r.outgoing.Destination,
		"partition_key": r.outgoing.PartitionKey,
	})
}
