package ledger

import (
	"context"
	"fmt"
	"time"
)

// await asks until the answer is yes. It gives up after patience, or with ctx.
func await(ctx context.Context, patience time.Duration, ask func() (bool, error)) error {
	deadline := time.Now().Add(patience)
	for {
		yes, err := ask()
		if err != nil || yes {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s", patience)
		}
		if !pause(ctx, 10*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}
