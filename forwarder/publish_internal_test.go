package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

var errSilent = errors.New("test: an error that says nothing")

func testRow(seq int64, key string) row {
	id := fmt.Sprint(seq)
	return row{seq: seq, id: id, unitHash: int64(len(key)), fresh: true, outgoing: Outgoing{
		Destination: "orders", PartitionKey: key, Message: message.NewMessage(id, nil),
	}}
}

// script answers with the errors that it has for messages, by their ids, and keeps what it took.
type script struct {
	nopPublisher

	errs map[string]error
	took []string
}

func (s *script) PublishBatch(ctx context.Context, msgs []Outgoing) []error {
	return Waves(ctx, msgs, func(_ context.Context, wave []Outgoing) []error {
		results := make([]error, len(wave))
		for i, msg := range wave {
			if results[i] = s.errs[msg.Message.UUID]; results[i] == nil {
				s.took = append(s.took, msg.Message.UUID)
			}
		}
		return results
	})
}

func scriptedWorker(t *testing.T, errs map[string]error) (*worker, *script) {
	t.Helper()
	w := newTestWorker(t, testdb.New(t), Config{Workers: 1})
	s := &script{errs: errs}
	w.publisher = s
	return w, s
}

// A suspect is sent alone, after the others of its batch: not where one of its own unit, which
// may fail, is before it.
func TestSuspectDoesNotOvertakeItsUnit(t *testing.T) {
	t.Parallel()
	w, s := scriptedWorker(t, map[string]error{"1": Refused(errSilent)})
	w.suspects.failed("", 2, false)
	rows := []row{testRow(1, "a"), testRow(2, "a"), testRow(3, "b")}
	done := w.publish(t.Context(), t.Context(), rows, 1)
	require.Equal(t, []string{"3"}, s.took)
	require.ErrorIs(t, done.results[0], ErrRefused)
	require.Error(t, done.results[1])

	delete(s.errs, "1")
	done = w.publish(t.Context(), t.Context(), rows[:2], 1)
	require.NoError(t, done.results[0])
	require.ErrorIs(t, done.results[1], errLater, "it has the next batch to itself")
	done = w.publish(t.Context(), t.Context(), rows[1:2], 1)
	require.NoError(t, done.results[0])
	require.Equal(t, []string{"3", "1", "2"}, s.took)
}

// Messages that fail without saying why, among others that pass, do not make batches smaller:
// the broker is there.
func TestSilentFailuresAmongOthersKeepThePace(t *testing.T) {
	t.Parallel()
	w, s := scriptedWorker(t, map[string]error{"1": errSilent})
	w.publish(t.Context(), t.Context(), []row{testRow(1, "a"), testRow(2, "b"), testRow(3, "c")}, 1)
	rows, _ := w.paces.of("").now()
	require.Equal(t, w.config.BatchSize, rows)

	s.errs["1"] = Unavailable(errSilent) // the connection was lost on the way
	w.publish(t.Context(), t.Context(), []row{testRow(1, "a"), testRow(2, "b"), testRow(3, "c")}, 1)
	rows, _ = w.paces.of("").now()
	require.Equal(t, 2, rows)

	s.errs["1"] = errSilent
	w.publish(t.Context(), t.Context(), []row{testRow(1, "a")}, 1)
	rows, _ = w.paces.of("").now()
	require.Equal(t, 1, rows, "nothing passed")
}

// A message that fails alone, while the broker takes others in batches of their own, is at fault.
func TestConvictionByOtherBatches(t *testing.T) {
	t.Parallel()
	w, _ := scriptedWorker(t, nil)
	batch := func(err error, rows ...row) []error {
		p := &part{rows: rows, results: make([]error, len(rows)), alone: make([]bool, len(rows))}
		for i := range rows {
			p.results[i], p.alone[i] = err, len(rows) == 1
		}
		w.convict(p)
		return p.results
	}
	others := make([]row, 50)
	for i := range others {
		others[i] = testRow(int64(100+i), fmt.Sprint(i))
	}
	batch(nil, others...)
	killer := testRow(1, "a")
	for range 2 {
		require.NotErrorIs(t, batch(Unavailable(errSilent), killer)[0], ErrRefused)
		batch(nil, others...)
	}
	require.ErrorIs(t, batch(Unavailable(errSilent), killer)[0], ErrRefused)

	outage := testRow(2, "b")
	for range 50 {
		require.NotErrorIs(t, batch(Unavailable(errSilent), outage)[0], ErrRefused, "nobody else passes")
		batch(Unavailable(errSilent), others...)
	}
}

// A turn that was given up comes back when its time is over: it sends nothing any more.
func TestNothingIsSentWhenTheTimeIsOver(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 1)
	w := newTestWorker(t, db, Config{Workers: 1})
	w.config.PublishTimeout, w.config.DatabaseTimeout = time.Millisecond, 50*time.Millisecond
	s := &script{}
	w.publisher = s
	out, err := w.forwardBatch(t.Context(), func(ctx context.Context, _ *sql.Tx) (claim, error) {
		<-ctx.Done() // the driver did not come back before
		return claim{rows: []row{testRow(1, "a")}}, nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, out.claimed)
	require.Empty(t, s.took)
}

// The marks go on where a turn was given up in the middle of what they learn from.
func TestMarksGoOnAfterATurnThatWasGivenUp(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 3)
	w := newTestWorker(t, db, Config{Workers: 1})
	require.Len(t, claimAndSettle(t, w), 3)
	m := w.claimer.marks
	m.mu.Lock()
	m.horizon.looking = true // its statement never returned
	m.mu.Unlock()
	w.giveUp()
	requireEventuallyMarked(t, db, w)
}

func requireEventuallyMarked(t *testing.T, db *testdb.DB, w *worker) {
	t.Helper()
	require.Eventually(t, func() bool {
		insertOne(t, db, "orders")
		claimAndSettle(t, w)
		return lowestMark(w) > 0
	}, 30*time.Second, 10*time.Millisecond)
}
