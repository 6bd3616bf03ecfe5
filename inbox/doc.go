// Package inbox remembers which events a consumer has handled, so that a repeated
// delivery has no second effect. The key of an event is written in the same
// transaction as the effects of its handler: both are committed, or neither.
//
// Delivery stays at-least-once; with the inbox the outcome is effectively-once. That
// holds for effects inside that transaction and for nothing else: an e-mail that the
// handler sends is sent again when the handler runs again.
//
// Watermill handlers use it through package middleware. Code with a transaction of
// its own calls Store.Record as the first thing in it.
package inbox
