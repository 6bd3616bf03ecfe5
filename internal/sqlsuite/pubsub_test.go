package sqlsuite_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Watermill's conformance suite on watermill-sql's publisher and subscriber with our
// adapter. What does not apply is not in the list:
//
//   - TestConsumerGroups, TestNewSubscriberReceivesOldMessages: an acknowledged row is
//     gone for all. A consumer group is refused, which package schema tests.
//   - TestReconnect restarts the server, which the tests share. Package schema breaks the
//     subscriber's connection instead.
//
// Order is between the messages of a unit. Those of the suite have no partition key, so
// that each is a unit of its own, and only a single subscriber has them in order. (Order
// within units between subscribers is a test of package schema.) Delivery is
// at-least-once, and a message's context does not cross the database.
func TestWatermillSuite(t *testing.T) {
	t.Parallel()
	features := tests.Features{
		Persistent:                          true,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true,
		ForceShort:                          true, // a transaction for each message
	}
	for _, driver := range []string{"postgres", "pgx"} {
		for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
			"PublishSubscribe":                  tests.TestPublishSubscribe,
			"ConcurrentSubscribe":               tests.TestConcurrentSubscribe,
			"ConcurrentSubscribeMultipleTopics": tests.TestConcurrentSubscribeMultipleTopics,
			"ResendOnError":                     tests.TestResendOnError,
			"NoAck":                             tests.TestNoAck,
			"ContinueAfterSubscribeClose":       tests.TestContinueAfterSubscribeClose,
			"ConcurrentClose":                   tests.TestConcurrentClose,
			"ContinueAfterErrors":               tests.TestContinueAfterErrors,
			"PublishSubscribeInOrder":           tests.TestPublishSubscribeInOrder,
			"PublisherClose":                    tests.TestPublisherClose,
			"Topic":                             tests.TestTopic,
			"MessageCtx":                        tests.TestMessageCtx,
			"SubscribeCtx":                      tests.TestSubscribeCtx,
		} {
			t.Run(driver+"/"+name, func(t *testing.T) {
				t.Parallel()
				tables := testdb.New(t)
				db := testdb.Open(t, driver, tables.DSN)
				test(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, func(t *testing.T) (message.Publisher, message.Subscriber) {
					t.Helper()
					return newPublisher(t, db, tables.Schema), newSubscriber(t, db, tables.Schema)
				})
			})
		}
	}
}
