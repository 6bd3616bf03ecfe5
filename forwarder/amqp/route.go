package amqp

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultRoutingKeyMetadata is the metadata key from which NewTopicConfig and
// NewDirectConfig take a message's routing key where the destination is the exchange.
const DefaultRoutingKeyMetadata = "_watermill_outbox_routing_key"

// outlet is what a channel serves. What closes a channel, such as an exchange that is
// missing, hits no message of another outlet.
type outlet struct{ destination, exchange string }

// route is where in RabbitMQ a message goes.
type route struct {
	outlet

	routingKey string
}

// routesByMessage says that messages of one destination go different ways: what no
// queue took is then that message's trouble.
func (c Config) routesByMessage() bool {
	return c.RoutingKeyMetadata != "" || c.ExchangeMetadata != "" || c.AMQP.Exchange.Type == "headers"
}

// declaresExchanges says that exchanges are made as they are needed. One that a message
// names is not: a slip of the producer would leave it behind.
func (c Config) declaresExchanges() bool {
	return !c.ExistingExchanges && c.ExchangeMetadata == ""
}

var errNameTooLong = errors.New("a name is too long for AMQP")

// routeOf is the route of a destination, before a message changes it. A panic in the
// configuration's code is the fault of that destination.
func (c Config) routeOf(destination string) (r route, err error) {
	defer recoverInto(&err)
	r = route{outlet{destination, c.AMQP.Exchange.GenerateName(destination)}, c.AMQP.Publish.GenerateRoutingKey(destination)}
	names := []string{r.exchange, r.routingKey}
	if c.DeclareQueues {
		queue := c.AMQP.Queue.GenerateName(destination)
		names = append(names, queue, c.AMQP.QueueBind.GenerateRoutingKey(queue))
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return r, err
		}
	}
	return r, nil
}

func checkName(name string) error {
	if len(name) > maxShortStringBytes {
		return fmt.Errorf("%w: %q has %d bytes, at most %d are allowed", errNameTooLong, name, len(name), maxShortStringBytes)
	}
	return nil
}

// of is the route of a message of the destination.
func (r route) of(msg *message.Message, c Config) (route, error) {
	err := errors.Join(
		takeName(&r.exchange, "exchange", msg, c.ExchangeMetadata),
		takeName(&r.routingKey, "routing key", msg, c.RoutingKeyMetadata),
	)
	return r, err
}

var errNoName = errors.New("is missing or empty")

// takeName replaces a name by the one in the metadata, if one is configured to be there.
func takeName(name *string, what string, msg *message.Message, key string) error {
	if key == "" {
		return nil
	}
	*name = msg.Metadata.Get(key)
	if *name == "" {
		return fmt.Errorf("the metadata key %q, which names the %s, %w", key, what, errNoName)
	}
	if err := checkName(*name); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
