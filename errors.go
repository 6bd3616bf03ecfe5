package outbox

import "errors"

var (
	// ErrNoTx says that no transaction was given: Publish found none in a message's
	// context, or a nil Tx was passed. Put it there with ContextWithTx.
	ErrNoTx = errors.New("outbox: no transaction: use PublishTx, or a context with one (ContextWithTx, or the inbox around the handler)")
	// ErrNotStored says that Postgres took a statement and did not store all of its
	// messages. Either the session's client_encoding is not UTF8 (a default of the role
	// or the database that pgx leaves as it is: put client_encoding=UTF8 into the
	// connection string), or a trigger or a rule of yours on the table drops rows. Roll
	// the transaction back.
	ErrNotStored = errors.New("outbox: not stored (is client_encoding UTF8, and no trigger in the way?)")
	// ErrInvalidMessage says that a message cannot be stored or sent as it is. The
	// error that wraps it names the message and the rule. Nothing was written.
	ErrInvalidMessage = errors.New("outbox: invalid message")
	// ErrInvalidDestination says that the destination is empty, too long, not UTF-8 or
	// holds a NUL byte. Nothing was written.
	ErrInvalidDestination = errors.New("outbox: invalid destination")
)
