package forwarder

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// slowScript confirms when it is let go.
type slowScript struct {
	nopPublisher

	has, goOn chan struct{}
}

func (s slowScript) PublishBatch(_ context.Context, msgs []Outgoing) []error {
	close(s.has)
	<-s.goOn
	return make([]error, len(msgs))
}

// A batch that is in hand when Run is to end is finished, however long a claim would be waited
// for: its settling begins just before that time is over.
func TestTurnFinishesABatchInHand(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 1)
	// Deleting takes a good part of DatabaseTimeout.
	_, err := db.ExecContext(t.Context(), `CREATE FUNCTION `+db.Schema.Schema+`.slow() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_catalog.pg_sleep(0.5); RETURN OLD; END $$;
		CREATE TRIGGER slow BEFORE DELETE ON `+db.Schema.Outbox()+` FOR EACH ROW EXECUTE FUNCTION `+db.Schema.Schema+`.slow()`)
	require.NoError(t, err)
	w := newTestWorker(t, db, Config{Workers: 1})
	w.config.DatabaseTimeout = time.Second
	s := slowScript{has: make(chan struct{}), goOn: make(chan struct{})}
	w.publisher = s
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		<-s.has
		stop()
		time.Sleep(4*w.config.DatabaseTimeout - 200*time.Millisecond) //nolint:forbidigo // the time that is meant
		close(s.goOn)
	}()
	out, err := w.turn(ctx, w.claim)
	require.NoError(t, err)
	require.Equal(t, 1, out.confirmed)
	var left int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()).Scan(&left))
	require.Zero(t, left)
}
