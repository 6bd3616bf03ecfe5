package forwarder

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// repeatAfter is how often an outage that goes on is reported again.
const repeatAfter = time.Minute

// outage tells of a time in which nothing gets through: once when it begins, once a
// minute while it lasts, and once when it is over, for all workers together.
type outage struct {
	what   string // "Broker"
	logger watermill.LoggerAdapter

	mu       sync.Mutex
	since    time.Time // zero: there is none
	reported time.Time
}

func (o *outage) note(message string, err error, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.since.IsZero() {
		o.since = now
	}
	fields := watermill.LogFields{"retry_in": wait}
	if now.Sub(o.reported) < repeatAfter {
		o.logger.Debug(message, fields.Add(watermill.LogFields{"err": err.Error()}))
		return
	}
	o.reported = now
	o.logger.Error(message, err, fields)
}

func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return
	}
	o.logger.Info(o.what+" is back", watermill.LogFields{"after": time.Since(o.since).Round(time.Millisecond)})
	o.since, o.reported = time.Time{}, time.Time{}
}
