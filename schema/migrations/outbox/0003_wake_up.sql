-- A forwarder that sleeps holds this lock alone, and is notified by whoever cannot share it. While
-- one is awake, and looks by itself, writers share the lock and notify nobody: NOTIFY has commits
-- wait for each other. The lock ends with the transaction, so that no forwarder falls asleep while
-- a writer is at work that would not wake it.
-- A transaction that holds such a lock, or has notified, cannot be prepared: where transactions
-- may be, nobody is notified, and forwarders look by themselves.
-- The condition stands in the trigger, where it costs writers less than in the function.
CREATE OR REPLACE FUNCTION {{.WakeUpFunction}}() RETURNS trigger LANGUAGE plpgsql AS $wake_up$
BEGIN
    PERFORM pg_catalog.pg_notify(pg_catalog.concat('{{.WakeUpChannel}}', TG_RELID), '');
    RETURN NULL;
END
$wake_up$;
CREATE TRIGGER {{.WakeUpTrigger}} BEFORE INSERT ON {{.Outbox}}
    FOR EACH STATEMENT WHEN (
        CASE WHEN current_setting('max_prepared_transactions') = '0'
            THEN NOT pg_try_advisory_xact_lock_shared({{.WakeUpLock}}, {{.OutboxLiteral}}::regclass::oid::integer)
            ELSE false
        END
    ) EXECUTE FUNCTION {{.WakeUpFunction}}();
