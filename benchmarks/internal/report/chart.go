package report

import (
	"fmt"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
)

// Charts are the names of the files, by comparison.
func (r Report) Charts() map[string]string {
	charts := map[string]string{}
	for _, result := range r.Comparisons {
		if len(barsOf(result)) > 0 {
			charts[result.Name] = result.Name + ".svg"
		}
	}
	return charts
}

func (r Report) writeCharts(folder string) error {
	charts := r.Charts()
	for _, result := range r.Comparisons {
		if name, ok := charts[result.Name]; ok {
			if err := drawBars(result, barsOf(result), filepath.Join(folder, name)); err != nil {
				return fmt.Errorf("chart of %s: %w", result.Name, err)
			}
		}
	}
	return nil
}

type bar struct {
	name  string
	value compare.Summary
}

// barsOf leaves out what is wrong: it is not fast.
func barsOf(result compare.Result) (bars []bar) {
	for _, side := range result.Sides {
		if value, ok := side.Summary[result.Main]; ok && side.Wrong == "" {
			bars = append(bars, bar{name: side.Name, value: value})
		}
	}
	slices.Reverse(bars) // the first one is drawn lowest
	return bars
}

const (
	chartWidth  = 18 * vg.Centimeter
	barDistance = 0.9 * vg.Centimeter
	barWidth    = 0.5 * vg.Centimeter
)

// drawBars draws the medians, with the spread of the rounds.
func drawBars(result compare.Result, bars []bar, file string) error {
	p := plot.New()
	p.Title.Text = result.Title
	p.X.Label.Text = result.Unit
	p.X.Min = 0
	medians, spreads, names := make(plotter.Values, len(bars)), spreadPoints{}, make([]string, len(bars))
	for i, b := range bars {
		median := b.value.Median
		medians[i], names[i] = median, b.name
		spreads.XYs = append(spreads.XYs, plotter.XY{X: median, Y: float64(i)})
		spreads.XErrors = append(spreads.XErrors, struct{ Low, High float64 }{median - b.value.Least, b.value.Most - median})
	}
	chart, err := plotter.NewBarChart(medians, barWidth)
	if err != nil {
		return err
	}
	chart.Horizontal = true
	chart.Color = barColor
	chart.LineStyle.Width = 0
	whiskers, err := plotter.NewXErrorBars(spreads)
	if err != nil {
		return err
	}
	p.Add(plotter.NewGrid(), chart, whiskers)
	p.NominalY(names...)
	return p.Save(chartWidth, 3*vg.Centimeter+barDistance*vg.Length(len(bars)), file)
}

// spreadPoints is what gonum's error bars are made of.
type spreadPoints struct {
	plotter.XYs
	plotter.XErrors
}
