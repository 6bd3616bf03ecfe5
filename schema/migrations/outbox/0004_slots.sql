-- Replication slots through which forwarders read the outbox from the write-ahead log: what shows that a
-- slot is not the one that it was.
CREATE TABLE {{.Slots}} (
    slot              text PRIMARY KEY,
    system_identifier text NOT NULL,
    timeline          integer NOT NULL,
    -- Everything up to it is settled. The slot has confirmed no more than that.
    settled           pg_lsn NOT NULL,
    settled_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Since then the table is read, and the log is not.
    suspended_at      timestamptz,
    suspended_because text
);
