// Package middleware makes Watermill handlers idempotent: Inbox runs a handler once
// for each event, in a transaction that also holds the inbox key and the messages
// that the handler returns.
package middleware
