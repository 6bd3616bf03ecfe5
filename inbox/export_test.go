package inbox

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// DeleteBatchStatement lets a test look at its plan.
var DeleteBatchStatement = deleteBatchStatement

// RunRetentionEvery is RunRetention for a test that does not wait for a minute.
func (s *Store) RunRetentionEvery(ctx context.Context, interval time.Duration, db *sql.DB, age time.Duration, logger watermill.LoggerAdapter) {
	retention{store: s, db: db, age: age, interval: interval, logger: logger}.run(ctx)
}
