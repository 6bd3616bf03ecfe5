package rig

import (
	"context"
	"errors"
	"fmt"

	"github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Settings are those of Postgres that change the figures.
func (r Rig) Settings(ctx context.Context) (map[string]string, error) {
	settings := map[string]string{}
	for _, name := range []string{"fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "wal_level", "autovacuum"} {
		value, err := r.setting(ctx, name)
		if err != nil {
			return nil, err
		}
		settings[name] = value
	}
	return settings, nil
}

func (r Rig) setting(ctx context.Context, name string) (value string, err error) {
	db, err := Open(r.DSN)
	if err != nil {
		return "", err
	}
	err = db.QueryRowContext(ctx, `SELECT current_setting($1)`, name).Scan(&value)
	return value, errors.Join(err, db.Close())
}

// Versions are those of the servers. All of them must answer.
func (r Rig) Versions(ctx context.Context) (map[string]string, error) {
	versions := map[string]string{}
	var err error
	if versions["Postgres"], err = r.setting(ctx, "server_version"); err != nil {
		return nil, err
	}
	connection, err := amqp091.Dial(r.AMQPURI)
	if err != nil {
		return nil, fmt.Errorf("RabbitMQ: %w", err)
	}
	versions["RabbitMQ"] = fmt.Sprint(connection.Properties["version"])
	if err := connection.Close(); err != nil {
		return nil, fmt.Errorf("RabbitMQ: %w", err)
	}
	return versions, kafkaCluster{brokers: r.Brokers}.with(func(admin *kadm.Client, _ *kgo.Client) error {
		answers, err := admin.ApiVersions(ctx)
		for _, answer := range answers.Sorted() {
			versions["Kafka"] = answer.VersionGuess()
		}
		return err
	})
}
