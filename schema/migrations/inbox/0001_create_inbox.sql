-- The inbox: one row for each event that a consumer has handled.
CREATE TABLE {{.Inbox}} (
    consumer    text NOT NULL,
    event_id    text NOT NULL,
    -- SHA-256 of destination and payload; NULL where the check is turned off.
    digest      bytea,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id),
    CONSTRAINT consumer_length CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT event_id_length CHECK (octet_length(event_id) BETWEEN 1 AND 255)
);

-- For retention, which deletes the oldest keys first.
CREATE INDEX {{.RetentionIndex}} ON {{.Inbox}} (received_at);
