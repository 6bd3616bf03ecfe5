// Package amqp publishes the outbox to RabbitMQ (AMQP 0-9-1), in batches, with durable
// defaults: persistent messages, publisher confirms, and mandatory routing, so that a
// message that no queue took is never counted as sent. It is configured by
// watermill-amqp's Config, and its messages are those of watermill-amqp's publisher, so
// that watermill-amqp's subscriber reads them. The message-id is the event id.
//
// A destination is a queue (NewQueueConfig), a fanout exchange (NewPubSubConfig), a routing
// key of one topic or direct exchange, or such an exchange whose messages carry their
// routing key as metadata (NewTopicConfig, NewDirectConfig). Config says the rest:
// quorum queues in AMQP.Queue.Arguments, TLS in AMQP.Connection.TLSConfig.
//
// Subscribers of queues with dead letters, and of quorum queues, need Marshaler.
package amqp
