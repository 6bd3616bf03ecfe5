package amqp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	// handshakeTimeout bounds connecting where the context does not.
	handshakeTimeout = 30 * time.Second
	// closeTimeout bounds the polite part of closing.
	closeTimeout = 2 * time.Second
	// maxIdleChannels is how many channels wait for their next use.
	maxIdleChannels = 256
	// defaultChannelMax is RabbitMQ's own.
	defaultChannelMax = 2047
)

var errNoSlot = errors.New("no channel is free")

var errBlocked = errors.New("the broker blocks the connection, it is short of memory or disk space")

// connection is a connection to the broker and its idle channels.
type connection struct {
	config Config
	logger watermill.LoggerAdapter
	amqp   *amqp091.Connection
	// socket is closed directly where the broker does not read: the client library would
	// wait to write its farewell.
	socket net.Conn
	done   chan struct{} // closed when the watcher has ended
	// slots holds an entry for each channel that is open, in use or not: the broker allows
	// so many.
	slots   chan struct{}
	maxIdle int

	mu      sync.Mutex
	blocked chan struct{} // closed while the broker blocks the connection
	idle    map[outlet][]*channel
	idling  int
	waiting int // callers that wait for a slot
}

func dial(ctx context.Context, cfg Config, logger watermill.LoggerAdapter) (*connection, error) {
	settings := amqp091.Config{}
	if cfg.AMQP.Connection.AmqpConfig != nil {
		settings = *cfg.AMQP.Connection.AmqpConfig
	}
	settings.Recovery = nil // it would bring channels back under a wave that is given up
	// The client library writes into both.
	if cfg.AMQP.Connection.TLSConfig != nil {
		settings.TLSClientConfig = cfg.AMQP.Connection.TLSConfig
	}
	settings.TLSClientConfig = settings.TLSClientConfig.Clone()
	settings.Properties = maps.Clone(settings.Properties)
	if settings.Properties == nil {
		settings.Properties = amqp091.NewConnectionProperties()
		settings.Properties.SetClientConnectionName("watermill-outbox")
	}
	c := &connection{config: cfg, logger: logger, blocked: make(chan struct{}), idle: map[outlet][]*channel{}, done: make(chan struct{})}
	settings.Dial = c.dialer(ctx, settings.Dial)
	stop := context.AfterFunc(ctx, func() { c.closeSocket() })
	defer stop()
	connected, err := amqp091.DialConfig(cfg.AMQP.Connection.AmqpURI, settings)
	if err != nil {
		c.closeSocket()
		return nil, fmt.Errorf("connect: %w", err)
	}
	c.amqp = connected
	c.shareChannels(int(connected.Config.ChannelMax))
	go c.watch(connected.NotifyBlocked(make(chan amqp091.Blocking, 1)), connected.NotifyClose(make(chan *amqp091.Error, 1)))
	return c, nil
}

func (c *connection) shareChannels(allowed int) {
	if allowed == 0 {
		allowed = defaultChannelMax
	}
	c.maxIdle = min(maxIdleChannels, allowed/2)
	c.slots = make(chan struct{}, allowed)
}

type dialFunc = func(network, addr string) (net.Conn, error)

// dialer keeps hold of the socket and bounds the handshake, after which the client
// library lifts the deadline.
func (c *connection) dialer(ctx context.Context, inner dialFunc) dialFunc {
	return func(network, addr string) (net.Conn, error) {
		var (
			socket net.Conn
			err    error
		)
		if inner != nil {
			socket, err = inner(network, addr)
		} else {
			dialer := net.Dialer{Timeout: handshakeTimeout}
			socket, err = dialer.DialContext(ctx, network, addr)
		}
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.socket = socket
		c.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return nil, errors.Join(err, socket.Close())
		}
		if err := socket.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
			return nil, errors.Join(err, socket.Close())
		}
		return socket, nil
	}
}

// watch follows the alarms of the broker until the connection ends.
func (c *connection) watch(blockings <-chan amqp091.Blocking, closes <-chan *amqp091.Error) {
	defer close(c.done)
	for blocking := range blockings {
		if blocking.Active {
			c.logger.Error("RabbitMQ blocks the connection", errBlocked, watermill.LogFields{"reason": blocking.Reason})
			c.block()
			continue
		}
		c.logger.Info("RabbitMQ unblocks the connection", nil)
		c.unblock()
	}
	if err := <-closes; err != nil {
		c.logger.Error("Connection to RabbitMQ is lost", err, nil)
	}
}

func (c *connection) block() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.blocked:
	default:
		close(c.blocked)
	}
}

func (c *connection) unblock() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.blocked:
		c.blocked = make(chan struct{})
	default:
	}
}

// whenBlocked returns a channel that is closed once the broker blocks the connection.
func (c *connection) whenBlocked() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked
}

func (c *connection) isBlocked() bool {
	select {
	case <-c.whenBlocked():
		return true
	default:
		return false
	}
}

func (c *connection) isClosed() bool { return c.amqp.IsClosed() }

// takeIdle returns a channel of the outlet that nobody uses, nil if there is none.
func (c *connection) takeIdle(to outlet) *channel {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := c.idle[to]
	if len(free) == 0 {
		return nil
	}
	c.keepIdle(to, free[:len(free)-1])
	c.idling--
	return free[len(free)-1]
}

func (c *connection) keepIdle(to outlet, free []*channel) {
	if len(free) == 0 {
		delete(c.idle, to)
		return
	}
	c.idle[to] = free
}

// takeSlot waits for the right to open a channel. An idle one of another outlet
// makes way.
func (c *connection) takeSlot(ctx context.Context) error {
	select {
	case c.slots <- struct{}{}:
		return nil
	default:
	}
	c.mu.Lock()
	c.waiting++
	evicted := c.evict()
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.waiting--
		c.mu.Unlock()
	}()
	c.closeAll(evicted)
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-c.whenBlocked():
		return errBlocked
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errNoSlot, context.Cause(ctx))
	}
}

// answers asks the broker for one more channel, which needs neither queue nor exchange.
func (c *connection) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerGrace)
	defer cancel()
	if err := c.takeSlot(ctx); err != nil {
		return false
	}
	opened := make(chan error, 1)
	go func() { // it ends with the connection at the latest
		defer func() { <-c.slots }()
		ch, err := c.amqp.Channel()
		opened <- err
		if err == nil {
			_ = ch.Close() // it has served
		}
	}()
	select {
	case err := <-opened:
		return err == nil
	case <-ctx.Done():
		return false
	}
}

// release keeps a channel that is in order for its next use, unless there are enough of
// them, or others wait for a slot.
func (c *connection) release(ch *channel) {
	c.mu.Lock()
	keep := c.idling < c.maxIdle && c.waiting == 0
	if keep {
		c.idle[ch.outlet] = append(c.idle[ch.outlet], ch)
		c.idling++
	}
	c.mu.Unlock()
	if !keep {
		c.closeAll([]*channel{ch})
	}
}

// evict takes an idle channel of any outlet. The lock is held.
func (c *connection) evict() []*channel {
	for to, free := range c.idle {
		c.keepIdle(to, free[1:])
		c.idling--
		return free[:1:1]
	}
	return nil
}

// discard closes a channel that is not in order, and the idle ones of its outlet,
// so that the next one declares the topology anew.
func (c *connection) discard(ch *channel) {
	c.mu.Lock()
	all := c.idle[ch.outlet]
	c.idling -= len(all)
	delete(c.idle, ch.outlet)
	c.mu.Unlock()
	c.closeAll(append(all, ch))
}

// closeAll does not wait for the broker's answers: an alarm may hold them back.
func (c *connection) closeAll(channels []*channel) {
	for _, ch := range channels {
		go func() { // it ends with the connection at the latest
			ch.close()
			<-c.slots
		}()
	}
}

// drop ends a connection that does not answer.
func (c *connection) drop() {
	c.closeSocket()
	<-c.done
}

// close says goodbye, if the broker listens.
func (c *connection) close() {
	if c.isBlocked() {
		c.drop()
		return
	}
	if err := c.amqp.CloseDeadline(time.Now().Add(closeTimeout)); err != nil && !errors.Is(err, amqp091.ErrClosed) {
		c.logger.Debug("RabbitMQ did not answer the farewell", watermill.LogFields{"error": err.Error()})
	}
	c.drop()
}

func (c *connection) closeSocket() {
	c.mu.Lock()
	socket := c.socket
	c.mu.Unlock()
	if socket != nil {
		_ = socket.Close() // whatever it says, it is over
	}
}
