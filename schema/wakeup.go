package schema

// How writers wake a forwarder that sleeps: a trigger of the outbox table tries to share an
// advisory lock (of the kind with two numbers: WakeUpLock and the table's oid) until the end
// of the transaction. Where it cannot, since a forwarder that sleeps holds the lock alone,
// it notifies the channel whose name is WakeUpChannel and the table's oid.
//
// Code that takes advisory locks of that kind in the same database keeps clear of them. Where
// the trigger is disabled or dropped, and where max_prepared_transactions is not 0,
// forwarders look for rows every now and then instead.
const (
	WakeUpLock    = 0x6f757462
	WakeUpChannel = "watermill_outbox_"
	// WakeUpTrigger is the trigger's name.
	WakeUpTrigger = "watermill_outbox_wake_up"
)

func (s Postgres) wakeUpFunction() string {
	return s.qualified(deriveName(s.withDefaults().Name, "_wake_up"))
}
