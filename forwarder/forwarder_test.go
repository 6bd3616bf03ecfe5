package forwarder_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

var errTest = errors.New("test: no")

func TestForwardsInOrderPerKey(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var r recorder
	insertMany(t, db, 3000, 7)
	for range 3 {
		start(t, db, r.publisher(), fast(forwarder.Config{Workers: 3, BatchSize: 50}))
	}
	requireDrained(t, db)
	require.Len(t, r.confirmed(), 3000, "without a failure nothing is sent twice")
	for key := range 7 {
		var want []string
		for n := 1; n <= 3000; n++ {
			if n%7 == key {
				want = append(want, fmt.Sprintf("id-%d", n))
			}
		}
		require.Equal(t, want, r.unit("orders", fmt.Sprintf("key-%d", key)))
	}
}

// Replicas race for the same lanes and rows all the time; a claim that looked at an
// old snapshot would send settled rows again.
func TestRacingClaimsSendNothingTwice(t *testing.T) {
	t.Parallel()
	for _, ordering := range []forwarder.Ordering{forwarder.PerKey, forwarder.None} {
		t.Run(string(ordering), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var r recorder
			insertMany(t, db, 4000, 4000)
			for range 4 {
				start(t, db, r.publisher(), fast(forwarder.Config{Ordering: ordering, Workers: 4, BatchSize: 7}))
			}
			requireDrained(t, db)
			sent := r.confirmed()
			slices.Sort(sent)
			require.Len(t, sent, 4000)
			require.Len(t, slices.Compact(sent), 4000)
		})
	}
}

func TestRefusedMessageHoldsBackItsUnitOnly(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var healed atomic.Bool
	r := recorder{fail: func(msg forwarder.Outgoing) error {
		if msg.Message.UUID == "a-2" && !healed.Load() {
			return forwarder.Refused(errTest)
		}
		return nil
	}}
	insert(t, db, "orders", "a", ids("a", 4)...)
	insert(t, db, "orders", "b", ids("b", 4)...)
	insert(t, db, "invoices", "a", ids("other", 2)...)
	start(t, db, r.publisher(), fast(forwarder.Config{}))

	eventually(t, func() bool { return len(idsInOutbox(t, db, `attempts >= 3`)) == 1 })
	requireOutbox(t, db, `true`, "a-2", "a-3", "a-4")
	require.Equal(t, []string{"a-2"}, idsInOutbox(t, db,
		`attempts > 0 AND last_error LIKE '%test: no%' AND next_attempt_at > created_at`))
	require.Equal(t, []string{"a-1"}, r.unit("orders", "a"))
	require.Equal(t, ids("b", 4), r.unit("orders", "b"))
	require.Equal(t, ids("other", 2), r.unit("invoices", "a"))

	healed.Store(true)
	requireDrained(t, db)
	require.Equal(t, ids("a", 4), r.unit("orders", "a"))
}

// A publisher may mark an error twice: what is refused is refused.
func TestRefusalWinsOverOtherMarks(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := recorder{fail: func(msg forwarder.Outgoing) error {
		if msg.Message.UUID == "a-1" {
			return forwarder.Refused(forwarder.DestinationUnavailable(forwarder.Unavailable(errTest)))
		}
		return nil
	}}
	insert(t, db, "orders", "a", "a-1")
	insert(t, db, "orders", "b", ids("b", 5)...)
	start(t, db, r.publisher(), fast(forwarder.Config{Workers: 1}))
	eventually(t, func() bool { return len(idsInOutbox(t, db, `attempts > 2`)) == 1 })
	require.Equal(t, ids("b", 5), r.unit("orders", "b"))
}

// The head of a unit that is not due holds back the unit also where the unit's later
// rows would be claimed without it.
func TestUnitWaitsWhileItsHeadIsNotDue(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "orders", "a", ids("a", 3)...)
	_, err := db.ExecContext(t.Context(),
		`UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = now() + interval '1 hour' WHERE id = 'a-1'`)
	require.NoError(t, err)
	var r recorder
	start(t, db, r.publisher(), fast(forwarder.Config{BatchSize: 1}))
	insert(t, db, "orders", "b", ids("b", 20)...)
	eventually(t, func() bool { return len(r.unit("orders", "b")) == 20 })
	require.Empty(t, r.unit("orders", "a"))

	_, err = db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = now()`)
	require.NoError(t, err)
	requireDrained(t, db)
	require.Equal(t, ids("a", 3), r.unit("orders", "a"))
}

func TestUnavailableBrokerSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		away  atomic.Bool
		tries atomic.Int64
	)
	away.Store(true)
	r := recorder{fail: func(forwarder.Outgoing) error {
		if tries.Add(1); away.Load() {
			return forwarder.Unavailable(errTest)
		}
		return nil
	}}
	insert(t, db, "orders", "a", ids("a", 5)...)
	start(t, db, r.publisher(), fast(forwarder.Config{}))
	eventually(t, func() bool { return tries.Load() > 5 })
	require.Equal(t, ids("a", 5), idsInOutbox(t, db, `attempts = 0 AND next_attempt_at IS NULL AND last_error IS NULL`))
	away.Store(false)
	requireDrained(t, db)
	require.Equal(t, ids("a", 5), r.unit("orders", "a"))
}

func TestUnavailableDestinationHoldsBackItselfOnly(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var away atomic.Bool
	away.Store(true)
	r := recorder{fail: func(msg forwarder.Outgoing) error {
		if msg.Destination == "missing" && away.Load() {
			return forwarder.DestinationUnavailable(errTest)
		}
		return nil
	}}
	insert(t, db, "missing", "a", ids("m", 30)...)
	insert(t, db, "orders", "a", ids("o", 30)...)
	start(t, db, r.publisher(), fast(forwarder.Config{BatchSize: 10}))
	eventually(t, func() bool { return len(r.unit("orders", "a")) == 30 })
	requireOutbox(t, db, `true`, ids("m", 30)...)
	requireOutbox(t, db, `attempts > 0 OR next_attempt_at IS NOT NULL`)
	away.Store(false)
	requireDrained(t, db)
	require.Equal(t, ids("m", 30), r.unit("missing", "a"))
}

func TestPartlyConfirmedBatchSettlesWhatIsConfirmed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "orders", "", ids("a", 6)...)
	var first atomic.Bool
	parked := make(chan struct{})
	publisher := publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		results := make([]error, len(msgs))
		if first.CompareAndSwap(false, true) {
			for i := range results {
				if i >= 2 {
					results[i] = forwarder.Unavailable(errTest)
				}
			}
			return results
		}
		select {
		case <-parked:
		case <-ctx.Done():
		}
		return results
	})
	start(t, db, publisher, fast(forwarder.Config{Workers: 1}))
	requireOutbox(t, db, `true`, "a-3", "a-4", "a-5", "a-6")
	close(parked)
	requireDrained(t, db)
}

func TestMarkPublishedKeepsRows(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var r recorder
	insert(t, db, "orders", "a", ids("a", 5)...)
	start(t, db, r.publisher(), fast(forwarder.Config{Settlement: forwarder.MarkPublished, BatchSize: 2}))
	requireDrained(t, db)
	require.Equal(t, ids("a", 5), idsInOutbox(t, db, `published_at >= created_at AND last_error IS NULL`))
	require.Equal(t, ids("a", 5), r.unit("orders", "a"))
}

func TestBatchIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload, partition_key, metadata)
		SELECT 'id-' || n, 'orders', repeat('x', CASE n WHEN 3 THEN 5000 ELSE 200 END), repeat('k', 100),
			jsonb_build_object('m', repeat('v', 100)) FROM generate_series(1, 10) AS n ORDER BY n`)
	require.NoError(t, err)
	var r recorder
	start(t, db, r.publisher(), fast(forwarder.Config{BatchBytes: 1000, Workers: 1}))
	requireDrained(t, db)
	require.Len(t, r.confirmed(), 10)
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(t, []int{2, 1, 2, 2, 2, 1}, r.batches)
}

// The end of the context lets the batch in flight be published and settled.
func TestStopFinishesTheBatchInFlight(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	publishing, confirm := make(chan struct{}), make(chan struct{})
	publisher := publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		close(publishing)
		<-confirm
		results := make([]error, len(msgs))
		for i := range results {
			results[i] = ctx.Err()
		}
		return results
	})
	insert(t, db, "orders", "a", ids("a", 3)...)
	_, stop := start(t, db, publisher, fast(forwarder.Config{Workers: 1}))
	<-publishing
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	select {
	case err := <-stopped:
		require.NoError(t, err)
		require.Fail(t, "Run returned while a batch was in flight")
	case <-time.After(50 * time.Millisecond):
	}
	close(confirm)
	require.NoError(t, <-stopped)
	require.Empty(t, idsInOutbox(t, db, `true`))
}

// A publisher that ignores its bound: Run still ends, and the row is still there.
func TestStopIsBoundedWithPlainPublisherThatHangs(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	publisher := &plain{hang: make(chan struct{}), hanging: make(chan struct{})}
	insert(t, db, "orders", "a", "a-1")
	_, stop := start(t, db, publisher, fast(forwarder.Config{PublishTimeout: 50 * time.Millisecond, Workers: 1}))
	<-publisher.hanging
	require.NoError(t, stop())
	require.Equal(t, []string{"a-1"}, idsInOutbox(t, db, `attempts = 0`))
	close(publisher.hang)
}

// plain is a message.Publisher and nothing more.
type plain struct {
	fail    func(id string) error
	hang    chan struct{}
	hanging chan struct{}

	mu  sync.Mutex
	ids []string
}

func (p *plain) Publish(_ string, msgs ...*message.Message) error {
	if p.hang != nil {
		close(p.hanging)
		<-p.hang
	}
	for _, msg := range msgs {
		if p.fail != nil {
			if err := p.fail(msg.UUID); err != nil {
				return err
			}
		}
		p.mu.Lock()
		p.ids = append(p.ids, msg.UUID)
		p.mu.Unlock()
	}
	return nil
}

func (p *plain) Close() error { return nil }

func (p *plain) published() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.ids...)
}

func TestPlainPublisherKeepsOrderWhenOneMessageFails(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]func() error{
		"error": func() error { return errTest },
		"panic": func() error { panic("test: panic") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var healed atomic.Bool
			publisher := &plain{fail: func(id string) error {
				if id == "a-1" && !healed.Load() {
					return failure()
				}
				return nil
			}}
			insert(t, db, "orders", "a", ids("a", 3)...)
			insert(t, db, "orders", "b", ids("b", 3)...)
			start(t, db, publisher, fast(forwarder.Config{}))
			eventually(t, func() bool { return len(publisher.published()) == 3 })
			require.Equal(t, ids("b", 3), publisher.published())
			requireOutbox(t, db, `true`, ids("a", 3)...)
			healed.Store(true)
			requireDrained(t, db)
			require.Equal(t, append(ids("b", 3), ids("a", 3)...), publisher.published())
		})
	}
}

// Messages that a plain publisher cannot send, without saying why, stand at the head:
// those behind them are sent all the same.
func TestPlainPublisherGetsPastPoison(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	publisher := &plain{fail: func(id string) error {
		if strings.HasPrefix(id, "poison") {
			return errTest
		}
		return nil
	}}
	insert(t, db, "orders", "", ids("poison", 8)...)
	insert(t, db, "orders", "", ids("healthy", 100)...)
	start(t, db, publisher, fast(forwarder.Config{BatchSize: 20}))
	eventually(t, func() bool { return len(publisher.published()) == 100 })
	requireOutbox(t, db, `true`, ids("poison", 8)...)
	for n := 0; len(idsInOutbox(t, db, `attempts > 0`)) == 0; n++ { // what fails while others are confirmed
		require.Less(t, n, 1000)
		insert(t, db, "orders", "", fmt.Sprintf("later-%d", n))
		eventually(t, func() bool { return len(publisher.published()) == 101+n })
	}
}

// A plain publisher whose broker is away is not asked for every message of a batch.
func TestPlainPublisherGivesUpTheBatch(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		asked atomic.Int64
		away  atomic.Bool
	)
	away.Store(true)
	publisher := &plain{fail: func(string) error {
		if asked.Add(1); away.Load() {
			return errTest
		}
		return nil
	}}
	for _, id := range ids("a", 100) {
		insert(t, db, "orders", "", id)
	}
	cfg := fast(forwarder.Config{Workers: 1})
	cfg.RetryInitial, cfg.RetryMax = time.Hour, time.Hour
	_, stop := start(t, db, publisher, cfg)
	eventually(t, func() bool { return len(idsInOutbox(t, db, `next_attempt_at IS NOT NULL`)) == 5 })
	require.NoError(t, stop())
	require.EqualValues(t, 5, asked.Load())
	require.Len(t, idsInOutbox(t, db, `attempts = 0`), 100)
}

func TestPublisherThatBreaksItsContractSettlesNothing(t *testing.T) {
	t.Parallel()
	for name, publish := range map[string]func(n int) []error{
		"too few results": func(int) []error { return nil },
		"holds keys without a failure": func(n int) []error {
			results := make([]error, n)
			for i := range results {
				results[i] = forwarder.ErrKeyHeld
			}
			return results
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var asked, sane atomic.Int64
			publisher := publisherFunc(func(_ context.Context, msgs []forwarder.Outgoing) []error {
				if asked.Add(1); sane.Load() == 0 {
					return publish(len(msgs))
				}
				return make([]error, len(msgs))
			})
			insert(t, db, "orders", "a", ids("a", 3)...)
			start(t, db, publisher, fast(forwarder.Config{}))
			eventually(t, func() bool { return asked.Load() > 3 })
			require.Equal(t, ids("a", 3), idsInOutbox(t, db, `attempts = 0`))
			sane.Store(1)
			requireDrained(t, db)
		})
	}
}

// A message that a publisher does not survive is found, and refused; the others go on.
func TestPanicIsTheRefusalOfItsMessage(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var r recorder
	record := r.publisher()
	publisher := publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		for _, msg := range msgs {
			if msg.Message.UUID == "a-2" {
				panic("test: panic")
			}
		}
		return record(ctx, msgs)
	})
	insert(t, db, "orders", "a", ids("a", 3)...)
	for _, id := range ids("b", 100) {
		insert(t, db, "orders", "", id)
	}
	cfg := fast(forwarder.Config{BatchSize: 50})
	cfg.MaxAttempts = 3
	start(t, db, publisher, cfg)
	requireDrained(t, db)
	require.Equal(t, []string{"a-2"}, deadLetters(t, db, `attempts = 3 AND error LIKE '%panicked: test: panic%'`))
	require.Equal(t, []string{"a-1", "a-3"}, r.unit("orders", "a"))
	require.Len(t, r.confirmed(), 102)
}

func TestWakeDoesNotWaitForThePoll(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var r recorder
	f, _ := start(t, db, r.publisher(), forwarder.Config{PollInterval: time.Hour, Workers: 1})
	for _, id := range ids("a", 3) {
		insert(t, db, "orders", "a", id)
		eventually(t, func() bool {
			f.Wake()
			return slices.Contains(r.confirmed(), id)
		})
	}
}

// Metadata that Postgres takes and Go cannot read: no attempt can help, and others go on.
func TestUnreadableRowIsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "orders", "a", "a-1")
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload, metadata)
		VALUES ('a-2', 'orders', 'a', 'x', ('{"deep": ' || repeat('[', 10001) || repeat(']', 10001) || '}')::jsonb)`)
	require.NoError(t, err)
	insert(t, db, "orders", "a", "a-3")
	insert(t, db, "orders", "b", ids("b", 3)...)
	var r recorder
	start(t, db, r.publisher(), fast(forwarder.Config{Workers: 1}))
	requireDrained(t, db)
	require.Equal(t, []string{"a-1", "a-3"}, r.unit("orders", "a"))
	require.Equal(t, ids("b", 3), r.unit("orders", "b"))
	require.Equal(t, []string{"a-2"}, deadLetters(t, db, `attempts = 1 AND error LIKE '%metadata%' AND NOT blocks AND metadata ? 'deep'`))
}

// Whatever a role's or a connection's settings make of bytes, the payload arrives.
func TestSessionSettingsDoNotChangePayloads(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	dsn := testdb.WithSetting(t, testdb.WithSetting(t, db.DSN, "bytea_output", "escape"), "default_query_exec_mode", "exec")
	db.DB = testdb.Open(t, "pgx", testdb.WithSetting(t, dsn, "client_encoding", "LATIN1"))
	got := make(chan message.Payload, 2)
	publisher := publisherFunc(func(_ context.Context, msgs []forwarder.Outgoing) []error {
		for _, msg := range msgs {
			got <- msg.Message.Payload
		}
		return make([]error, len(msgs))
	})
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload_bytes, payload)
		VALUES ('1', 'orders', '\x00ff5c', NULL), ('2', 'orders', NULL, U&'\00e9')`)
	require.NoError(t, err)
	start(t, db, publisher, fast(forwarder.Config{Workers: 1}))
	require.Equal(t, message.Payload{0, 0xff, 0x5c}, <-got)
	require.Equal(t, message.Payload("é"), <-got)
}

// A publisher that ignores its context altogether: Run says so instead of waiting on.
func TestStopSaysWhereItIsStuck(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	publishing, hang := make(chan struct{}), make(chan struct{})
	publisher := publisherFunc(func(_ context.Context, msgs []forwarder.Outgoing) []error {
		close(publishing)
		<-hang
		return make([]error, len(msgs))
	})
	insert(t, db, "orders", "a", "a-1")
	f, err := forwarder.New(db.DB, publisher, forwarder.Config{
		Schema: db.Schema, Workers: 1, PublishTimeout: 10 * time.Millisecond, DatabaseTimeout: 200 * time.Millisecond,
	}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-publishing
		cancel()
	}()
	require.ErrorIs(t, f.Run(ctx), forwarder.ErrStuck)
	close(hang)
}

func TestMetadataWrittenBySQLArrivesAsText(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	got := make(chan message.Metadata, 1)
	publisher := publisherFunc(func(_ context.Context, msgs []forwarder.Outgoing) []error {
		got <- msgs[0].Message.Metadata
		return make([]error, len(msgs))
	})
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload, metadata)
		VALUES ('1', 'orders', 'x', '{"text": "a\"b", "number": 1.50, "null": null, "nested": {"a": [1]}, "yes": true}')`)
	require.NoError(t, err)
	start(t, db, publisher, fast(forwarder.Config{}))
	require.Equal(t, message.Metadata{
		"text": `a"b`, "number": "1.50", "null": "null", "nested": `{"a": [1]}`, "yes": "true",
	}, <-got)
}

// Neither the driver nor the server's default isolation level changes anything.
func TestDriversAndIsolationLevels(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
			t.Run(driver+" "+isolation, func(t *testing.T) {
				t.Parallel()
				db := testdb.New(t)
				db.DB = testdb.Open(t, driver, testdb.WithSetting(t, db.DSN, "default_transaction_isolation", isolation))
				var r recorder
				insertMany(t, db, 500, 5)
				for range 2 {
					start(t, db, r.publisher(), fast(forwarder.Config{BatchSize: 20}))
				}
				requireDrained(t, db)
				require.Len(t, r.confirmed(), 500)
			})
		}
	}
}

func TestRunNeedsFitTables(t *testing.T) {
	t.Parallel()
	empty := testdb.NewEmpty(t)
	f, err := forwarder.New(empty.DB, (&recorder{}).publisher(), forwarder.Config{Schema: empty.Schema}, nil)
	require.NoError(t, err)
	require.ErrorIs(t, f.Run(t.Context()), schema.ErrNotMigrated)
	require.ErrorIs(t, f.Run(t.Context()), forwarder.ErrAlreadyRun)

	cached := testdb.New(t)
	_, err = cached.ExecContext(t.Context(), `ALTER TABLE `+cached.Schema.Outbox()+` ALTER COLUMN seq SET CACHE 20`)
	require.NoError(t, err)
	f, err = forwarder.New(cached.DB, (&recorder{}).publisher(), forwarder.Config{Schema: cached.Schema}, nil)
	require.NoError(t, err)
	require.ErrorIs(t, f.Run(t.Context()), schema.ErrSequenceCache)
}

// A database that is away at the start is waited for.
func TestRunWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "postgres", "postgres://nobody@127.0.0.1:1/none?sslmode=disable&connect_timeout=1")
	f, err := forwarder.New(db, (&recorder{}).publisher(), fast(forwarder.Config{}), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.NoError(t, f.Run(ctx))
	select {
	case <-f.Running():
		require.Fail(t, "it cannot be running")
	default:
	}
}
