package forwarder

import (
	"errors"
	"math"
	"sync"
)

// suspects are messages that failed, in a way that looks like the broker's absence. One that
// fails again and again, while the broker takes others in between, is at fault itself. How often
// that takes is a matter of how reliably the broker takes others: where it does almost always,
// two failures tell; where half of all that is sent fails, it takes ten. All workers share them.
// They are a memory of this process: another one has to find out for itself.
type suspects struct {
	mu       sync.Mutex
	bySeq    map[int64]*suspicion
	byBroker map[string]*reliability
}

type suspicion struct {
	broker string
	// waits says that nothing was heard of the broker since the failure.
	waits bool
	// alone says that the next thing heard of it was a confirmation.
	alone bool
	// failures are all that are known, without the first.
	failures int
	// evidence is how unlikely it is that these failures were the broker's, as the logarithm of
	// one over the probability, since the last that was held against the message.
	evidence float64
}

const (
	// maxSuspects bounds the memory.
	maxSuspects = 10_000
	// enoughEvidence is that of one in a thousand.
	enoughEvidence = 6.9
)

// failed notes a failure and says whether it is the message's own fault. othersPassed says
// that the broker took others in the same batch.
func (s *suspects) failed(broker string, seq int64, othersPassed bool) (guilty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.bySeq[seq]
	if known == nil {
		known = &suspicion{broker: broker}
		s.add(seq, known)
	} else {
		known.failures++
	}
	known.waits, known.alone = !othersPassed, othersPassed
	if othersPassed {
		known.evidence += s.of(broker).evidence()
	}
	if known.evidence < enoughEvidence {
		return false
	}
	known.evidence = 0
	return true
}

// add makes room by dropping any other: it may be that of a message that is gone.
func (s *suspects) add(seq int64, known *suspicion) {
	if s.bySeq == nil {
		s.bySeq = map[int64]*suspicion{}
	}
	for other := range s.bySeq {
		if len(s.bySeq) < maxSuspects {
			break
		}
		delete(s.bySeq, other)
	}
	s.bySeq[seq] = known
}

// heard notes what is heard of a broker: that it took messages, or that it failed.
func (s *suspects) heard(broker string, confirmed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	evidence := s.of(broker).evidence()
	for _, known := range s.bySeq {
		if !known.waits || known.broker != broker {
			continue
		}
		known.waits, known.alone = false, confirmed
		if confirmed {
			known.evidence += evidence
		}
	}
}

// reliability is how surely a broker takes messages, as far as it lies with the broker: the failures
// of a message count when it is its first one, and when it got through in the end. Those of a
// message that never does are not held against the broker.
type reliability struct{ confirmed, failed float64 }

// recent is how many results it goes back.
const recent = 64

// evidence is that of a single failure.
func (r *reliability) evidence() float64 {
	return math.Log((r.confirmed + r.failed + 2) / (r.failed + 1))
}

func (r *reliability) add(confirmed, failed int) {
	r.confirmed += float64(confirmed)
	r.failed += float64(failed)
	if all := r.confirmed + r.failed; all > recent {
		r.confirmed *= recent / all
		r.failed *= recent / all
	}
}

func (s *suspects) of(broker string) *reliability {
	if s.byBroker == nil {
		s.byBroker = map[string]*reliability{}
	}
	known := s.byBroker[broker]
	if known == nil {
		known = &reliability{}
		s.byBroker[broker] = known
	}
	return known
}

// remember adds what came of a batch to the reliability of its broker.
func (s *suspects) remember(p *part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	confirmed, failed, together := 0, 0, 0
	for i, err := range p.results {
		var known *suspicion
		if len(s.bySeq) > 0 {
			known = s.bySeq[p.rows[i].seq]
		}
		switch {
		case err == nil && known != nil:
			confirmed, failed = confirmed+1, failed+known.failures
		case err == nil && !p.rows[i].fresh: // it failed before anybody here knew of it
			confirmed, failed = confirmed+1, failed+1
		case err == nil:
			confirmed++
		case known != nil || !p.rows[i].fresh || !looksAway(err) || errors.Is(err, errBrokerAway):
		case errors.Is(err, ErrUnavailable) && !p.alone[i]: // one failure, of all that were sent together
			together = 1
		default:
			failed++
		}
	}
	s.of(p.broker).add(confirmed, failed+together)
}

// areThere says whether there are any.
func (s *suspects) areThere() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bySeq) > 0
}

// has says whether a message is to be sent alone.
func (s *suspects) has(seq int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bySeq[seq] != nil
}

// failsAlone says whether a message failed while the broker took others.
func (s *suspects) failsAlone(seq int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.bySeq[seq]
	return known != nil && known.alone
}

// forget drops messages that were settled.
func (s *suspects) forget(seqs []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bySeq) == 0 {
		return
	}
	for _, seq := range seqs {
		delete(s.bySeq, seq)
	}
}
