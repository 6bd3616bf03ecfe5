package compare

import (
	"errors"
	"fmt"
	"slices"
)

// Evaluate finds the figure in the result of its comparison.
func (f Figure) Evaluate(r Result) FigureResult {
	if f.Value == "" {
		f.Value = Rate
	}
	if f.Unit == "" {
		f.Unit = "ratio"
	}
	out := FigureResult{Name: f.Name, Unit: f.Unit, Bound: f.Bound, Comparison: r.Name}
	values, err := f.values(r)
	if err != nil {
		out.Wrong = err.Error()
	} else {
		s := summarize(values)
		out.Value, out.Least, out.Most = &s.Median, &s.Least, &s.Most
	}
	if f.Bound != Reported {
		out.Target = &f.Target
		out.Met = new(out.Value != nil && f.meets(*out.Value))
	}
	return out
}

func (f Figure) meets(value float64) bool {
	if f.Bound == AtMost {
		return value <= f.Target
	}
	return value >= f.Target
}

// values has one for each round: what disturbs a round disturbs both of its sides, so a
// ratio is taken within the round.
func (f Figure) values(r Result) ([]float64, error) {
	of, err := r.valuesOf(f.Of, f.Value)
	if err != nil || f.Over == "" {
		return of, err
	}
	over, err := r.valuesOf(f.Over, f.Value)
	if err != nil {
		return nil, err
	}
	ratios := make([]float64, min(len(of), len(over)))
	for i := range ratios {
		if over[i] == 0 {
			return nil, fmt.Errorf("%s has a round with 0 %s", f.Over, f.Value)
		}
		ratios[i] = of[i] / over[i]
	}
	return ratios, nil
}

func (r Result) valuesOf(side, value string) ([]float64, error) {
	at := slices.IndexFunc(r.Sides, func(s SideResult) bool { return s.Name == side })
	if at < 0 {
		return nil, fmt.Errorf("%s was not measured", side)
	}
	s := r.Sides[at]
	if s.Wrong != "" {
		return nil, fmt.Errorf("%s: %s", side, s.Wrong)
	}
	if r.Error != "" {
		return nil, errors.New("not all rounds were measured")
	}
	var values []float64
	for _, round := range s.Rounds {
		measured, ok := round.Values[value]
		if !ok {
			return nil, fmt.Errorf("%s has no %s in round %d", side, value, round.Number)
		}
		values = append(values, measured)
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("%s has no round", side)
	}
	return values, nil
}
