package broker

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

// Open returns the publisher of the Config's Kind: a *kafka.Publisher or an
// *amqp.Publisher, which are forwarder.BatchPublishers; or, for several Brokers, a
// *forwarder.Routes to them. It validates the Config and does
// not connect yet: a broker that is away shows when the first batch is sent. A nil
// logger logs nothing. Errors wrap ErrInvalidConfig. Close the publisher to free its
// connections.
func Open(cfg Config, logger watermill.LoggerAdapter) (message.Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(cfg.Brokers) > 0 {
		return openSeveral(cfg, func(one Config) (message.Publisher, error) { return openOne(one, logger) })
	}
	return openOne(cfg, logger)
}

func openOne(cfg Config, logger watermill.LoggerAdapter) (message.Publisher, error) {
	if cfg.Kind == KindAMQP {
		settings, err := cfg.AMQP.config()
		if err != nil {
			return nil, err
		}
		publisher, err := amqp.NewPublisher(settings, logger)
		if err != nil {
			return nil, &keyError{key: "amqp", err: err}
		}
		return publisher, nil
	}
	kafkaConfig, problems := cfg.Kafka.config()
	if len(problems) > 0 { // files may have gone since they were checked
		return nil, errors.Join(asErrors(problems)...)
	}
	publisher, err := kafka.NewPublisher(kafkaConfig, logger)
	if err != nil {
		return nil, &keyError{key: "kafka", err: err}
	}
	return publisher, nil
}
