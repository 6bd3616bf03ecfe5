package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	// errBrokerAway is the result of a message that was not given to its broker.
	errBrokerAway = errors.New("forwarder: not sent, its broker is away")
	// errLater is that of one that the next batch takes.
	errLater = errors.New("forwarder: not sent yet")

	errResultCount = errors.New("forwarder: the publisher broke its contract")
)

// maxAlone is how many suspects of a batch are sent, each alone.
const maxAlone = 5

// attempted is what was done with the rows of a batch.
type attempted struct {
	// results has one for each row.
	results []error
	// alone are the rows, by their places, that were the only ones sent to their broker at
	// that time.
	alone map[int]bool
}

// publish sends what can be sent, within so many times PublishTimeout. Once stop has ended
// it has PublishTimeout left at most.
func (w *worker) publish(ctx, stop context.Context, rows []row, stretch int) attempted {
	ctx, cancel := context.WithTimeout(ctx, w.config.PublishTimeout*time.Duration(stretch))
	defer cancel()
	defer context.AfterFunc(stop, func() { time.AfterFunc(w.config.PublishTimeout, cancel) })()
	done := attempted{results: make([]error, len(rows)), alone: map[int]bool{}}
	together, suspected := w.sendable(rows, done.results)
	w.send(ctx, rows, together, &done)
	for _, place := range suspected {
		w.send(ctx, rows, []int{place}, &done)
	}
	return done
}

// send publishes the rows at places at once, and notes what came of it.
func (w *worker) send(ctx context.Context, rows []row, places []int, done *attempted) {
	if len(places) == 0 {
		return
	}
	msgs := make([]Outgoing, len(places))
	for n, place := range places {
		msgs[n] = rows[place].outgoing
	}
	began := time.Now()
	results := publishBatch(ctx, w.publisher, msgs)
	for n, place := range places {
		done.results[place] = results[n]
	}
	s := sent{timedOut: errors.Is(ctx.Err(), context.DeadlineExceeded), took: time.Since(began)}
	for broker, places := range w.placesByBroker(rows, places) {
		done.alone[places[0]] = len(places) == 1
		if len(places) == 1 && w.suspects.failsAlone(rows[places[0]].seq) {
			continue // it says nothing of the others
		}
		w.paces.of(broker).learn(s.count(places, done.results))
	}
}

func (w *worker) placesByBroker(rows []row, places []int) map[string][]int {
	if w.routes == nil {
		return map[string][]int{"": places}
	}
	byBroker := map[string][]int{}
	for _, place := range places {
		broker := w.brokerOf(&rows[place])
		byBroker[broker] = append(byBroker[broker], place)
	}
	return byBroker
}

// count adds what came of the rows at places. Failures that say nothing are the broker's only
// where it took no other.
func (s sent) count(places []int, results []error) sent {
	s.rows = len(places)
	silent := false
	for _, place := range places {
		switch err := results[place]; {
		case err == nil:
			s.confirmed++
		case !looksAway(err):
		case errors.Is(err, ErrUnavailable):
			s.away = true
		default:
			silent = true
		}
	}
	s.away = s.away || silent && s.confirmed == 0
	return s
}

// looksAway says whether a failure may be the broker's absence.
func looksAway(err error) bool {
	if err == nil || errors.Is(err, ErrRefused) || errors.Is(err, errLater) {
		return false
	}
	return errors.Is(err, ErrUnavailable) || !classified(err)
}

// publishBatch returns one result for each message, whatever the publisher does.
func publishBatch(ctx context.Context, publisher BatchPublisher, msgs []Outgoing) []error {
	var answers []error
	err := recovered(func() error {
		answers = publisher.PublishBatch(ctx, msgs)
		return nil
	})
	switch {
	case err != nil && len(msgs) > 1: // which of them the publisher does not survive will be found out
		err = Unavailable(errors.New(err.Error())) //nolint:err113 // it must not look like a refusal
	case err == nil && len(answers) != len(msgs): // nobody knows which message was sent
		err = Unavailable(fmt.Errorf("%w: %d results for %d messages", errResultCount, len(answers), len(msgs)))
	case err == nil:
		return answers
	}
	answers = make([]error, len(msgs))
	for i := range answers {
		answers[i] = err
	}
	return answers
}

// sendable returns the places of the rows to publish together, and of those to publish alone
// after them. A row that no message can be made of gets its result here, and so does what is
// behind it in its unit. What goes to a broker that is known to be away is not sent to it,
// nor is more than its pace allows.
func (w *worker) sendable(rows []row, results []error) (together, suspected []int) {
	stopped, begun := map[Unit]error{}, map[Unit]bool{}
	var brokers capacities
	suspicious := w.suspects.areThere()
	stop := func(i int, result, behind error) {
		results[i] = result
		stopped[rows[i].outgoing.Unit()] = behind
	}
	together = make([]int, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		to := w.capacityFor(r, &brokers)
		if nothingSpecial := !suspicious && len(stopped) == 0; nothingSpecial && to.takes(r) {
			together = append(together, i)
			continue
		}
		suspect, unit := suspicious && w.suspects.has(r.seq), r.outgoing.Unit()
		switch behind := stopped[unit]; {
		case behind != nil:
			results[i] = behind
		case r.unreadable != nil:
			stop(i, Permanent(r.unreadable), ErrKeyHeld)
		case to.away:
			stop(i, Unavailable(errBrokerAway), ErrKeyHeld)
		case suspect && !begun[unit] && len(suspected) < maxAlone:
			suspected = append(suspected, i)
			stop(i, nil, errLater)
		case suspect, to.room == 0: // one before it in its unit may fail
			stop(i, errLater, errLater)
		default:
			begun[unit] = true
			to.room--
			together = append(together, i)
		}
	}
	return together, suspected
}

// capacity is what a broker may be sent now.
type capacity struct {
	broker string
	away   bool
	room   int
}

// takes says whether a message may go to it, and counts it then.
func (c *capacity) takes(r *row) bool {
	if r.unreadable != nil || c.away || c.room == 0 {
		return false
	}
	c.room--
	return true
}

// capacities are those of the brokers of a batch.
type capacities struct {
	known map[string]*capacity
	last  *capacity
}

func (w *worker) capacityFor(r *row, brokers *capacities) *capacity {
	broker := w.brokerOf(r)
	if brokers.last != nil && brokers.last.broker == broker {
		return brokers.last
	}
	if brokers.last = brokers.known[broker]; brokers.last == nil {
		room, _ := w.paces.of(broker).now()
		brokers.last = &capacity{broker: broker, away: !w.probing && w.away.isAway(broker), room: room}
		if brokers.known == nil {
			brokers.known = map[string]*capacity{}
		}
		brokers.known[broker] = brokers.last
	}
	return brokers.last
}
