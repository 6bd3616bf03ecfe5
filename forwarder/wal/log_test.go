package wal_test

import (
	"sync"

	"github.com/ThreeDotsLabs/watermill"
)

// log keeps the fields of what is logged.
type log struct {
	mu    sync.Mutex
	lines []watermill.LogFields
}

// reasons are the values of that field, where a line has it.
func (l *log) reasons() (values []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if value, has := line["reason"]; has {
			values = append(values, value)
		}
	}
	return values
}

func (l *log) add(fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fields)
}

func (l *log) Error(_ string, _ error, fields watermill.LogFields) { l.add(fields) }
func (l *log) Info(_ string, fields watermill.LogFields)           { l.add(fields) }
func (l *log) Debug(string, watermill.LogFields)                   {}
func (l *log) Trace(string, watermill.LogFields)                   {}
func (l *log) With(watermill.LogFields) watermill.LoggerAdapter    { return l }
