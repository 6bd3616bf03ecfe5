package wal

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// server is what has to be known of it.
type server struct {
	version int
	// senderTimeout is how long it waits for a report; 0: for ever.
	senderTimeout time.Duration
}

// reportEvery is between two reports: several are missed before the server gives up.
func (s server) reportEvery() time.Duration {
	const several = 4
	if s.senderTimeout > 0 {
		return min(statusInterval, s.senderTimeout/several)
	}
	return statusInterval
}

// checkServer says what the server is, or why it will not do.
func (s *Source) checkServer(ctx context.Context, conn *pgconn.PgConn) (found server, err error) {
	row, err := query(ctx, conn, `SELECT current_setting('server_version_num'),
		(SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'), pg_is_in_recovery(), current_setting('wal_level'),
		(SELECT setting FROM pg_settings WHERE name = 'max_slot_wal_keep_size')`)
	if err != nil {
		return server{}, fmt.Errorf("wal: look at the server: %w", err)
	}
	if found.version, err = strconv.Atoi(row[0]); err != nil {
		return server{}, fmt.Errorf("wal: server_version_num: %w", err)
	}
	milliseconds, err := strconv.Atoi(row[1])
	if err != nil {
		return server{}, fmt.Errorf("wal: wal_sender_timeout: %w", err)
	}
	found.senderTimeout = time.Duration(milliseconds) * time.Millisecond
	switch {
	case row[2] == "t":
		return server{}, ErrStandby
	case row[3] != "logical":
		return server{}, fmt.Errorf("%w (it is %s)", ErrWALLevel, row[3])
	case row[4] == "-1" && !s.config.AcceptUnboundedWAL:
		return server{}, ErrUnboundedWAL
	}
	return found, nil
}
