package chaos_test

import (
	"fmt"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// figures is the table of all runs.
var figures = &table{}

type table struct {
	mu   sync.Mutex
	rows []string
}

func (t *table) add(fault, in string, r ledger.Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := r.Violations
	t.rows = append(t.rows, fmt.Sprintf("| %s\t| %s\t| %d\t| %d\t| %d\t| %d\t| %d\t| %d\t| %d / %d\t| %d\t| %s\t|",
		fault, in, r.Committed, r.Deliveries-r.Duplicates,
		len(v.Lost), len(v.Phantoms), len(v.OutOfOrder), len(v.DoubleEffects),
		r.Duplicates, r.MaxDuplicates, r.DeadLetters, r.Elapsed.Round(100*time.Millisecond)))
}

// failed is for a run that had no verdict, or whose books do not balance.
func (t *table) failed(fault, in string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, fmt.Sprintf("| %s\t| %s\t| FAILED\t|\t|\t|\t|\t|\t|\t|\t|\t|", fault, in))
}

func (t *table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rows) == 0 {
		return ""
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	for _, row := range append([]string{
		"| fault\t| run\t| written\t| delivered\t| lost\t| phantoms\t| out of order\t| double effects\t| duplicates / bound\t| dead letters\t| time\t|",
		"|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|",
	}, t.rows...) {
		_, _ = fmt.Fprintln(w, row) // a Builder takes everything
	}
	_ = w.Flush()
	return text.String()
}
