-- A forwarder that sleeps holds this lock alone, and is notified by whoever cannot share it. While
-- one is awake, and looks by itself, writers share the lock and notify nobody: NOTIFY has commits
-- wait for each other. The lock ends with the transaction, so that no forwarder falls asleep while
-- a writer is at work that would not wake it.
-- The condition stands in the trigger, and its numbers are constants: there it costs writers next
-- to nothing, and the function is called only to notify.
CREATE OR REPLACE FUNCTION {{.WakeUpFunction}}() RETURNS trigger LANGUAGE plpgsql AS $wake_up$
BEGIN
    PERFORM pg_catalog.pg_notify('{{.WakeUpChannel}}', '');
    RETURN NULL;
END
$wake_up$;
CREATE TRIGGER {{.WakeUpTrigger}} BEFORE INSERT ON {{.Outbox}}
    FOR EACH STATEMENT WHEN (NOT pg_try_advisory_xact_lock_shared({{.WakeUpLock}}))
    EXECUTE FUNCTION {{.WakeUpFunction}}();
