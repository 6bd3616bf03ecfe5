package forwarder

import "sync"

// suspects are messages that failed alone, in a way that looks like the broker's absence. One
// that fails again, while the broker took others in between, is at fault itself. All workers
// share them. They are a memory of this process: another one has to find out for itself.
type suspects struct {
	mu    sync.Mutex
	bySeq map[int64]*suspicion
}

type suspicion struct {
	broker string
	// waits says that nothing was heard of the broker since the failure.
	waits bool
	// alone says that the next thing heard of it was a confirmation.
	alone bool
}

// maxSuspects bounds the memory. A message that finds no room is tried again all the same.
const maxSuspects = 10_000

// failed notes a failure and says whether it is the message's own fault. othersPassed says
// that the broker took others in the same batch.
func (s *suspects) failed(broker string, seq int64, othersPassed bool) (guilty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.bySeq[seq]
	if known == nil {
		if s.bySeq == nil {
			s.bySeq = map[int64]*suspicion{}
		}
		if len(s.bySeq) < maxSuspects {
			s.bySeq[seq] = &suspicion{broker: broker, waits: !othersPassed, alone: othersPassed}
		}
		return false
	}
	guilty = known.alone || othersPassed
	known.waits, known.alone = !othersPassed, othersPassed
	return guilty
}

// heard notes what is heard of a broker: that it took messages, or that it failed.
func (s *suspects) heard(broker string, confirmed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.bySeq {
		if known.waits && known.broker == broker {
			known.waits, known.alone = false, confirmed
		}
	}
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
