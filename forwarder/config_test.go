package forwarder_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

func TestConfigZeroValueIsValid(t *testing.T) {
	t.Parallel()
	require.NoError(t, forwarder.Config{}.Validate())
}

func TestConfigReportsAllErrorsAtOnce(t *testing.T) {
	t.Parallel()
	err := forwarder.Config{
		Schema:       schema.Postgres{Name: "a\x00b"},
		Ordering:     "random",
		Settlement:   "never",
		Workers:      -1,
		BatchSize:    -5,
		BatchBytes:   -1,
		PollInterval: -time.Second,
		RetryInitial: time.Minute,
		RetryMax:     time.Second,
	}.Validate()
	require.ErrorIs(t, err, forwarder.ErrInvalidConfig)
	require.ErrorIs(t, err, schema.ErrInvalidName)
	for _, text := range []string{
		`Ordering is "random", allowed are ["per_key" "none"]`,
		`Settlement is "never", allowed are ["delete" "mark_published"]`,
		`Workers is -1, allowed is 1 to 1024`,
		`BatchSize is -5`, `BatchBytes is -1`,
		`PollInterval is -1s`,
		`RetryMax is 1s, allowed is 1m0s to 24h0m0s`,
	} {
		require.ErrorContains(t, err, text)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	pub := (&recorder{}).publisher()
	_, err := forwarder.New(nil, pub, forwarder.Config{}, nil)
	require.ErrorIs(t, err, forwarder.ErrInvalidConfig)

	db := testdb.Open(t, "postgres", testdb.DSN(t))
	_, err = forwarder.New(db, nil, forwarder.Config{}, nil)
	require.ErrorIs(t, err, forwarder.ErrInvalidConfig)

	db.SetMaxOpenConns(1)
	_, err = forwarder.New(db, pub, forwarder.Config{Workers: 2}, nil)
	require.ErrorContains(t, err, "Workers is 2, but the pool allows only 1 connections")
}
