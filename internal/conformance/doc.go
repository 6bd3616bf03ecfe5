// Package conformance runs the suite by which Watermill judges Pub/Subs,
// github.com/ThreeDotsLabs/watermill/pubsub/tests, over the whole way: a publisher that
// commits each Publish in a transaction of its own, the outbox, a forwarder, the broker,
// and the stock subscriber of watermill-kafka or watermill-amqp. At the end of each test
// the forwarder must have settled everything.
//
// All features of the suite are on that apply ("short" is the suite's own ForceShort):
//
//	TestKafka                           groups                           full length
//	TestKafkaOrdered                    groups, order                    short
//	TestKafkaWithoutGroups              old messages to new subscribers  short
//	TestRabbitMQQueue                   order with one subscriber        short
//	TestRabbitMQPubSub                  groups, order with one subscriber  short
//	TestRabbitMQUnorderedMarkPublished  groups                           full length
//	TestRabbitMQRestarts                restarts of the broker           full length
//
// Order is promised to messages that share a partition key. The tests of order make the
// payload the key, since messages of one payload are what the suite wants in order. The
// suite gives nearly all messages the same payload, with it the same key, and what shares
// a key is sent one by one: hence short, but for TestPublishSubscribeInOrder, which runs
// at full length as well. The short tests without groups save the 250,000 deliveries of 5000
// messages to each of 50 subscribers.
//
// What is off, and why:
//
//   - ExactlyOnceDelivery: delivery is at-least-once. A forwarder that dies between the
//     broker's confirmation and its own commit sends again.
//   - GuaranteedOrder, in the tests that do not say order: a message without a partition
//     key is a unit of order of its own, and Ordering None keeps no order at all.
//   - GuaranteedOrder for many subscribers, on RabbitMQ: a queue hands its messages to its
//     consumers in turn. On Kafka it is on: ten subscribers share the partitions.
//   - ConsumerGroups, in TestRabbitMQQueue and TestKafkaWithoutGroups: the consumers of a
//     queue are one group by nature, a Kafka consumer without a group is none.
//   - NewSubscriberReceivesOldMessages, but for TestKafkaWithoutGroups: members of a group
//     share what they get, and RabbitMQ drops what was acked.
//   - RestartServiceCommand, but for TestRabbitMQRestarts: other tests use the same broker.
//     RabbitMQ is quick to start for one test; Kafka is not.
//   - ContextPreserved: a context does not travel through a database and a broker.
//   - RequireSingleInstance: nothing requires it.
//
// TestReconnect of the suite, which TestRabbitMQRestarts is about, has data races of its
// own, and so has the way in which watermill-amqp v2.1.3 connects again. Where the race
// detector is on, it runs in a process without it.
package conformance
