package wal

import (
	"sync"

	"github.com/jackc/pglogrepl"

	"github.com/watermill-outbox/outbox/forwarder"
)

// settled knows which position may be confirmed: the end of the last transaction up to which
// everything is settled. Postgres begins anew with a whole transaction, so none in between helps.
// While nothing is in flight, that is wherever the server is.
type settled struct {
	mu sync.Mutex
	// confirmed may be confirmed.
	confirmed pglogrepl.LSN
	// open is the transaction that is being read, if there is one; rows how many of it were
	// handed on.
	open bool
	rows int
	// ended are transactions whose rows are in flight.
	ended []transaction
	// upTo is the last position that is settled.
	upTo forwarder.Position
	// transactions is how many with rows of ours are behind confirmed.
	transactions int
}

// transaction has been read to its end.
type transaction struct {
	last forwarder.Position
	// end is what may be confirmed once its last row is settled: nothing for us is before that.
	end pglogrepl.LSN
}

func (s *settled) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.rows = true, 0
}

// place is where the next row of the transaction stands.
func (s *settled) place(commit pglogrepl.LSN) forwarder.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows++
	return forwarder.Position{Commit: uint64(commit), Index: s.rows - 1}
}

func (s *settled) commit(at, end pglogrepl.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
	if s.rows == 0 {
		s.pass(end)
		return
	}
	s.ended = append(s.ended, transaction{forwarder.Position{Commit: uint64(at), Index: s.rows - 1}, end})
	s.advance()
}

// passed says that the server has come to a position with nothing for us before it that we have not.
func (s *settled) passed(position pglogrepl.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open {
		s.pass(position)
	}
}

// pass has a position confirmed with the last transaction that is in flight, or at once.
func (s *settled) pass(position pglogrepl.LSN) {
	if last := len(s.ended) - 1; last >= 0 {
		s.ended[last].end = max(s.ended[last].end, position)
		return
	}
	s.confirmed = max(s.confirmed, position)
}

func (s *settled) settle(upTo forwarder.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upTo.Before(upTo) {
		s.upTo = upTo
		s.advance()
	}
}

func (s *settled) advance() {
	for len(s.ended) > 0 && !s.upTo.Before(s.ended[0].last) {
		s.confirmed = max(s.confirmed, s.ended[0].end)
		s.ended = s.ended[1:]
		s.transactions++
	}
}

func (s *settled) position() pglogrepl.LSN {
	position, _ := s.progress()
	return position
}

// progress is what may be confirmed, and how many transactions with rows were settled.
func (s *settled) progress() (position pglogrepl.LSN, transactions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed, s.transactions
}
