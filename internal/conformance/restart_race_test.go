//go:build race

package conformance_test

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Neither the suite's TestReconnect nor watermill-amqp's way to connect again is free of
// data races, which would fail the test: it runs in a process without the detector.
func TestRabbitMQRestarts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "go", "test", "-race=false", "-tags=stress", "-count=1", "-timeout=9m", "-run=^TestRabbitMQRestarts$", "-v", ".")
	output, err := command.CombinedOutput()
	require.NoErrorf(t, err, "%s", output)
	require.Contains(t, string(output), "--- PASS: TestRabbitMQRestarts ")
}
