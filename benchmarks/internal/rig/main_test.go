package rig_test

import (
	"testing"

	"go.uber.org/goleak"
)

// A meter of a metrics library that sarama brings has no end.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
