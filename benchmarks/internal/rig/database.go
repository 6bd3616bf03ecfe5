package rig

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// Database is a database of its own, so that what the server says of it is about nothing
// else.
type Database struct {
	Rig

	name  string
	oid   string
	admin *sql.DB
	// inspectable says that the write-ahead log can be read.
	inspectable bool
}

// NewDatabase makes one. Close drops it.
func (r Rig) NewDatabase(ctx context.Context) (*Database, error) {
	admin, err := Open(r.DSN)
	if err != nil {
		return nil, err
	}
	d := &Database{Rig: r, name: NewName(), admin: admin}
	parsed, err := url.Parse(r.DSN)
	if err != nil {
		return nil, errors.Join(errors.New("POSTGRES_DSN must be a URL"), admin.Close())
	}
	parsed.Path = "/" + d.name
	d.DSN = parsed.String()
	_, err = admin.ExecContext(ctx, `CREATE DATABASE `+d.name+` TEMPLATE template0`)
	if err == nil {
		err = admin.QueryRowContext(ctx, `SELECT oid::text FROM pg_database WHERE datname = $1`, d.name).Scan(&d.oid)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a database: %w", err), d.Close(ctx))
	}
	return d, nil
}

// Close drops the database.
func (d *Database) Close(ctx context.Context) error {
	ctx, cancel := atTheEnd(ctx)
	defer cancel()
	_, err := d.admin.ExecContext(ctx, `DROP DATABASE IF EXISTS `+d.name+` WITH (FORCE)`)
	return errors.Join(err, d.admin.Close())
}

// Usage is what has been used up to a moment.
type Usage struct {
	// CPU of the sessions, and whether it can be known: only where the server's processes
	// are this machine's.
	CPU      time.Duration
	KnownCPU bool
	// Position is the end of the write-ahead log.
	Position string
}

// Usage asks on a connection to another database.
func (d *Database) Usage(ctx context.Context) (u Usage, err error) {
	if err := d.admin.QueryRowContext(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&u.Position); err != nil {
		return u, fmt.Errorf("the end of the write-ahead log: %w", err)
	}
	rows, err := d.admin.QueryContext(ctx, `SELECT pid FROM pg_stat_activity
		WHERE datname = $1 AND backend_type = 'client backend'`, d.name)
	if err != nil {
		return u, err
	}
	defer rows.Close()
	u.KnownCPU = true
	for rows.Next() {
		var pid int32
		if err := rows.Scan(&pid); err != nil {
			return u, err
		}
		used, err := cpuOfServer(ctx, pid)
		u.CPU += used
		u.KnownCPU = u.KnownCPU && err == nil
	}
	return u, rows.Err()
}

// cpuOfServer is for a process of this machine, which must be Postgres' and not another one
// of that number.
func cpuOfServer(ctx context.Context, pid int32) (time.Duration, error) {
	backend, err := process.NewProcessWithContext(ctx, pid)
	if err != nil {
		return 0, err
	}
	if name, err := backend.NameWithContext(ctx); err != nil || !strings.HasPrefix(name, "postgres") {
		return 0, errors.Join(err, errors.New("another process"))
	}
	return CPUOf(ctx, backend)
}

// CPUOf is how long a process has computed so far.
func CPUOf(ctx context.Context, p *process.Process) (time.Duration, error) {
	times, err := p.TimesWithContext(ctx)
	if err != nil {
		return 0, err
	}
	return time.Duration((times.User + times.System) * float64(time.Second)), nil
}

// Settle has nothing left to be written for what is there already: neither by VACUUM nor by
// the first one that reads it.
func (d *Database) Settle(ctx context.Context) error {
	db, err := Open(d.DSN)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `CREATE EXTENSION pg_walinspect`)
	d.inspectable = err == nil // it is not there, or this role may not
	if _, err = db.ExecContext(ctx, `VACUUM (FREEZE, ANALYZE)`); err == nil {
		_, err = db.ExecContext(ctx, `VACUUM (FREEZE) pg_statistic`) // ANALYZE has left old rows in it
	}
	return errors.Join(err, db.Close())
}

// Written is how many bytes of the write-ahead log between two positions are about pages of
// the database. It reads all that lies between them, whoever wrote it. It needs Settle, Postgres
// 15 and the extension pg_walinspect; known is false without.
func (d *Database) Written(ctx context.Context, from, to string) (written float64, known bool, err error) {
	if !d.inspectable || from == to {
		return 0, d.inspectable, nil
	}
	if err := d.awaitFlush(ctx, to); err != nil {
		return 0, false, err
	}
	db, err := Open(d.DSN)
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.QueryRowContext(ctx, `SELECT coalesce(sum(record_length), 0)
		FROM pg_get_wal_records_info($1::pg_lsn, $2::pg_lsn) WHERE block_ref LIKE '%/' || $3 || '/%'`, from, to, d.oid).Scan(&written)
	return written, err == nil, err
}

// awaitFlush returns once the write-ahead log can be read up to a position.
func (d *Database) awaitFlush(ctx context.Context, position string) error {
	return await(ctx, func() (flushed bool, err error) {
		err = d.admin.QueryRowContext(ctx, `SELECT pg_current_wal_flush_lsn() >= $1::pg_lsn`, position).Scan(&flushed)
		return flushed, err
	})
}
