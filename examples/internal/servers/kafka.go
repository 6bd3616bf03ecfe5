package servers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 4
	// topicPoll is how often a broker is asked for topics that it is about to make.
	topicPoll = 50 * time.Millisecond
)

func (s *Servers) requireKafka(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err := s.withAdmin(func(admin *kadm.Client) error {
		_, err := admin.BrokerMetadata(ctx)
		return err
	})
	if err != nil {
		brokers := strings.Join(s.Broker.Kafka.Brokers, ",")
		return fmt.Errorf("no Kafka at %s: run \"make services\", or set KAFKA_BROKERS: %w", brokers, err)
	}
	return nil
}

// createTopics returns once the topics can be written to.
func (s *Servers) createTopics(ctx context.Context, topics []string) error {
	s.onClose(func(ctx context.Context) error { return s.deleteTopics(ctx, topics) })
	err := s.withAdmin(func(admin *kadm.Client) error {
		created, err := admin.CreateTopics(ctx, partitions, -1, nil, topics...)
		if err := errors.Join(err, created.Error()); err != nil {
			return err
		}
		return awaitLeaders(ctx, admin, topics)
	})
	if err != nil {
		return fmt.Errorf("create topics %q: %w", topics, err)
	}
	return nil
}

func awaitLeaders(ctx context.Context, admin *kadm.Client, topics []string) error {
	ticker := time.NewTicker(topicPoll)
	defer ticker.Stop()
	for {
		details, err := admin.ListTopics(ctx, topics...)
		if err == nil && haveLeaders(details, topics) {
			// A leader may hear of it later than those who ask for leaders.
			var ends kadm.ListedOffsets
			if ends, err = admin.ListEndOffsets(ctx, topics...); err == nil && ends.Error() == nil {
				return nil
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err, details.Error())
		}
	}
}

func haveLeaders(details kadm.TopicDetails, topics []string) bool {
	for _, topic := range topics {
		detail, ok := details[topic]
		if !ok || detail.Err != nil || len(detail.Partitions) != partitions {
			return false
		}
		for _, partition := range detail.Partitions {
			if partition.Err != nil || partition.Leader < 0 {
				return false
			}
		}
	}
	return true
}

func (s *Servers) deleteTopics(ctx context.Context, topics []string) error {
	return s.withAdmin(func(admin *kadm.Client) error {
		var errs []error
		if len(s.groups) > 0 {
			deleted, err := admin.DeleteGroups(ctx, s.groups...)
			errs = append(errs, err)
			for _, group := range deleted {
				errs = append(errs, ignore(group.Err, kerr.GroupIDNotFound))
			}
		}
		deleted, err := admin.DeleteTopics(ctx, topics...)
		errs = append(errs, err)
		for _, topic := range deleted {
			errs = append(errs, ignore(topic.Err, kerr.UnknownTopicOrPartition))
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("delete topics and consumer groups: %w", err)
		}
		return nil
	})
}

func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

func (s *Servers) withAdmin(use func(*kadm.Client) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Broker.Kafka.Brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	return use(kadm.NewClient(client))
}
