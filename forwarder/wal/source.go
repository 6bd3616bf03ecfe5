package wal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-outbox/outbox/forwarder"
)

// Source reads the outbox from the write-ahead log. It is safe for concurrent use; a slot has one
// reader at a time.
type Source struct {
	config Config
	logger watermill.LoggerAdapter
	// stuckAt is the confirmed position of a slot from where the log cannot be read; 0: there is none.
	stuckAt atomic.Uint64
	guard   guard
}

var _ forwarder.Source = (*Source)(nil)

// New returns a Source. It does not connect yet. A nil logger logs nothing. Errors wrap
// ErrInvalidConfig or schema.ErrInvalidName.
func New(cfg Config, logger watermill.LoggerAdapter) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Source{config: cfg, logger: logger.With(watermill.LogFields{"slot": cfg.Slot})}, nil
}

const (
	// slotRetry is between two attempts to get a slot that somebody else reads.
	slotRetry = 500 * time.Millisecond
	// openTimeout bounds a statement before the stream, but for the one that makes the slot.
	openTimeout = 10 * time.Second
	// senderTimeout is how long the server waits for a report.
	senderTimeout = "10s"
)

// Check connects, and says what is missing. It makes the publication if that is missing, and no slot.
func (s *Source) Check(ctx context.Context, db *sql.DB) error {
	conn, _, err := s.connectToFit(ctx)
	if err != nil {
		return err
	}
	return errors.Join(unfit(s.checkPlace(ctx, conn, db)), hangUp(ctx, conn))
}

// Prepare makes the slot, where it is missing or of no use any more, and the publication, or waits until
// another replica has made it. A slot waits for all transactions of the server that write at this moment. Errors are those of Check, wrap
// ErrForeignSlot, ErrNoFreeSlot or ErrSuspended, or come from the database.
func (s *Source) Prepare(ctx context.Context) error {
	conn, server, err := s.connectToFit(ctx)
	if err != nil {
		return err
	}
	err = s.prepareSlot(ctx, conn, server)
	if hasSQLState(err, objectInUse) { // by another replica
		err = nil
	}
	return errors.Join(unfit(err), hangUp(ctx, conn))
}

func (s *Source) connectToFit(ctx context.Context) (conn *pgconn.PgConn, found server, err error) {
	if conn, err = s.connect(ctx); err != nil {
		return nil, server{}, err
	}
	if found, err = s.checkServer(ctx, conn); err == nil {
		err = s.ensurePublication(ctx, conn)
	}
	if err != nil {
		return nil, server{}, errors.Join(unfit(err), hangUp(ctx, conn))
	}
	return conn, found, nil
}

// unfit adds forwarder.ErrUnfitSource to what waiting does not mend.
func unfit(err error) error {
	for _, reason := range []error{
		ErrWALLevel, ErrNoReplicationRight, ErrForeignSlot, ErrNoPublication, ErrUnboundedWAL, ErrOtherDatabase, ErrNoSlotsRight,
		ErrNoSignalRight,
	} {
		if errors.Is(err, reason) {
			return fmt.Errorf("%w: %w", forwarder.ErrUnfitSource, err)
		}
	}
	return err
}

// Open starts the stream. It waits while another replica reads the slot, until ctx ends. Errors are
// those of Check, wrap ErrNoSlot or ErrSuspended, or come from the database.
func (s *Source) Open(ctx context.Context) (forwarder.Stream, error) {
	for said := false; ; {
		stream, err := s.open(ctx)
		if !hasSQLState(err, objectInUse) {
			return stream, err
		}
		if !said {
			s.logger.Info("Another replica reads the slot, this one stands by", nil)
			said = true
		}
		select {
		case <-time.After(slotRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// open returns an untyped nil with an error.
func (s *Source) open(ctx context.Context) (forwarder.Stream, error) {
	conn, server, err := s.connectToFit(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx, conn, server); err != nil {
		return nil, errors.Join(err, hangUp(ctx, conn))
	}
	stream, err := s.takeOver(ctx, conn, server) // nobody else has the slot now
	if err != nil {
		return nil, errors.Join(err, hangUp(ctx, conn))
	}
	return stream, nil
}

// takeOver reads the slot, which nobody else does now.
func (s *Source) takeOver(ctx context.Context, conn *pgconn.PgConn, on server) (forwarder.Stream, error) {
	plain, err := s.connectPlainly(ctx)
	if err != nil {
		return nil, err
	}
	from, err := s.begin(ctx, plain)
	if err != nil {
		return nil, errors.Join(err, hangUp(ctx, plain))
	}
	return newStream(ctx, conn, s.config, on.reportEvery(), newKeeper(plain, from, s.settle), s.ended), nil
}

// ended is told why a stream has ended, and where the slot stands. A server may never get past that: it reads the
// log with the publication as it was then, and where that was not there, or with what it knows of tables, which
// lacks some that were made while the slot was.
func (s *Source) ended(err error, at pglogrepl.LSN) {
	if hasSQLState(err, undefinedObject) || hasSQLState(err, internalError) {
		s.stuckAt.Store(uint64(at))
	}
}

// isStuck says that the slot is that one, still. Another replica may have made it anew.
func (s *Source) isStuck(found slot) bool {
	at := s.stuckAt.Load()
	position, err := pglogrepl.ParseLSN(found.confirmed)
	if at != 0 && (err != nil || uint64(position) != at) {
		s.stuckAt.CompareAndSwap(at, 0)
		return false
	}
	return at != 0
}

// connect returns a connection for replication.
func (s *Source) connect(ctx context.Context) (*pgconn.PgConn, error) {
	config, err := s.address()
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["bytea_output"] = "hex"
	config.RuntimeParams["search_path"] = "pg_catalog"
	config.RuntimeParams["statement_timeout"] = "0" // the stream is one statement
	// After so long the slot of a host that is lost is free, unless the DSN says something else.
	if config.RuntimeParams["wal_sender_timeout"] == "" && !strings.Contains(config.RuntimeParams["options"], "wal_sender_timeout") {
		config.RuntimeParams["wal_sender_timeout"] = senderTimeout
	}
	conn, err := dial(ctx, config)
	if hasSQLState(err, insufficientPrivilege) {
		return nil, unfit(fmt.Errorf("%w: ALTER ROLE %s REPLICATION: %w", ErrNoReplicationRight, quote(config.User), err))
	}
	return conn, err
}

// connectPlainly returns a connection for statements.
func (s *Source) connectPlainly(ctx context.Context) (*pgconn.PgConn, error) {
	config, err := s.address()
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["search_path"] = "pg_catalog"
	config.RuntimeParams["default_transaction_isolation"] = "read committed"
	config.RuntimeParams["synchronous_commit"] = "local" // what is written down has to stay
	config.RuntimeParams["statement_timeout"] = strconv.FormatInt(openTimeout.Milliseconds(), 10)
	return dial(ctx, config)
}

func (s *Source) address() (*pgconn.Config, error) {
	config, err := pgconn.ParseConfig(s.config.ReplicationDSN)
	if err != nil {
		return nil, fmt.Errorf("%w: ReplicationDSN is neither a URL nor key=value", ErrInvalidConfig)
	}
	return config, nil
}

func dial(ctx context.Context, config *pgconn.Config) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("wal: connect: %w", err)
	}
	return conn, nil
}

func hangUp(ctx context.Context, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTimeout)
	defer cancel()
	if err := conn.Close(ctx); err != nil {
		return fmt.Errorf("wal: close: %w", err)
	}
	return nil
}

// start starts the stream on conn.
func (s *Source) start(ctx context.Context, conn *pgconn.PgConn, on server) error {
	if err := s.requireMade(ctx, conn); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	arguments := []string{`proto_version '1'`, `publication_names ` + literal(quote(s.config.Publication))}
	const binarySince = 140000
	if on.version >= binarySince {
		arguments = append(arguments, `binary 'true'`)
	}
	err := pglogrepl.StartReplication(ctx, conn, quote(s.config.Slot), 0, pglogrepl.StartReplicationOptions{PluginArgs: arguments})
	switch {
	case hasSQLState(err, undefinedObject):
		return fmt.Errorf("%w: %s: %w", ErrNoSlot, s.config.Slot, err)
	case err != nil:
		return fmt.Errorf("wal: start replication: %w", err)
	}
	return nil
}

// query returns the first row's columns, nil if there is none.
func query(ctx context.Context, conn *pgconn.PgConn, statement string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return queryWithoutLimit(ctx, conn, statement)
}

func queryWithoutLimit(ctx context.Context, conn *pgconn.PgConn, statement string) (row []string, err error) {
	results, err := conn.Exec(ctx, statement).ReadAll()
	if err != nil {
		return nil, err //nolint:wrapcheck // the callers say what it was for
	}
	for _, result := range results {
		if len(result.Rows) == 0 {
			continue
		}
		for _, column := range result.Rows[0] {
			row = append(row, string(column))
		}
		return row, nil
	}
	return nil, nil
}

// quote is Postgres' quote_ident, always with quotes.
func quote(identifier string) string { return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"` }

// literal is a string constant, whatever standard_conforming_strings is. The replication commands, which have
// no such setting, take no E”: there a backslash is itself.
func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }
