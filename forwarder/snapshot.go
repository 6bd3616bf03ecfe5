package forwarder

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// snapshot is a pg_snapshot: which transactions a statement sees (Postgres manual, "Transaction ID and
// Snapshot Information Functions").
type snapshot struct {
	// xmax is the first that had not been given out, under those in progress.
	xmax uint32
	// underWay had begun, and not ended.
	underWay map[uint32]bool
}

var errSnapshot = errors.New("forwarder: not a snapshot")

// Scan reads xmin:xmax:xip,xip. Of each number the lower half counts: no two that are apart by 2^32 are
// in progress.
func (s *snapshot) Scan(value any) error {
	var text string
	switch v := value.(type) {
	case string:
		text = v
	case []byte:
		text = string(v)
	}
	parts := strings.Split(text, ":")
	const shape = 3
	if len(parts) != shape {
		return fmt.Errorf("%w: %q", errSnapshot, text)
	}
	numbers := []string{parts[1]}
	if parts[2] != "" {
		numbers = append(numbers, strings.Split(parts[2], ",")...)
	}
	*s = snapshot{underWay: map[uint32]bool{}}
	for i, number := range numbers {
		id, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %q", errSnapshot, text)
		}
		if i == 0 {
			s.xmax = uint32(id) //nolint:gosec // the lower half
		} else {
			s.underWay[uint32(id)] = true //nolint:gosec // the lower half
		}
	}
	return nil
}

// sees says whether a transaction that has committed is visible.
func (s *snapshot) sees(transaction uint32) bool {
	isLater := int32(transaction-s.xmax) >= 0 //nolint:gosec // ids go round
	return !isLater && !s.underWay[transaction]
}
