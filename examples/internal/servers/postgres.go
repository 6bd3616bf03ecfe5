package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/lib/pq"
)

// The servers of "make services".
const (
	defaultPostgresDSN  = "postgres://outbox:outbox@127.0.0.1:54329/outbox?sslmode=disable" //nolint:gosec // no secret
	defaultKafkaBrokers = "127.0.0.1:29092"
	defaultAMQPURI      = "amqp://outbox:outbox@127.0.0.1:25673/" //nolint:gosec // no secret
)

// answerTimeout is how long a real server may take to show that it is there.
const answerTimeout = 5 * time.Second

// unsetPostgresVariables: they speak of a server of the user's, and drivers read them
// beside every DSN, also in the processes that this one starts.
func unsetPostgresVariables() error {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "PG") {
			continue
		}
		if err := os.Unsetenv(name); err != nil {
			return fmt.Errorf("servers: %w", err)
		}
	}
	return nil
}

func (s *Servers) requirePostgres(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err := withDB(s.PostgresDSN, func(db *sql.DB) error { return db.PingContext(ctx) })
	if err != nil {
		return fmt.Errorf("no Postgres at %s: run \"make services\", or set POSTGRES_DSN: %w", withoutPassword(s.PostgresDSN), err)
	}
	return nil
}

func dropSchema(ctx context.Context, dsn, schema string) error {
	err := withDB(dsn, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+pq.QuoteIdentifier(schema)+` CASCADE`)
		return err
	})
	if err != nil {
		return fmt.Errorf("drop schema %s: %w", schema, err)
	}
	return nil
}

func withDB(dsn string, use func(*sql.DB) error) (err error) {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return use(db)
}

// withSearchPath makes a DSN lead to one schema, whichever of its two forms it has.
func withSearchPath(dsn, schema string) (string, error) {
	if !strings.Contains(dsn, "://") {
		return dsn + " search_path='" + schema + "'", nil
	}
	parsed, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("POSTGRES_DSN is not a valid URL") // url's error would show the password
	}
	query := parsed.Query()
	query.Set("search_path", schema)
	parsed.RawQuery = query.Encode()
	return parsed.String(), nil
}

// withoutPassword is for people to read.
func withoutPassword(dsn string) string {
	parsed, err := url.Parse(dsn)
	if err != nil || parsed.Host == "" {
		return "POSTGRES_DSN"
	}
	return parsed.Host
}
