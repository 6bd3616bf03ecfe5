// Package kafka publishes the outbox to Apache Kafka, in batches, with durable
// defaults: acks=all and an idempotent producer. Its messages are those of
// watermill-kafka's publisher, so that watermill-kafka's subscriber reads them: the
// event id and the metadata are headers. The record's key is the partition key.
//
// Each metadata key is a header of its name, and arrives as it was written, be key or
// value empty. One name is reserved: "_watermill_message_uuid", the header of the event
// id. A message whose metadata has it, with whatever value, is refused.
//
// The publisher needs the permission to write its topics (in Kafka's terms, the operation
// Write on them), and with Config.CreateTopics that to create them (Create on the topics
// or on the cluster). A topic that it may not write, that is missing, or that has too few
// replicas, holds back its own messages only. A client that is kept out altogether, by a
// certificate or a password, finds the broker unavailable: all messages wait as they are,
// and go out once that is mended.
package kafka
