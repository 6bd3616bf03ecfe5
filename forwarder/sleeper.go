package forwarder

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
)

// sleeper lets a forwarder sleep until a writer wakes it. Only who keeps a lookout uses it.
//
// Writers share a lock, of the table, until they commit. A replica sleeps when it holds
// that lock alone, or another one that sleeps does: then no writer is at work that has not
// seen it, and whoever comes later cannot share the lock and notifies all that listen.
// After it has lain down it looks once more, for what was committed just before.
//
// Who wakes releases the lock, and looks by itself for a while, so that busy writers
// notify nobody. If the replica that holds it dies, nobody is told: the others look at
// every nap whether somebody still does.
type sleeper struct {
	config    Config
	ears      *listener
	connector driver.Connector
	// lockDB has the one connection that the lock is held on; nil until it is opened.
	lockDB *sql.DB

	asleep bool
	// duty is the connection of who holds the lock; nil: another replica does.
	duty *sql.Conn
}

// nap is how long a forwarder sleeps before it looks, though nobody has woken it.
const nap = time.Second

// newSleeper returns nil where nobody would wake it.
func newSleeper(cfg Config, ears *listener) (*sleeper, error) {
	if cfg.ListenDSN == "" {
		return nil, nil //nolint:nilnil // as said
	}
	connector, err := pq.NewConnector(withConnectTimeout(cfg.ListenDSN))
	if err != nil {
		return nil, fmt.Errorf("%w: ListenDSN: %w", ErrInvalidConfig, err)
	}
	return &sleeper{config: cfg, ears: ears, connector: connector}, nil
}

// open is to be called before anything else, and close after it.
func (s *sleeper) open() {
	s.lockDB = sql.OpenDB(s.connector)
	s.lockDB.SetMaxOpenConns(1)
}

// lieDown says whether it sleeps from now on. While writers share the lock it does not.
func (s *sleeper) lieDown(ctx context.Context) (bool, error) {
	if !s.ears.hears.Load() {
		return false, nil
	}
	type found struct {
		conn         *sql.Conn
		won, sharing bool
	}
	f, err := answered(2*s.config.DatabaseTimeout, func() (f found, err error) {
		ctx, cancel := context.WithTimeout(ctx, s.config.DatabaseTimeout)
		defer cancel()
		if f.conn, err = s.lockDB.Conn(ctx); err != nil {
			return f, fmt.Errorf("connect to ListenDSN: %w", err)
		}
		all, outbox := s.config.Schema.WakeUpLock()
		err = f.conn.QueryRowContext(ctx, `SELECT l.won,
				CASE WHEN l.won THEN false ELSE pg_catalog.pg_try_advisory_xact_lock_shared($1, $2) END
			FROM (SELECT pg_catalog.pg_try_advisory_lock($1, $2) AS won OFFSET 0) AS l`, all, outbox).Scan(&f.won, &f.sharing)
		if err = errors.Join(err, ctx.Err()); err != nil { // nobody may be there any more to give the lock back
			return f, errors.Join(fmt.Errorf("lie down: %w", err), drop(f.conn))
		}
		return f, nil
	})
	switch {
	case errors.Is(err, errUnanswered):
		s.renew()
		return false, err
	case err != nil:
		return false, err
	case f.won:
		s.asleep, s.duty = true, f.conn
		return true, nil
	}
	s.asleep = !f.sharing
	return s.asleep, f.conn.Close()
}

// stillSleeps says whether writers have notified all the time. If not, it sleeps anew, or is
// awake.
func (s *sleeper) stillSleeps(ctx context.Context) (bool, error) {
	if !s.ears.hears.Load() {
		return false, s.getUp(ctx, true)
	}
	if s.duty == nil { // the one on duty may be gone
		s.asleep = false
		_, err := s.lieDown(ctx)
		return s.asleep && s.duty == nil && err == nil, err
	}
	_, err := answered(2*s.config.DatabaseTimeout, func() (sql.Result, error) {
		ctx, cancel := context.WithTimeout(ctx, s.config.DatabaseTimeout)
		defer cancel()
		return s.duty.ExecContext(ctx, `SELECT`)
	})
	if err != nil {
		return false, errors.Join(fmt.Errorf("ask for the lock: %w", err), s.getUp(ctx, true))
	}
	return true, nil
}

// getUp has writers notify nobody any more. Other replicas that sleep are told, unless they
// were just notified as well.
func (s *sleeper) getUp(ctx context.Context, tell bool) error {
	duty := s.duty
	s.asleep, s.duty = false, nil
	if duty == nil {
		return nil
	}
	_, err := answered(2*s.config.DatabaseTimeout, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.DatabaseTimeout)
		defer cancel()
		all, outbox := s.config.Schema.WakeUpLock()
		_, err := duty.ExecContext(ctx, `SELECT pg_catalog.pg_advisory_unlock($1, $2),
			CASE WHEN $3::pg_catalog.bool THEN pg_catalog.pg_notify($4, '') END`, all, outbox, tell, s.config.Schema.WakeUpChannel())
		if err != nil {
			return struct{}{}, errors.Join(fmt.Errorf("get up: %w", err), drop(duty))
		}
		return struct{}{}, duty.Close()
	})
	if errors.Is(err, errUnanswered) {
		s.renew()
	}
	return err
}

// renew leaves a connection behind that does not answer.
func (s *sleeper) renew() {
	_ = s.lockDB.Close() // the connection ends with the call
	s.open()
}

// close wakes the other replicas, so that one of them takes the lock.
func (s *sleeper) close(ctx context.Context) error {
	return errors.Join(s.getUp(ctx, true), s.lockDB.Close())
}

// drop closes a connection for good, and with it all that is held on it.
func drop(conn *sql.Conn) error {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // that is what has it closed
	if err := conn.Close(); !errors.Is(err, sql.ErrConnDone) {
		return err //nolint:wrapcheck // the caller wraps it
	}
	return nil
}
