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
	ended    time.Time // the last one
}

// note tells of a failure of something that began at a time. What began in the last
// outage tells nothing new after it.
func (o *outage) note(message string, err error, wait time.Duration, began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if began.Before(o.ended) {
		return
	}
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

// over says whether there was an outage until now.
func (o *outage) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return false
	}
	o.logger.Info(o.what+" is back", watermill.LogFields{"after": time.Since(o.since).Round(time.Millisecond)})
	o.since, o.reported, o.ended = time.Time{}, time.Time{}, time.Now()
	return true
}
