package outbox_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
	"github.com/watermill-outbox/outbox/schema"
)

// The grants of the README: with them a role does its work, and without any one of them
// Postgres refuses it and names the table.
func TestDocumentedGrants(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]struct {
		grants map[string]string // with what an error names where one is missing
		work   func(ctx context.Context, pool *sql.DB, s schema.Postgres) error
	}{
		"producer": {
			grants: map[string]string{"USAGE ON SCHEMA {schema}": "{schema}", "INSERT ON {schema}.outbox": "outbox"},
			work:   produce,
		},
		"consumer": {
			grants: map[string]string{
				"USAGE ON SCHEMA {schema}": "{schema}",
				"INSERT ON {schema}.inbox": "inbox", "SELECT ON {schema}.inbox": "inbox",
			},
			work: func(ctx context.Context, pool *sql.DB, s schema.Postgres) error { return consume(ctx, pool, s, nil) },
		},
		"consumer that answers": {
			grants: map[string]string{
				"USAGE ON SCHEMA {schema}": "{schema}", "INSERT ON {schema}.outbox": "outbox",
				"INSERT ON {schema}.inbox": "inbox", "SELECT ON {schema}.inbox": "inbox",
			},
			work: func(ctx context.Context, pool *sql.DB, s schema.Postgres) error {
				return consume(ctx, pool, s, []*message.Message{newMessage("1", "answer"), newMessage("2", "answer")})
			},
		},
		"retention": {
			grants: map[string]string{
				"USAGE ON SCHEMA {schema}": "{schema}", "SELECT ON {schema}.inbox": "inbox",
				"UPDATE ON {schema}.inbox": "inbox", "DELETE ON {schema}.inbox": "inbox",
			},
			work: func(ctx context.Context, pool *sql.DB, s schema.Postgres) error {
				store, err := inbox.NewStore(inbox.Config{Schema: s})
				if err != nil {
					return err
				}
				_, err = store.DeleteOlderThan(ctx, pool, time.Hour)
				return err
			},
		},
	} {
		for _, driver := range drivers {
			t.Run(name+" "+driver, func(t *testing.T) {
				t.Parallel()
				db := testdb.New(t)
				in := func(text string) string { return strings.ReplaceAll(text, "{schema}", db.Schema.Schema) }
				login := func(without string) *sql.DB {
					var statements []string
					for grant := range role.grants {
						if grant != without {
							statements = append(statements, in(`GRANT `+grant)+` TO {role}`)
						}
					}
					_, dsn := db.NewRole(t, statements...)
					return testdb.Open(t, driver, dsn)
				}
				require.NoError(t, role.work(t.Context(), login(""), db.Schema))
				for missing, named := range role.grants {
					err := role.work(t.Context(), login(missing), db.Schema)
					var state interface{ SQLState() string }
					require.ErrorAs(t, err, &state, "without %s", missing)
					require.Equal(t, "42501", state.SQLState(), "without %s", missing)
					require.ErrorContains(t, err, in(named), "without %s", missing)
				}
			})
		}
	}
}

func produce(ctx context.Context, pool *sql.DB, s schema.Postgres) error {
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: s}, nil)
	if err != nil {
		return err
	}
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := publisher.PublishTx(ctx, tx, "orders", newMessage("1", "text")); err != nil {
		return err
	}
	if err := publisher.PublishTx(ctx, tx, "orders", newMessage("2", "text"), newMessage("3", "\xff")); err != nil {
		return err
	}
	return tx.Commit()
}

// consume handles an event twice, of which the second is a duplicate.
func consume(ctx context.Context, pool *sql.DB, s schema.Postgres, answers []*message.Message) error {
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: s}, nil)
	if err != nil {
		return err
	}
	store, err := inbox.NewStore(inbox.Config{Schema: s})
	if err != nil {
		return err
	}
	once, err := middleware.NewInbox(middleware.InboxConfig{DB: pool, Store: store, Consumer: "payments"}, nil)
	if err != nil {
		return err
	}
	handler := once.NoPublish(func(msg *message.Message) error { //nolint:contextcheck // the message carries it
		tx, _ := outbox.TxFromContext[*sql.Tx](msg.Context())
		return publisher.PublishTx(msg.Context(), tx, "payments", answers...)
	})
	id := watermill.NewUUID()
	for range 2 {
		msg := newMessage(id, "created")
		msg.SetContext(ctx)
		if err := handler(msg); err != nil {
			return err
		}
	}
	return nil
}
