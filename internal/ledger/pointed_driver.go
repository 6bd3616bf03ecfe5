package ledger

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// openWithPoints opens a pool of lib/pq's connections that reach the points which only
// the database's driver sees.
func openWithPoints(dsn string, s schema.Postgres, points *points) (*sql.DB, error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return sql.OpenDB(pointedConnector{Connector: connector, points: points, outbox: s.Outbox()}), nil
}

type pointedConnector struct {
	driver.Connector

	points *points
	outbox string
}

// fullConn is what database/sql makes use of in lib/pq's connections.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

func (c pointedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	conn, ok := opened.(fullConn)
	if !ok {
		return nil, fmt.Errorf("ledger: a connection of the type %T lacks something that database/sql makes use of", opened)
	}
	return pointedConn{fullConn: conn, points: c.points, outbox: c.outbox}, nil
}

type pointedConn struct {
	fullConn

	points *points
	outbox string
}

// ExecContext knows what settles, by deleting or by marking.
func (c pointedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if strings.Contains(query, c.outbox) && (strings.Contains(query, "DELETE FROM") || strings.Contains(query, "SET published_at")) {
		c.points.reach(BeforeSettle)
	}
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c pointedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.fullConn.BeginTx(ctx, opts)
	if err != nil || opts.ReadOnly {
		return tx, err
	}
	return pointedTx{Tx: tx, points: c.points}, nil
}

type pointedTx struct {
	driver.Tx

	points *points
}

func (t pointedTx) Commit() error { return t.points.commit(t.Tx.Commit) }
