package amqp_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/testamqp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testamqp.HangingUp(m)) }
