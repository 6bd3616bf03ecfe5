package forwarder

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
)

// outcome says what came of one turn of a worker.
type outcome struct {
	claimed   int
	confirmed int
	// obstacle is the first failure that the next turn would meet again: it looks like
	// the broker's, not like that of one message or one destination.
	obstacle error
}

// verdict divides a published batch: what is confirmed will be settled, what is
// delayed waits on its own, and the rest stays in the outbox as it is.
type verdict struct {
	outcome

	confirmed []int64
	delayed   []failure
}

func (w *worker) judge(rows []row, results []error) verdict {
	v := verdict{outcome: outcome{claimed: len(rows)}}
	waits := false // for a destination
	for i, err := range results {
		switch r := rows[i]; {
		case err == nil:
			v.confirmed = append(v.confirmed, r.seq)
			w.away.back(r.outgoing.Destination)
		case errors.Is(err, ErrRefused):
			v.delayed = append(v.delayed, newFailure(r, err))
			w.logFailure(r, err)
		case errors.Is(err, ErrKeyHeld), errors.Is(err, ErrUnavailable):
		case errors.Is(err, ErrDestinationUnavailable):
			w.away.gone(r.outgoing.Destination, err)
			waits = true
		default:
			v.delayed = append(v.delayed, newFailure(r, err))
			w.logFailure(r, err)
		}
	}
	v.outcome.confirmed = len(v.confirmed)
	if v.outcome.confirmed > 0 {
		v.spendAttempts()
	}
	v.obstacle = obstacle(results, waits || len(v.delayed) > 0)
	return v
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
