package rig

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"

	"github.com/lib/pq"
)

// OpenCounted is Open with a pool that counts the statements that it sends.
func OpenCounted(dsn string, statements *atomic.Int64) (*sql.DB, error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(counting{Connector: connector, statements: statements})
	db.SetMaxIdleConns(idleConnections)
	return db, nil
}

type counting struct {
	driver.Connector

	statements *atomic.Int64
}

func (c counting) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	complete, ok := conn.(completeConn)
	if !ok {
		return nil, fmt.Errorf("lib/pq's %T lacks what is counted", conn)
	}
	return countedConn{completeConn: complete, statements: c.statements}, nil
}

// completeConn is all that database/sql looks for in lib/pq's connections.
type completeConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type countedConn struct {
	completeConn

	statements *atomic.Int64
}

// BeginTx counts the transaction's end as well.
func (c countedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.statements.Add(2)
	return c.completeConn.BeginTx(ctx, opts)
}

func (c countedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.statements.Add(1)
	return c.completeConn.ExecContext(ctx, query, args)
}

func (c countedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.statements.Add(1)
	return c.completeConn.QueryContext(ctx, query, args)
}
