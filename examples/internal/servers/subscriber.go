package servers

import (
	"context"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/forwarder/broker"
)

// NewSubscriber returns Watermill's own subscriber for the broker in use. The service
// misses nothing that is published to the destination from now on. Close closes the
// subscriber.
func (s *Servers) NewSubscriber(service, destination string, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	newSubscriber := s.newKafkaSubscriber
	if s.Broker.Kind == broker.KindAMQP {
		newSubscriber = s.newAMQPSubscriber
	}
	return newSubscriber(service, destination, logger)
}

func (s *Servers) newKafkaSubscriber(service, _ string, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest // a new group misses nothing
	group := service + s.TopicSuffix
	s.groups = append(s.groups, group)
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               s.Broker.Kafka.Brokers,
		Unmarshaler:           kafka.DefaultMarshaler{},
		OverwriteSaramaConfig: config,
		ConsumerGroup:         group,
	}, logger)
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { return subscriber.Close() })
	return subscriber, nil
}

func (s *Servers) newAMQPSubscriber(service, destination string, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	queue := s.addQueue(destination, service)
	config := amqp.NewDurablePubSubConfig(string(s.Broker.AMQP.URI), func(string) string { return queue })
	subscriber, err := amqp.NewSubscriber(config, logger)
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { return subscriber.Close() })
	// The queue is made and bound at once, not when the router runs: an exchange keeps
	// nothing for queues that are bound later.
	return subscriber, subscriber.SubscribeInitialize(s.Topic(destination))
}
