// Package rig gives the sides of a comparison tables, queues and topics of their own on the
// real servers, and counts what arrived there.
package rig

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"
)

// Rig knows where the servers are.
type Rig struct {
	DSN     string
	Brokers []string
	AMQPURI string
}

// FromEnvironment takes the addresses from POSTGRES_DSN, KAFKA_BROKERS and AMQP_URI. By
// default they are those of "make services".
func FromEnvironment() Rig {
	return Rig{
		DSN:     environment("POSTGRES_DSN", "postgres://outbox:outbox@127.0.0.1:54329/outbox?sslmode=disable"),
		Brokers: strings.Split(environment("KAFKA_BROKERS", "127.0.0.1:29092"), ","),
		AMQPURI: environment("AMQP_URI", "amqp://outbox:outbox@127.0.0.1:25673/"),
	}
}

func environment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// NewName returns a name that nothing else on the servers has.
func NewName() string { return "bench_" + strings.ToLower(rand.Text()[:10]) }

// NewPrefix returns the first 24 characters of 36, the length of a UUID; the number of the
// message is the rest.
func NewPrefix() string {
	random := strings.ToLower(rand.Text())
	return fmt.Sprintf("%s-%s-%s-%s-", random[:8], random[8:12], random[12:16], random[16:20])
}

// Patience is how long anything may take that is not measured.
const Patience = 5 * time.Minute

// atTheEnd is for what is done although ctx may have ended.
func atTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), Patience)
}
