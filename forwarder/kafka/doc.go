// Package kafka publishes the outbox to Apache Kafka, in batches, with durable
// defaults: acks=all and an idempotent producer. Its messages are those of
// watermill-kafka's publisher, so that watermill-kafka's subscriber reads them: the
// event id and the metadata are headers. The record's key is the partition key.
package kafka
