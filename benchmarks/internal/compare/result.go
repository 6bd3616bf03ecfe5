package compare

import (
	"fmt"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Round is a sample as it is written down.
type Round struct {
	// Number counts the rounds of a comparison from 1, and Place the turns within it.
	Number int `json:"number"`
	Place  int `json:"place"`

	Messages   int                `json:"messages"`
	Seconds    float64            `json:"seconds"`
	Lost       int                `json:"lost"`
	Duplicates int                `json:"duplicates"`
	Values     map[string]float64 `json:"values"`
}

// Summary says what the rounds of a side gave for one value.
type Summary struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

// SideResult is a side with all its rounds.
type SideResult struct {
	Name string `json:"name"`
	// Wrong says why nothing of the side counts. Empty: it is right.
	Wrong   string             `json:"wrong,omitempty"`
	Summary map[string]Summary `json:"summary"`
	Rounds  []Round            `json:"rounds"`
}

// Result is a comparison with all its rounds.
type Result struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Main is the value that is charted, in Unit.
	Main  string       `json:"main"`
	Unit  string       `json:"unit"`
	Sides []SideResult `json:"sides"`
	// Error says why it ended early. Empty: it did not.
	Error string `json:"error,omitempty"`
}

// FigureResult is a figure with what was measured.
type FigureResult struct {
	Name string `json:"name"`
	// Value is nil where a side is wrong or missing.
	Value *float64 `json:"value"`
	Unit  string   `json:"unit"`
	// Target and Met are nil for figures that are only reported.
	Target *float64 `json:"target"`
	Met    *bool    `json:"met"`

	Bound Bound `json:"bound,omitempty"`
	// Least and Most are the spread over the rounds.
	Least *float64 `json:"least,omitempty"`
	Most  *float64 `json:"most,omitempty"`
	// Wrong says why there is no value.
	Wrong      string `json:"wrong,omitempty"`
	Comparison string `json:"comparison"`
}

// add writes a sample down.
func (r *SideResult) add(number, place int, s Sample) {
	r.Rounds = append(r.Rounds, Round{
		Number: number, Place: place,
		Messages: s.Messages, Seconds: s.Took.Seconds(), Lost: s.Lost, Duplicates: s.Duplicates, Values: s.all(),
	})
}

// conclude sums up the rounds. A side that lost anything in any round is wrong, however
// fast it was.
func (r *SideResult) conclude() {
	lost := 0
	values := map[string][]float64{}
	for _, round := range r.Rounds {
		lost += round.Lost
		for name, value := range round.Values {
			values[name] = append(values[name], value)
		}
	}
	if lost > 0 {
		r.Wrong = fmt.Sprintf("lost %d messages", lost)
	}
	r.Summary = make(map[string]Summary, len(values))
	for name, all := range values {
		r.Summary[name] = summarize(all)
	}
}

func summarize(values []float64) Summary {
	return Summary{Median: Median(values), Least: slices.Min(values), Most: slices.Max(values)}
}

// Median returns the middle one of values, or what is halfway between the two in the
// middle. There must be one at least.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Quantile returns the least of values that is not below the share p of them, such as 0.99.
// There must be one at least. It sorts values.
func Quantile(p float64, values []float64) float64 {
	slices.Sort(values)
	return stat.Quantile(p, stat.Empirical, values, nil)
}
