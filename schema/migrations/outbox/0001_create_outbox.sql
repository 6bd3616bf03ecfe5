-- The outbox. A producer in any language needs only id, destination and payload.
CREATE TABLE {{.Outbox}} (
    -- CACHE 1: with a cached range per session, the order of seq within an
    -- ordering unit would no longer be the order of commits.
    seq           bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    id            text NOT NULL,
    destination   text NOT NULL,
    partition_key text,
    payload       text,
    payload_bytes bytea,
    metadata      jsonb NOT NULL DEFAULT '{}',
    created_at    timestamptz NOT NULL DEFAULT now(),
    attempts      integer NOT NULL DEFAULT 0,
    -- NULL: due at once.
    next_attempt_at timestamptz,
    last_error    text,
    published_at  timestamptz,
    -- The 32-bit hash of the ordering unit (destination, partition key); the
    -- database derives it, so that every producer gets the same one.
    unit_hash     integer NOT NULL GENERATED ALWAYS AS (
        ('x' || substr(md5(destination || E'\x1f' || coalesce(nullif(partition_key, ''), id)), 1, 8))::bit(32)::integer
    ) STORED,
    -- What could be written but not forwarded is refused here, where its producer sees it.
    CONSTRAINT id_length CHECK (octet_length(id) BETWEEN 1 AND 255),
    CONSTRAINT destination_length CHECK (octet_length(destination) BETWEEN 1 AND 255),
    CONSTRAINT partition_key_length CHECK (octet_length(partition_key) <= 1024),
    CONSTRAINT exactly_one_payload CHECK (num_nonnulls(payload, payload_bytes) = 1),
    CONSTRAINT payload_length CHECK (coalesce(octet_length(payload), octet_length(payload_bytes)) <= 134217728),
    CONSTRAINT metadata_is_object CHECK (jsonb_typeof(metadata) = 'object'),
    CONSTRAINT metadata_size CHECK (pg_column_size(metadata) <= 1048576)
);

-- Only rows that failed stand in it, so that it costs producers nothing.
CREATE INDEX {{.BackoffIndex}} ON {{.Outbox}} (next_attempt_at, unit_hash)
    WHERE next_attempt_at IS NOT NULL;

CREATE TABLE {{.DeadLetters}} (
    seq           bigint PRIMARY KEY,
    id            text NOT NULL,
    destination   text NOT NULL,
    partition_key text,
    payload       text,
    payload_bytes bytea,
    metadata      jsonb NOT NULL,
    created_at    timestamptz NOT NULL,
    attempts      integer NOT NULL,
    error         text NOT NULL,
    dead_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT exactly_one_payload CHECK (num_nonnulls(payload, payload_bytes) = 1)
);

-- One row: what every forwarder of this outbox must agree on.
CREATE TABLE {{.Settings}} (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    lanes     integer NOT NULL CHECK (lanes BETWEEN 1 AND 4096 AND (lanes & (lanes - 1)) = 0)
);

INSERT INTO {{.Settings}} (lanes) VALUES (64);
