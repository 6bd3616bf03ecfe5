package forwarder

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// listener hears of new rows, on a connection of its own.
type listener struct {
	config Config
	db     *sql.DB
	outage *outage

	// heard gets something when a writer or another replica has notified, and when it may
	// have been missed.
	heard chan struct{}
	// hears says that notifications arrive, as was tried.
	hears atomic.Bool
}

const (
	// connectTimeout is for connections to ListenDSN, in seconds, where it has none.
	connectTimeout = 10
	// soundInterval is how often it is tried whether notifications arrive.
	soundInterval = 30 * time.Second
)

var (
	errNotHeard    = errors.New("a notification did not arrive; ListenDSN must lead to the database itself, or to a pooler in session mode")
	errTriggerOff  = errors.New("the trigger " + schema.WakeUpTrigger + " is missing or disabled, or was made for a table of another name")
	errPreparation = errors.New("max_prepared_transactions is not 0, so that writers do not notify")
)

func newListener(cfg Config, db *sql.DB, logger watermill.LoggerAdapter) *listener {
	return &listener{config: cfg, db: db, outage: &outage{what: "Notification of new rows", logger: logger}, heard: make(chan struct{}, 1)}
}

// run listens until ctx ends. While it cannot, forwarders look for rows by themselves.
func (l *listener) run(ctx context.Context) {
	backOff := l.config.newBackOff()
	for ctx.Err() == nil {
		began := time.Now()
		err := l.listen(ctx)
		l.hears.Store(false)
		l.wake() // something may have been missed
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > soundInterval {
			backOff.Reset()
		}
		wait := l.config.next(backOff)
		l.outage.note("Forwarder is not notified of new rows, it looks for them every PollInterval", err, wait, began)
		sleep(ctx, wait, nil)
	}
}

func (l *listener) wake() {
	select {
	case l.heard <- struct{}{}:
	default:
	}
}

// listen listens for as long as it can.
func (l *listener) listen(ctx context.Context) error {
	if err := l.inspect(ctx); err != nil {
		return err
	}
	notifications := make(chan *pq.Notification, 32)
	conn, err := pq.NewListenerConn(withConnectTimeout(l.config.ListenDSN), notifications)
	if err != nil {
		return fmt.Errorf("connect to ListenDSN: %w", err)
	}
	defer func() {
		_ = conn.Close()          // whatever was wrong with it
		for range notifications { // it ends with the connection
		}
	}()
	private := "watermill_outbox_" + strings.ToLower(rand.Text())
	_, err = answered(l.config.DatabaseTimeout, func() (bool, error) {
		if done, err := conn.Listen(private); err != nil {
			return done, err //nolint:wrapcheck // done below
		}
		return conn.Listen(l.config.Schema.WakeUpChannel()) // the last: from now on somebody must take what arrives
	})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return l.receive(ctx, private, notifications)
}

// receive hands on what arrives, and tries every now and then whether it does.
func (l *listener) receive(ctx context.Context, private string, notifications <-chan *pq.Notification) error {
	sound := time.NewTimer(0)
	defer sound.Stop()
	var deadline <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case n, open := <-notifications:
			switch {
			case !open:
				return errors.New("the connection was lost")
			case n.Channel == private:
				deadline = nil
				l.hears.Store(true)
				l.outage.over()
				sound.Reset(soundInterval)
			default:
				l.wake()
			}
		case <-sound.C:
			if err := errors.Join(l.inspect(ctx), l.notify(ctx, private)); err != nil {
				return err
			}
			deadline = time.After(l.config.DatabaseTimeout)
		case <-deadline:
			return errNotHeard
		}
	}
}

// notify goes by the connections that everything else goes by.
func (l *listener) notify(ctx context.Context, channel string) error {
	_, err := answered(2*l.config.DatabaseTimeout, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, l.config.DatabaseTimeout)
		defer cancel()
		tx, err := l.db.BeginTx(ctx, nil) // a pooler must not part a statement from its parameter
		if err != nil {
			return struct{}{}, err //nolint:wrapcheck // done below
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, `SELECT pg_catalog.pg_notify($1, '')`, channel); err != nil {
			return struct{}{}, err //nolint:wrapcheck // done below
		}
		return struct{}{}, tx.Commit()
	})
	if err != nil {
		return fmt.Errorf("notify: %w", schema.Explain(err))
	}
	return nil
}

// inspect says whether writers would notify.
func (l *listener) inspect(ctx context.Context) error {
	type found struct{ trigger, unprepared bool }
	f, err := answered(2*l.config.DatabaseTimeout, func() (f found, err error) {
		ctx, cancel := context.WithTimeout(ctx, l.config.DatabaseTimeout)
		defer cancel()
		err = inReadOnlyTx(ctx, l.db, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `SET LOCAL search_path = pg_catalog`); err != nil {
				return err //nolint:wrapcheck // done below
			}
			all, outbox := l.config.Schema.WakeUpLock()
			return tx.QueryRowContext(ctx, `SELECT
					EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = $1::text::regclass AND t.tgname = $2 AND t.tgenabled IN ('O', 'A')
						AND strpos(pg_get_triggerdef(t.oid), $3) > 0),
					current_setting('max_prepared_transactions') = '0'`,
				l.config.Schema.Outbox(), schema.WakeUpTrigger, fmt.Sprintf("(%d, %d)", all, outbox)).Scan(&f.trigger, &f.unprepared)
		})
		return f, err
	})
	switch {
	case err != nil:
		return fmt.Errorf("look for the trigger: %w", err)
	case !f.unprepared:
		return errPreparation
	case !f.trigger:
		return errTriggerOff
	}
	return nil
}

// withConnectTimeout bounds what lib/pq would wait for without an end, unless dsn does.
func withConnectTimeout(dsn string) string {
	setting := "connect_timeout=" + strconv.Itoa(connectTimeout)
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return setting + " " + dsn // the last one counts
	}
	parsed, err := url.Parse(dsn)
	if err != nil || parsed.Query().Has("connect_timeout") {
		return dsn // lib/pq says what is wrong with it
	}
	query := parsed.Query()
	query.Set("connect_timeout", strconv.Itoa(connectTimeout))
	parsed.RawQuery = query.Encode()
	return parsed.String()
}
