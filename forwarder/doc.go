// Package forwarder is the relay between the outbox and the broker. A Forwarder
// claims committed rows in batches, publishes them, and settles each row only after
// the broker confirmed that very message.
//
// Any number of replicas may run beside each other. With Ordering PerKey (the
// default) a claim first takes lanes, which are hash buckets of ordering units, and
// then the rows at their heads, so that no two replicas ever work on the same unit
// at once. The locks end with the transaction: a replica that dies gives its rows
// back, and they are sent again.
//
// A Forwarder runs by itself (Run), or lives and ends with a Watermill router
// (RouterPlugin).
package forwarder
