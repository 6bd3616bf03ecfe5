package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// maxLanes is the largest number of lanes that the settings table allows.
const maxLanes = 4096

// onlyLane is the lane that everything is in where there is no order.
const onlyLane = 0

// anyLane has a claim begin with a random one.
const anyLane = -1

// lanesQuery locks free lanes until the end of the transaction, beginning with one, as many as are
// a worker's share. It says how many there are in all, and which database they are of. Those among
// hot, which it leaves out or takes alone, it does not even try.
func (c claimer) lanesQuery(start, hot string, leaves bool) string {
	test := ` = ANY `
	if leaves {
		test = ` <> ALL `
	}
	return fmt.Sprintf(`SELECT array_agg(mine.lane)::text, (SELECT lanes FROM %[1]s), %[2]s
		FROM (
			SELECT c.lane FROM (
				SELECT s.lanes, (g.n + %[4]s) & (s.lanes - 1) AS lane
				FROM %[1]s AS s, generate_series(0, s.lanes - 1) AS g (n)
				OFFSET 0
			) AS c
			WHERE CASE WHEN c.lane%[6]s(%[7]s) THEN pg_try_advisory_xact_lock(%[3]d::bigint + c.lane) END
			LIMIT (SELECT (lanes + %[5]d - 1) / %[5]d FROM %[1]s)
		) AS mine`, c.settings, c.history, c.lockBase, start, c.workers, test, hot)
}

// historyExpression tells a server, and a table in it, from another of the same name. (begin has
// locked the table, so that it stays the same until the end of the transaction.)
func historyExpression(s schema.Postgres) string {
	return `extract(epoch FROM pg_postmaster_start_time())::text || '/' ||
		pg_relation_filenode(` + pq.QuoteLiteral(s.Outbox()) + `::regclass)`
}

// territory is what a claim may look at.
type territory struct {
	// lanes are those that it holds, of total.
	lanes pq.Int64Array
	total int
	// history is that of the database; see marks.
	history string
}

// occupy takes lanes, those that are asked for. Without order there is one for all, and it is
// nobody's.
func (c claimer) occupy(ctx context.Context, tx *sql.Tx, ask request) (t territory, err error) {
	if c.config.Ordering == None {
		t.lanes, t.total = pq.Int64Array{onlyLane}, 1
		if err := tx.QueryRowContext(ctx, `SELECT `+c.history).Scan(&t.history); err != nil {
			return territory{}, fmt.Errorf("recognize the database: %w", err)
		}
		return t, nil
	}
	start, hot := ask.lane, append(pq.Int64Array{}, ask.hot...) // never NULL
	if start == anyLane {
		start = rand.IntN(maxLanes)
	}
	query, args := c.lanesQuery(`$1::integer`, `$2::integer[]`, !ask.onlyHot), []any{start, hot}
	if c.spares { // parameters cost a round trip; drivers that keep statements prepared would keep one for each start
		query, args = c.lanesQuery(fmt.Sprint(start), integers(hot), !ask.onlyHot), nil
	}
	var total sql.Null[int]
	if err := tx.QueryRowContext(ctx, query, args...).Scan(&t.lanes, &total, &t.history); err != nil {
		return territory{}, fmt.Errorf("claim lanes: %w", err)
	}
	if !total.Valid { // without a word, rows would wait for ever
		return territory{}, fmt.Errorf("claim lanes: %w: %s is empty", schema.ErrNotMigrated, c.config.Schema.Settings())
	}
	t.total = total.V
	return t, nil
}

// integers is an array of numbers as SQL.
func integers(numbers []int64) string {
	text := make([]string, len(numbers))
	for i, n := range numbers {
		text[i] = strconv.FormatInt(n, 10)
	}
	return `ARRAY[` + strings.Join(text, `, `) + `]::integer[]`
}
