-- A row whose message was not taken waits: until its next attempt, or, behind such a row of its
-- unit, at infinity, until what is before it is settled. Only rows that wait stand in these
-- indexes, so that they cost producers nothing.
DROP INDEX {{.BackoffIndexQualified}};
CREATE INDEX {{.BackoffIndex}} ON {{.Outbox}} (next_attempt_at) WHERE next_attempt_at < 'infinity';
CREATE INDEX {{.WaitingIndex}} ON {{.Outbox}} (unit_hash, seq) WHERE next_attempt_at IS NOT NULL;

-- NOT VALID: what is there already is not looked at.
ALTER TABLE {{.Outbox}}
    -- A seq by hand or by COPY; the forwarder begins at 1.
    ADD CONSTRAINT seq_is_positive CHECK (seq > 0) NOT VALID,
    DROP CONSTRAINT metadata_size,
    -- Its text counts, not what it takes in storage, where it may be compressed and a number
    -- such as 1e131071 has a few bytes: text of 1 GiB could not be read at all. What has less
    -- than 500 bytes there stays below that; making text of it would cost producers time.
    ADD CONSTRAINT metadata_size CHECK (
        CASE WHEN pg_column_size(metadata) < 500 THEN true ELSE octet_length(metadata::text) <= 1048576 END
    ) NOT VALID;

-- The number that a dead letter had as a row may come again: when it is replayed in its place and
-- fails, or after TRUNCATE … RESTART IDENTITY. It has one of its own.
-- Those that are there get numbers from its sequence too, which would meet them otherwise.
ALTER TABLE {{.DeadLetters}} RENAME COLUMN seq TO dead_letter_id;
ALTER TABLE {{.DeadLetters}} ADD COLUMN seq bigint;
UPDATE {{.DeadLetters}} SET seq = dead_letter_id, dead_letter_id = -dead_letter_id;
ALTER TABLE {{.DeadLetters}} ALTER COLUMN dead_letter_id ADD GENERATED ALWAYS AS IDENTITY;
UPDATE {{.DeadLetters}} SET dead_letter_id = DEFAULT;
ALTER TABLE {{.DeadLetters}} ALTER COLUMN seq SET NOT NULL;
ALTER TABLE {{.DeadLetters}}
    -- The error without what differs from message to message.
    ADD COLUMN error_group text NOT NULL DEFAULT '',
    -- Its unit goes on only when it is replayed or discarded.
    ADD COLUMN blocks boolean NOT NULL DEFAULT false,
    -- As in the outbox.
    ADD COLUMN unit_hash integer NOT NULL GENERATED ALWAYS AS (
        ('x' || substr(md5(destination || E'\x1f' || coalesce(nullif(partition_key, ''), id)), 1, 8))::bit(32)::integer
    ) STORED;
CREATE INDEX {{.BlockedIndex}} ON {{.DeadLetters}} (unit_hash, seq) WHERE blocks;
CREATE INDEX {{.DeadAtIndex}} ON {{.DeadLetters}} (dead_at);

-- Brokers and destinations that are away: what replicas tell each other, and an operator.
CREATE TABLE {{.Absences}} (
    kind        text NOT NULL CHECK (kind IN ('broker', 'destination')),
    -- A broker's is empty where there is but one.
    name        text NOT NULL,
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    tried_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_try_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    error       text NOT NULL,
    PRIMARY KEY (kind, name)
);
