package suite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/middleware"
	"github.com/watermill-outbox/outbox/pgxtx"
)

const (
	bareHandler   = "handler without an inbox"
	withInbox     = "handler with the inbox"
	onlyRepeated  = "inbox, duplicates only"
	nativeBare    = "native pgx, handler without an inbox"
	nativeInbox   = "native pgx, handler with the inbox"
	accounts      = 1000
	repeatedEvery = 200
)

// Deduplicator is the side that marks a message as seen before it is handled.
const Deduplicator = "Watermill's Deduplicator"

// inboxTargets are those by the number of goroutines.
var inboxTargets = map[int]float64{1: 0.85, 4: 0.8, 16: 0.7}

// inboxed sets a handler with one UPDATE beside the same with the inbox.
func inboxed(r rig.Rig, scale Scale, goroutines int) compare.Comparison {
	name := fmt.Sprintf("inbox ÷ the same handler without, %d goroutines", goroutines)
	c := compare.Comparison{
		Name:   fmt.Sprintf("inbox-%d-goroutines", goroutines),
		Title:  fmt.Sprintf("Handler with one UPDATE, with and without the inbox, %d goroutines", goroutines),
		Rounds: scale.Rounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			h, err := newHandling(ctx, r, goroutines, scale.Writing, clean)
			if err != nil {
				return nil, err
			}
			return h.sides(), nil //nolint:contextcheck // the messages carry it
		},
		Figures: []compare.Figure{
			{Name: name + ", database/sql", Of: withInbox, Over: bareHandler, Bound: compare.AtLeast, Target: inboxTargets[goroutines]},
			{Name: name + ", duplicates only", Of: onlyRepeated, Over: bareHandler},
			{Name: fmt.Sprintf("inbox ÷ Watermill's Deduplicator, %d goroutines", goroutines), Of: withInbox, Over: Deduplicator},
		},
	}
	native := compare.Figure{Name: name + ", native pgx", Of: nativeInbox, Over: nativeBare}
	if goroutines == 16 {
		native.Bound, native.Target = compare.AtLeast, 0.85
	}
	c.Figures = append(c.Figures, native)
	return c
}

// failing has the handler fail at first: what is delivered again must be handled.
func failing(r rig.Rig, scale Scale) compare.Comparison {
	return compare.Comparison{
		Name:   "inbox-failing-handler",
		Title:  "Handler that fails at the first delivery of each 10th message, delivered again until it is taken, 4 goroutines",
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			h, err := newHandling(ctx, r, 4, scale.Writing, clean)
			if err != nil {
				return nil, err
			}
			h.failEvery = 10
			return []compare.Side{
				h.side(withInbox, h.once.Middleware(h.effect)), //nolint:contextcheck // the messages carry it
				h.side(Deduplicator, new(wm.Deduplicator{KeyFactory: byUUID}).Middleware(h.inTx)),
			}, nil
		},
		Figures: []compare.Figure{{Name: "failing handler, inbox ÷ Watermill's Deduplicator", Of: withInbox, Over: Deduplicator}},
	}
}

// handling is what the sides of the inbox share.
type handling struct {
	outbox     *rig.Outbox
	pool       *pgxpool.Pool
	once       *middleware.Inbox
	nativeOnce *middleware.Inbox
	update     string
	goroutines int
	last       time.Duration
	// failEvery has each n-th message fail at its first delivery.
	failEvery int
}

func newHandling(
	ctx context.Context, r rig.Rig, goroutines int, last time.Duration, clean *compare.Cleanup,
) (h *handling, err error) {
	h = &handling{goroutines: goroutines, last: last}
	if h.outbox, err = newOutbox(ctx, r, clean); err != nil {
		return nil, err
	}
	return h, h.prepare(ctx, clean)
}

func (h *handling) prepare(ctx context.Context, clean *compare.Cleanup) error {
	table := h.outbox.Schema.Schema + `.accounts`
	h.update = `UPDATE ` + table + ` SET handled = handled + 1 WHERE id = $1::integer`
	for _, statement := range []string{
		`CREATE TABLE ` + table + ` (id integer PRIMARY KEY, handled bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)`,
		fmt.Sprintf(`INSERT INTO %s (id) SELECT generate_series(0, %d)`, table, accounts-1),
		`VACUUM ANALYZE ` + table,
	} {
		if err := h.outbox.Exec(ctx, statement); err != nil {
			return err
		}
	}
	config, err := pgxpool.ParseConfig(h.outbox.DSN)
	if err != nil {
		return errors.New("POSTGRES_DSN is not for pgx") // the error would show the password
	}
	config.MaxConns = int32(h.goroutines) + 1 //nolint:gosec // a few
	if h.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	clean.Add(func(context.Context) error { h.pool.Close(); return nil })
	store, err := inbox.NewStore(inbox.Config{Schema: h.outbox.Schema})
	if err != nil {
		return err
	}
	if h.once, err = middleware.NewInbox(middleware.InboxConfig{DB: h.outbox.DB, Store: store, Consumer: "a"}, nil); err != nil {
		return err
	}
	h.nativeOnce, err = middleware.NewInbox(middleware.InboxConfig{Beginner: pgxtx.NewBeginner(h.pool), Store: store, Consumer: "b"}, nil)
	return err
}

func (h *handling) sides() []compare.Side {
	once := h.once.Middleware(h.effect)
	return []compare.Side{
		h.side(bareHandler, h.inTx),
		h.side(withInbox, once),
		{Name: onlyRepeated, Round: func(ctx context.Context) (compare.Sample, error) { return h.repeated(ctx, once) }},
		h.side(Deduplicator, new(wm.Deduplicator{KeyFactory: byUUID}).Middleware(h.inTx)),
		h.side(nativeBare, h.inNativeTx),
		h.side(nativeInbox, h.nativeOnce.Middleware(h.nativeEffect)),
	}
}

// byUUID, since a hash of the payload would drop different events of the same content.
func byUUID(msg *message.Message) (string, error) { return msg.UUID, nil }

var errFirstDelivery = errors.New("the first delivery fails")

const (
	accountMetadata  = "account"
	deliveryMetadata = "delivery"
)

// fails says whether this delivery of the message is to fail.
func (h *handling) fails(msg *message.Message) error {
	if msg.Metadata.Get(deliveryMetadata) == "fails" {
		return errFirstDelivery
	}
	return nil
}

// effect is the business: one UPDATE in the transaction of the inbox.
func (h *handling) effect(msg *message.Message) ([]*message.Message, error) {
	tx, ok := outbox.TxFromContext[*sql.Tx](msg.Context())
	if !ok {
		return nil, outbox.ErrNoTx
	}
	_, err := tx.ExecContext(msg.Context(), h.update, msg.Metadata.Get(accountMetadata))
	return nil, errors.Join(err, h.fails(msg))
}

func (h *handling) inTx(msg *message.Message) ([]*message.Message, error) {
	return nil, inTransaction(msg.Context(), h.outbox.DB, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(msg.Context(), h.update, msg.Metadata.Get(accountMetadata))
		return errors.Join(err, h.fails(msg))
	})
}

func (h *handling) nativeEffect(msg *message.Message) ([]*message.Message, error) {
	tx, ok := outbox.TxFromContext[pgx.Tx](msg.Context())
	if !ok {
		return nil, outbox.ErrNoTx
	}
	_, err := tx.Exec(msg.Context(), h.update, msg.Metadata.Get(accountMetadata))
	return nil, err
}

func (h *handling) inNativeTx(msg *message.Message) ([]*message.Message, error) {
	return nil, pgx.BeginFunc(msg.Context(), h.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(msg.Context(), h.update, msg.Metadata.Get(accountMetadata))
		return err
	})
}

func (h *handling) side(name string, handle message.HandlerFunc) compare.Side {
	return compare.Side{Name: name, Round: func(ctx context.Context) (compare.Sample, error) {
		ids := compare.NewTally(rig.NewPrefix(), 0)
		return h.round(ctx, handle, ids.ID, 1)
	}}
}

// repeated handles messages that were handled before.
func (h *handling) repeated(ctx context.Context, handle message.HandlerFunc) (sample compare.Sample, err error) {
	ids := compare.NewTally(rig.NewPrefix(), 0)
	for number := range repeatedEvery {
		if _, err := handle(h.message(ctx, ids.ID(number), number)); err != nil {
			return sample, err
		}
	}
	return h.round(ctx, handle, func(number int) string { return ids.ID(number % repeatedEvery) }, 0)
}

// round counts the effects in the database; each message should have so many.
func (h *handling) round(
	ctx context.Context, handle message.HandlerFunc, id func(number int) string, effects int,
) (sample compare.Sample, err error) {
	before, err := h.handled(ctx)
	if err != nil {
		return sample, err
	}
	sample.Messages, sample.Took, err = h.deliver(ctx, handle, id)
	if err != nil {
		return sample, err
	}
	after, err := h.handled(ctx)
	if err != nil {
		return sample, err
	}
	sample.Lost = sample.Messages*effects - int(after-before)
	if sample.Lost < 0 {
		return sample, fmt.Errorf("%d effects more than messages", -sample.Lost)
	}
	return sample, nil
}

func (h *handling) handled(ctx context.Context) (float64, error) {
	return h.outbox.Number(ctx, `SELECT sum(handled) FROM `+h.outbox.Schema.Schema+`.accounts`)
}

// deliver delivers each message until it is taken, as a broker does.
func (h *handling) deliver(
	ctx context.Context, handle message.HandlerFunc, id func(number int) string,
) (taken int, took time.Duration, err error) {
	var numbers, done atomic.Int64
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range h.goroutines {
		group.Go(func() error {
			for time.Since(start) < h.last {
				number := int(numbers.Add(1))
				msg := h.message(ctx, id(number), number)
				if h.failEvery > 0 && number%h.failEvery == 0 {
					msg.Metadata.Set(deliveryMetadata, "fails")
				}
				_, err := handle(msg)
				if errors.Is(err, errFirstDelivery) {
					_, err = handle(h.message(ctx, id(number), number))
				}
				if err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	err = group.Wait()
	return int(done.Load()), time.Since(start), err
}

func (h *handling) message(ctx context.Context, id string, number int) *message.Message {
	msg := message.NewMessage(id, publishedPayload)
	msg.Metadata.Set(accountMetadata, fmt.Sprint(number%accounts))
	msg.SetContext(ctx)
	return msg
}
