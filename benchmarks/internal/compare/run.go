package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Event says how far a run is.
type Event struct {
	Side   string
	Round  int
	Rounds int
	// Value is the main one, in Unit; Known is false where the side has none.
	Value float64
	Known bool
	Unit  string
	Lost  int
}

// Run has the sides take turns, each round in the opposite order of the last one, so that
// none always runs on what the other left behind. What was measured before an error is in
// the result, with the error.
func Run(ctx context.Context, c Comparison, tell func(Event)) Result {
	if c.Main == "" {
		c.Main, c.Unit = Rate, "messages/s"
	}
	result := Result{Name: c.Name, Title: c.Title, Main: c.Main, Unit: c.Unit}
	if err := run(ctx, c, &result, tell); err != nil {
		result.Error = err.Error()
	}
	for i := range result.Sides {
		result.Sides[i].conclude()
	}
	return result
}

func run(ctx context.Context, c Comparison, result *Result, tell func(Event)) (err error) {
	var clean Cleanup
	defer func() { err = errors.Join(err, clean.Run(context.WithoutCancel(ctx))) }()
	sides, err := c.Open(ctx, &clean)
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	order := make([]int, len(sides))
	result.Sides = make([]SideResult, len(sides))
	for i, side := range sides {
		order[i], result.Sides[i].Name = i, side.Name
	}
	for round := 1; round <= c.Rounds; round++ {
		for place, i := range order {
			sample, err := sides[i].Round(ctx)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", sides[i].Name, round, err)
			}
			result.Sides[i].add(round, place+1, sample)
			value, known := sample.all()[result.Main]
			tell(Event{
				Side: sides[i].Name, Round: round, Rounds: c.Rounds, Value: value, Known: known, Unit: c.Unit, Lost: sample.Lost,
			})
		}
		slices.Reverse(order)
	}
	return nil
}
