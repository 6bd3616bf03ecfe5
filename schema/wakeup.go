package schema

import "fmt"

// WakeUpTrigger is the trigger of the outbox table by which writers wake a forwarder that
// sleeps. It tries to share an advisory lock until the end of the transaction; where it
// cannot, since a forwarder that sleeps holds the lock alone, it notifies a channel. Where
// it is disabled or dropped, and where max_prepared_transactions is not 0, forwarders look
// for rows every now and then instead.
const WakeUpTrigger = "watermill_outbox_wake_up"

// WakeUpLock is the advisory lock (of the kind with two numbers) of the writers of this
// outbox and of forwarders that sleep. Code that takes advisory locks of its own in the
// same database keeps clear of the first one, which is that of all outboxes.
func (s Postgres) WakeUpLock() (all, outbox int32) {
	s = s.withDefaults()
	return 0x6f757462, int32(lockKey("wake up", s.Schema, s.Name) & 0x7fffffff)
}

// WakeUpChannel is the channel that writers notify.
func (s Postgres) WakeUpChannel() string {
	_, outbox := s.WakeUpLock()
	return fmt.Sprint("watermill_outbox_", outbox)
}

// wakeUpArguments are the lock's numbers in SQL.
func (s Postgres) wakeUpArguments() string {
	all, outbox := s.WakeUpLock()
	return fmt.Sprintf("%d, %d", all, outbox)
}

// wakeUpFunction has a name that nobody else gives: it outlives its table, and is replaced.
func (s Postgres) wakeUpFunction() string {
	_, outbox := s.WakeUpLock()
	return s.qualified(fmt.Sprint(WakeUpTrigger, "_", outbox))
}
