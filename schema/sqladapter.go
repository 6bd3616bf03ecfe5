package schema

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
)

// PartitionKeyMetadata is the metadata key under which a message carries its
// partition key.
const PartitionKeyMetadata = "_watermill_outbox_partition_key"

var (
	// ErrConsumerGroup says that a watermill-sql subscriber was given a consumer group.
	// An acknowledged row is deleted, so there is nothing left that a second group could
	// read. Leave ConsumerGroup empty: all subscribers of a destination share its rows.
	// For several groups, forward to a broker.
	ErrConsumerGroup = errors.New("schema: the outbox has no consumer groups, an acknowledged row is gone for all")
	// ErrOtherAdapter says that a watermill-sql subscriber was given this adapter as only
	// one of SchemaAdapter and OffsetsAdapter, or two that name different tables. Its
	// acknowledgements would go elsewhere, and every message would come again for ever.
	ErrOtherAdapter = errors.New("schema: SchemaAdapter and OffsetsAdapter must be the same outbox")
)

var (
	_ wmsql.SchemaAdapter  = Postgres{}
	_ wmsql.OffsetsAdapter = Postgres{}
)

// SchemaInitializingQueries lets InitializeSchema and AutoInitializeSchema of
// watermill-sql report a table that is missing (SQLSTATE 42P01 or 3F000, see Missing).
// It creates nothing: the tables come from Migrate. It needs no rights on the table.
//
// watermill-sql runs it outside of a transaction. It has no parameters, since behind
// PgBouncer those could meet with another client's statement there.
func (s Postgres) SchemaInitializingQueries(string) []wmsql.Query {
	if err := s.Validate(); err != nil {
		return []wmsql.Query{refuse(err)}
	}
	return []wmsql.Query{{Query: `SELECT ` + literal(s.Outbox()) + `::pg_catalog.regclass`}}
}

// SubscribeIsolationLevel is READ COMMITTED, whatever the database's default is: a
// row that another subscriber has just deleted is passed by, not an error.
func (s Postgres) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }

// refuse returns a query that fails with err before anything is sent: watermill-sql's
// interfaces give these methods no error of their own to return.
func refuse(err error) wmsql.Query {
	return wmsql.Query{Query: `SELECT $1::text`, Args: []any{refusal{err}}}
}

func refuseGroup(group string) wmsql.Query {
	return refuse(fmt.Errorf("%w: %q", ErrConsumerGroup, group))
}

type refusal struct{ err error }

func (r refusal) Value() (driver.Value, error) { return nil, r.err }

func (r refusal) String() string { return r.err.Error() }
