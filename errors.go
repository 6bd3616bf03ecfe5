package outbox

import "errors"

var (
	// ErrNoTx says that no transaction was given: Publish found none in a message's
	// context, or a nil Tx was passed. Put it there with ContextWithTx.
	ErrNoTx = errors.New("outbox: no transaction: put it into the context (ContextWithTx), or decorate the handler with the inbox")
	// ErrInvalidMessage says that a message cannot be stored or sent as it is. The
	// error that wraps it names the message and the rule. Nothing was written.
	ErrInvalidMessage = errors.New("outbox: invalid message")
	// ErrInvalidDestination says that the destination is empty, too long, not UTF-8 or
	// holds a NUL byte. Nothing was written.
	ErrInvalidDestination = errors.New("outbox: invalid destination")
)
