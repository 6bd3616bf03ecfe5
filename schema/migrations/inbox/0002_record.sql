-- Records a key: consumer, event id and digest. It says 1 if the key is new, 0 if it was there, and 2 if
-- it was there with another digest. A function, since a client would need three round trips for it, and
-- Postgres would plan each statement anew.
-- $4 and $5 are Limits in milliseconds, 0 where there is none; NULL where no setting is to be changed.
-- Each statement has a snapshot of its own: the last one sees what the INSERT has waited for.
CREATE OR REPLACE FUNCTION {{.RecordFunction}}(text, text, bytea, integer, integer)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $body_of_the_function_in_quotes_that_are_longer_than_any_name_may_be$
DECLARE
    former_wait text;
    former_idle interval;
    outcome     integer := 1;
BEGIN
    -- A session of another encoding has turned both texts into other ones.
    IF pg_catalog.pg_client_encoding() OPERATOR(pg_catalog.<>) ALL ('{UTF8,SQL_ASCII}'::pg_catalog.name[]) THEN
        RAISE untranslatable_character USING MESSAGE = 'the inbox needs client_encoding UTF8';
    END IF;
    IF $4 OPERATOR(pg_catalog.>) 0 THEN
        former_wait := pg_catalog.current_setting('lock_timeout');
        PERFORM pg_catalog.set_config('lock_timeout', $4::pg_catalog.text, true);
    END IF;
    IF $5 OPERATOR(pg_catalog.>) 0 THEN
        former_idle := pg_catalog.current_setting('idle_in_transaction_session_timeout')::pg_catalog.interval;
        IF former_idle OPERATOR(pg_catalog.=) '0'::pg_catalog.interval
            OR former_idle OPERATOR(pg_catalog.>) ($5::pg_catalog.text OPERATOR(pg_catalog.||) 'ms')::pg_catalog.interval
        THEN
            PERFORM pg_catalog.set_config('idle_in_transaction_session_timeout', $5::pg_catalog.text, true);
        END IF;
    END IF;
    IF $4 IS NOT NULL AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;

    INSERT INTO {{.Inbox}} (consumer, event_id, digest) VALUES ($1, $2, $3)
        ON CONFLICT (consumer, event_id) DO NOTHING;
    IF NOT FOUND THEN
        outcome := 0;
        -- A stored NULL compares as "unknown": no other content.
        IF EXISTS (SELECT FROM {{.Inbox}} AS recorded
            WHERE recorded.consumer OPERATOR(pg_catalog.=) $1 AND recorded.event_id OPERATOR(pg_catalog.=) $2
                AND recorded.digest OPERATOR(pg_catalog.<>) $3)
        THEN
            outcome := 2;
        END IF;
    END IF;

    IF former_wait IS NOT NULL THEN
        PERFORM pg_catalog.set_config('lock_timeout', former_wait, true);
    END IF;
    RETURN outcome;
END
$body_of_the_function_in_quotes_that_are_longer_than_any_name_may_be$;
