package testamqp

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
)

// Subscriber is watermill-amqp's. When that is closed, it may take the end of its connection for a loss,
// and connect once more (2.1.3: both are ready, and select takes either). Nobody has that connection,
// nor closes it: HangingUp does.
type Subscriber struct {
	*wmamqp.Subscriber

	closed atomic.Bool
}

// NewSubscriber returns watermill-amqp's subscriber.
func NewSubscriber(cfg wmamqp.Config, logger watermill.LoggerAdapter) (s *Subscriber, err error) {
	settings := amqp091.Config{TLSClientConfig: cfg.Connection.TLSConfig}
	if cfg.Connection.AmqpConfig != nil {
		settings = *cfg.Connection.AmqpConfig
	}
	s = &Subscriber{}
	dial := settings.Dial
	if dial == nil {
		dial = amqp091.DefaultDial(patience)
	}
	settings.Dial = func(network, address string) (net.Conn, error) {
		socket, err := dial(network, address)
		if err == nil && s.closed.Load() {
			late.add(socket)
		}
		return socket, err
	}
	cfg.Connection.AmqpConfig, cfg.Connection.TLSConfig = &settings, nil
	s.Subscriber, err = wmamqp.NewSubscriber(cfg, logger)
	return s, err
}

// Close closes the subscriber.
func (s *Subscriber) Close() error {
	s.closed.Store(true)
	return s.Subscriber.Close()
}

// late are sockets of subscribers that were closed before.
var late sockets

type sockets struct {
	mu  sync.Mutex
	all []net.Conn
}

func (s *sockets) add(socket net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, socket)
}

func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, socket := range s.all {
		_ = socket.Close() // its reader notices
	}
	s.all = nil
}

// HangingUp is m, and hangs up when its tests have run: goleak.VerifyTestMain then looks for what is
// left. A subscriber that was not closed is not hung up.
func HangingUp(m *testing.M) interface{ Run() int } { return hangingUp{m} }

type hangingUp struct{ *testing.M }

func (h hangingUp) Run() int {
	code := h.M.Run()
	late.close()
	return code
}
