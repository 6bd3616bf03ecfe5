// Package outbox writes events into a transactional outbox in Postgres: in the same
// transaction as the business row, so that both exist or neither does. A forwarder
// (package forwarder) publishes them afterwards, and an inbox (packages inbox and
// middleware) on the receiving side drops what arrives twice.
//
// The invariants that this module keeps, and that its tests prove:
//
//  1. A row exists if and only if the caller's transaction committed. The publisher
//     never begins, commits or rolls back.
//  2. A row is settled only after the broker confirmed that very message.
//  3. The unit of order is (destination, partition key). Within it, messages are
//     first delivered in the order of their transactions' commits, with any number
//     of forwarder replicas, provided that the outbox row is inserted while the
//     writer holds a lock on the aggregate that it keeps to its commit (any UPDATE or
//     SELECT FOR UPDATE of the aggregate's row does). After a failure nothing later
//     of that unit is sent until the failed message is settled or dead-lettered.
//  4. An inbox key is committed in the same transaction as the handler's effects and
//     the messages it produced, or not at all.
//  5. A position in the WAL is confirmed only after every earlier event is settled,
//     or parked in the outbox table.
//  6. A broker or a destination that is away spends no attempt and moves nothing to
//     the dead letters; a message that is refused never stops other units.
//  7. A message is lost if it is neither delivered, nor in the outbox, nor in the
//     dead letters. None is, ever.
//
// Delivery is at-least-once; together with the inbox the outcome is effectively-once.
// Without a partition key every message is a unit of its own: a UUID as event id
// alone gives no order between the events of one aggregate.
//
// # Metadata
//
// Each metadata key and its value arrive as a header of that name, byte for byte, on
// Kafka and on RabbitMQ alike; or the message is refused (ErrInvalidMessage) before
// anything is written. Since a change of configuration may send it to the other broker,
// what one of them cannot carry is refused for both:
//
//   - a key or a value that is not UTF-8 or holds a NUL byte, which Postgres cannot store;
//   - a key of more than MaxMetadataKeyBytes bytes, and metadata of more than
//     MaxMetadataBytes in all;
//   - the key _watermill_message_uuid: both brokers' marshalers keep the event id there;
//   - the keys CC and BCC: RabbitMQ takes them for routing keys;
//   - the keys x-death, x-first-death-*, x-last-death-*, x-delivery-count,
//     x-acquired-count and x-stream-offset: RabbitMQ writes them itself.
//
// An empty key, an empty value and names in any script are fine. PartitionKeyMetadata
// is a key like others, and arrives too. A row that is written in SQL is checked by the
// forwarder, which refuses what its broker cannot carry, for this row alone.
package outbox
