// Package amqp publishes the outbox to RabbitMQ (AMQP 0-9-1), in batches, with durable
// defaults: persistent messages, publisher confirms, and mandatory routing, so that a
// message that no queue took is never counted as sent. It is configured by
// watermill-amqp's Config, and its messages are those of watermill-amqp's publisher, so
// that watermill-amqp's subscriber reads them. The message-id is the event id.
package amqp
