// Package compare measures sides against each other: they take turns in one run, and what
// counts is the ratio within each round.
package compare

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// Rate is the value that every sample with messages has: messages a second.
const Rate = "per_second"

// Sample is what one round of a side gave.
type Sample struct {
	// Messages were sent in the time of Took.
	Messages int
	Took     time.Duration
	// Lost are messages that did not arrive at the far end, Duplicates those that arrived
	// once more.
	Lost, Duplicates int
	// Values are further measurements, by name.
	Values map[string]float64
}

// all are the sample's values, with the rate.
func (s Sample) all() map[string]float64 {
	values := make(map[string]float64, len(s.Values)+1)
	maps.Copy(values, s.Values)
	if s.Messages > 0 && s.Took > 0 {
		values[Rate] = float64(s.Messages) / s.Took.Seconds()
	}
	return values
}

// Side is one of those that are compared.
type Side struct {
	Name string
	// Round prepares, measures one round and leaves nothing behind that slows the next one.
	Round func(ctx context.Context) (Sample, error)
}

// Comparison is a group of sides that take turns.
type Comparison struct {
	// Name is short and unique: it is what -run selects by.
	Name string
	// Title is for people.
	Title string
	// Main names the value that charts and the progress show, in Unit. Default: Rate, in
	// messages/s.
	Main, Unit string
	// Rounds is how often each side has its turn.
	Rounds int
	// Open prepares what the sides share. What it adds to clean is called at the end,
	// whatever happens.
	Open func(ctx context.Context, clean *Cleanup) ([]Side, error)
	// Figures are what the comparison is made for.
	Figures []Figure
}

// Bound says on which side of its target a figure should be.
type Bound string

const (
	// AtLeast is for what should be high.
	AtLeast Bound = "at least"
	// AtMost is for what should be low.
	AtMost Bound = "at most"
	// Reported is for figures without a target.
	Reported Bound = ""
)

// Figure is a value of a side, or its ratio to that of another side.
type Figure struct {
	Name string
	// Of names the side.
	Of string
	// Over names the side to divide by. Empty: the value stands for itself.
	Over string
	// Value names the value. Default: Rate.
	Value string
	// Unit is that of the figure. Default: ratio.
	Unit   string
	Bound  Bound
	Target float64
}

// Cleanup is what is to be done at the end. The zero value is ready.
type Cleanup struct {
	steps []func(ctx context.Context) error
}

// Add adds a step, which is done before those that were added earlier.
func (c *Cleanup) Add(step func(ctx context.Context) error) { c.steps = append(c.steps, step) }

// Run does all steps, whatever comes of each.
func (c *Cleanup) Run(ctx context.Context) error {
	errs := make([]error, 0, len(c.steps))
	for _, step := range slices.Backward(c.steps) {
		errs = append(errs, step(ctx))
	}
	c.steps = nil
	return errors.Join(errs...)
}
