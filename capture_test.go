package outbox_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// Writers that know nothing of the outbox change rows that they contend for. What each row went
// through arrives, in the order of commits, and nothing of what was rolled back.
func TestCapturedChangesGoTheWholeWay(t *testing.T) {
	t.Parallel()
	const accounts, writers, rounds = 3, 4, 15
	db := testdb.New(t)
	w := newWholeWay(t, db.DB, db.Schema)
	table := `"` + db.Schema.Schema + `".accounts`
	w.exec(t, `CREATE TABLE `+table+` (id int PRIMARY KEY, version int NOT NULL)`)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	trigger, err := db.Schema.CaptureTrigger(t.Context(), tx, schema.Capture{
		Table: "accounts", TableSchema: db.Schema.Schema, Destination: "accounts", Payload: `concat(tg_op, ' ', changed.version)`,
	})
	require.NoError(t, err)
	require.NoError(t, trigger.Apply(t.Context(), tx))
	require.NoError(t, tx.Commit())

	w.exec(t, `INSERT INTO `+table+` SELECT n, 0 FROM generate_series(1, 3) AS n`)
	var wait sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		wait.Go(func() {
			for round := range rounds {
				end := `COMMIT`
				if round%3 == 2 {
					end = `ROLLBACK`
				}
				for id := range accounts {
					_, err := db.ExecContext(t.Context(), fmt.Sprintf(
						`BEGIN; UPDATE %s SET version = version + 1 WHERE id = %d; SELECT pg_catalog.pg_sleep(0.001); %s`, table, id+1, end))
					if err != nil {
						errs[i] = err
						return
					}
				}
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	w.exec(t, `DELETE FROM `+table)
	w.forward(t)

	got := map[string][]string{}
	for _, e := range w.relay.arrived() {
		require.Equal(t, "accounts", e.Destination)
		got[e.Key] = append(got[e.Key], e.Payload)
	}
	const committed = writers * rounds * 2 / 3
	want := []string{"INSERT 0"}
	for version := range committed {
		want = append(want, fmt.Sprint("UPDATE ", version+1))
	}
	want = append(want, fmt.Sprint("DELETE ", committed))
	require.Equal(t, map[string][]string{"1": want, "2": want, "3": want}, got)
}
