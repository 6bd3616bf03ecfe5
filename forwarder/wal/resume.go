package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/watermill-outbox/outbox/schema"
)

// Resume has the forwarders read the log again after the slot was suspended: they make it anew, and
// drain the table. It connects with the ReplicationDSN, from any process. Where nothing is suspended it
// does nothing. In SQL, it is
//
//	UPDATE outbox_slots SET suspended_at = NULL, suspended_because = NULL WHERE slot = '…';
func (s *Source) Resume(ctx context.Context) error {
	conn, err := s.connectPlainly(ctx)
	if err != nil {
		return err
	}
	_, err = query(ctx, conn, `UPDATE `+s.config.Schema.Slots()+` SET suspended_at = NULL, suspended_because = NULL
		WHERE slot = `+text(s.config.Slot)+` AND suspended_at IS NOT NULL`)
	if err != nil {
		return errors.Join(fmt.Errorf("wal: resume: %w", schema.Explain(err)), hangUp(ctx, conn))
	}
	s.logger.Info("The slot is resumed", nil)
	return hangUp(ctx, conn)
}
