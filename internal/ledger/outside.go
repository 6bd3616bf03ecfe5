package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"strings"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox"
)

// partOutside: the numbers below are those of others.
const partOutside = partControl + 1

// WriteOutside has psql commit so many events of the aggregate with that number, each in a
// transaction of its own. It has to be installed.
func (c *Control) WriteOutside(ctx context.Context, aggregate, events int) error {
	if c.outside == nil {
		c.outside = c.writers.newWriter("psql", partOutside)
	}
	return c.outside.writeOutside(ctx, aggregate, events)
}

// writeOutside notes in the book what was written: psql says so, one payload a line.
func (w *writer) writeOutside(ctx context.Context, aggregate, count int) error {
	key := keyName(aggregate)
	events := make([]event, count)
	var script strings.Builder
	for i := range events {
		w.serial++
		events[i] = event{
			id: fmt.Sprintf("%s-%d", w.name, w.serial), destination: w.destinationOf(aggregate), partitionKey: key,
			key: key, metadata: map[string]string{outbox.PartitionKeyMetadata: key},
		}
		script.WriteString(w.statement(events[i]))
	}
	payloads, err := psql(ctx, w.config.DSN, script.String())
	if err != nil {
		return err
	}
	if len(payloads) != count {
		return fmt.Errorf("ledger: psql wrote %d events of %d", len(payloads), count)
	}
	for i, payload := range payloads {
		var told content
		if err := json.Unmarshal([]byte(payload), &told); err != nil {
			return fmt.Errorf("ledger: psql wrote the payload %q: %w", payload, err)
		}
		events[i].n, events[i].payload = told.N, []byte(payload)
		w.book.write(events[i])
	}
	w.book.commit(commit{}, events)
	return nil
}

// statement is a transaction by itself.
func (w *writer) statement(e event) string {
	id, key, destination := pq.QuoteLiteral(e.id), pq.QuoteLiteral(e.key), pq.QuoteLiteral(e.destination)
	return `WITH locked AS (UPDATE ` + w.tables.aggregates + ` SET n = n + 1 WHERE key = ` + key + ` RETURNING n),
		business AS (INSERT INTO ` + w.tables.events + ` (event_id, key, n) SELECT ` + id + `, ` + key + `, n FROM locked)
		INSERT INTO ` + w.tables.outbox + ` (id, destination, partition_key, payload, metadata)
			SELECT ` + id + `, ` + destination + `, ` + key + `, json_build_object('Key', ` + key + `, 'N', n)::text,
				jsonb_build_object('` + outbox.PartitionKeyMetadata + `', ` + key + `) FROM locked
		RETURNING payload;
	`
}

// psql returns the lines that a script puts out.
func psql(ctx context.Context, dsn, script string) ([]string, error) {
	parsed, err := url.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	parameters := parsed.Query()
	parameters.Del("search_path") // libpq takes no settings there
	parsed.RawQuery = parameters.Encode()
	command := exec.CommandContext(ctx, "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1",
		parsed.String())
	command.Stdin = strings.NewReader(script)
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("ledger: psql: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(output)), "\n"), nil
}
