package forwarder

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// contentsQuery reads payloads and metadata of the rows $1.
func contentsQuery(s schema.Postgres) string {
	return `SELECT seq, payload, payload_bytes, metadata::text FROM ` + s.Outbox() + ` WHERE seq = ANY ($1::bigint[])`
}

// fetchContents completes the rows whose payloads and metadata were too large to come with them:
// how large they are is known by now, and that they fit.
func (c claimer) fetchContents(ctx context.Context, tx *sql.Tx, rows []row) error {
	var seqs pq.Int64Array
	places := map[int64]int{}
	for i, r := range rows {
		if r.outgoing.Message == nil {
			seqs = append(seqs, r.seq)
			places[r.seq] = i
		}
	}
	if len(seqs) == 0 {
		return nil
	}
	err := readAll(ctx, tx, c.flow.contents, func(lines *sql.Rows) error {
		var (
			seq     int64
			content content
		)
		if err := lines.Scan(append([]any{&seq}, content.targets()...)...); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}
		rows[places[seq]].fill(content)
		delete(places, seq)
		return nil
	}, seqs)
	if err != nil {
		return fmt.Errorf("read large payloads: %w", err)
	}
	if len(places) > 0 {
		return fmt.Errorf("read large payloads: %w", errRowsGone)
	}
	return nil
}
