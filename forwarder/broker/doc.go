// Package broker opens a forwarder's publisher from configuration, so that Kafka is
// swapped for RabbitMQ, or back, without a change of code: fill in both sections of a
// Config, and Kind says which one is used.
//
//	cfg, err := broker.Load("broker.yaml", "OUTBOX_BROKER_")
//	…
//	publisher, err := broker.Open(cfg, logger)
//	…
//	relay, err := forwarder.New(db, publisher, forwarder.Config{}, logger)
//
// Everything that is wrong with a configuration is reported at once, each with its key
// and where it was set, and before anything connects. Passwords are masked wherever a
// Config is printed, and no error repeats them.
//
// What is not plain data (TLS configurations of your own, other mechanisms of SASL,
// marshalers, functions that name exchanges) has no place here: use packages
// forwarder/kafka and forwarder/amqp directly for it.
package broker
