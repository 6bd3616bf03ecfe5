package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/rabbitmq/amqp091-go"
)

func (s *Servers) requireRabbitMQ() error {
	if err := s.Broker.Validate(); err != nil {
		return fmt.Errorf("AMQP_URI: %w", err)
	}
	if err := s.withChannel(func(*amqp091.Channel) error { return nil }); err != nil {
		return fmt.Errorf("no RabbitMQ at %s: run \"make services\", or set AMQP_URI: %w", s.rabbitMQHost(), err)
	}
	return nil
}

// rabbitMQHost is for people to read: without the password.
func (s *Servers) rabbitMQHost() string {
	parsed, err := url.Parse(string(s.Broker.AMQP.URI))
	if err != nil {
		return "AMQP_URI"
	}
	return parsed.Host
}

const durable = true

// createExchanges makes the exchanges that watermill-amqp's NewDurablePubSubConfig
// speaks of, and an audit queue behind each.
func (s *Servers) createExchanges(destinations []string) error {
	s.onClose(func(context.Context) error { return s.deleteExchanges(destinations) })
	return s.withChannel(func(channel *amqp091.Channel) error {
		for _, destination := range destinations {
			exchange, queue := s.Topic(destination), s.addQueue(destination, "audit")
			if err := channel.ExchangeDeclare(exchange, amqp091.ExchangeFanout, durable, false, false, false, nil); err != nil {
				return fmt.Errorf("create exchange %q: %w", exchange, err)
			}
			// A quorum queue, which may be the server's default, counts its messages a while
			// later, and drops those that were read too often.
			classic := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeClassic}
			if _, err := channel.QueueDeclare(queue, durable, false, false, false, classic); err != nil {
				return fmt.Errorf("create queue %q: %w", queue, err)
			}
			if err := channel.QueueBind(queue, "", exchange, false, nil); err != nil {
				return fmt.Errorf("bind queue %q: %w", queue, err)
			}
		}
		return nil
	})
}

func (s *Servers) addQueue(destination, reader string) string {
	queue := s.Queue(destination, reader)
	s.queues = append(s.queues, queue)
	return queue
}

func (s *Servers) deleteExchanges(destinations []string) error {
	err := s.withChannel(func(channel *amqp091.Channel) error {
		// What does not exist counts as deleted.
		errs := make([]error, 0, len(s.queues)+len(destinations))
		for _, queue := range s.queues {
			_, err := channel.QueueDelete(queue, false, false, false)
			errs = append(errs, err)
		}
		for _, destination := range destinations {
			errs = append(errs, channel.ExchangeDelete(s.Topic(destination), false, false))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("delete queues and exchanges: %w", err)
	}
	return nil
}

func (s *Servers) withChannel(use func(*amqp091.Channel) error) (err error) {
	config := amqp091.Config{Dial: amqp091.DefaultDial(answerTimeout)}
	connection, err := amqp091.DialConfig(string(s.Broker.AMQP.URI), config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, connection.Close()) }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	return use(channel)
}
