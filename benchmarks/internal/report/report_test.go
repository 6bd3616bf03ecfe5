package report_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/report"
)

func sample() report.Report {
	values := map[string]float64{compare.Rate: 1234.5}
	side := compare.SideResult{
		Name:    "ours",
		Rounds:  []compare.Round{{Number: 1, Place: 1, Messages: 10, Seconds: 0.5, Values: values}},
		Summary: map[string]compare.Summary{compare.Rate: {Median: 1234.5, Least: 1000, Most: 2000}},
	}
	lossy := side
	lossy.Name, lossy.Wrong = "lossy", "lost 3 messages"
	result := compare.Result{Name: "drain", Title: "A drain", Main: compare.Rate, Unit: "messages/s", Sides: []compare.SideResult{side, lossy}}
	return report.Report{
		Run: report.Run{
			Command: "bench -run drain", Commit: "abc", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 12,
			Hardware: map[string]string{"cores": "2"}, Versions: map[string]string{"Go": "1.26"}, Settings: map[string]string{"fsync": "on"},
		},
		Comparisons: []compare.Result{result},
		Figures: []compare.FigureResult{
			{Name: "ours ÷ floor", Value: new(0.97), Unit: "ratio", Bound: compare.AtLeast, Target: new(0.95), Met: new(true), Comparison: "drain"},
			{Name: "slow ÷ floor", Value: new(0.5), Unit: "ratio", Bound: compare.AtLeast, Target: new(0.95), Met: new(false), Comparison: "drain"},
			{Name: "ours", Value: new(1234.5), Unit: "messages/s", Comparison: "drain"},
			{Name: "lossy", Unit: "ratio", Bound: compare.AtLeast, Target: new(1.0), Met: new(false), Wrong: "lost 3 messages", Comparison: "drain"},
		},
	}
}

// Programs read figures by these names.
func TestWrite_JSON(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "results")
	require.NoError(t, sample().Write(folder))
	encoded, err := os.ReadFile(filepath.Join(folder, "results.json"))
	require.NoError(t, err)
	var read struct {
		Figures []map[string]any `json:"figures"`
		Run     map[string]any   `json:"run"`

		Comparisons []struct {
			Sides []struct {
				Name   string           `json:"name"`
				Wrong  string           `json:"wrong"`
				Rounds []map[string]any `json:"rounds"`
			} `json:"sides"`
		} `json:"comparisons"`
	}
	require.NoError(t, json.Unmarshal(encoded, &read))
	require.Len(t, read.Figures, 4)
	require.Subset(t, read.Figures[0], map[string]any{
		"name": "ours ÷ floor", "value": 0.97, "unit": "ratio", "target": 0.95, "met": true,
	})
	require.Equal(t, false, read.Figures[1]["met"])
	for _, key := range []string{"target", "met"} {
		require.Contains(t, read.Figures[2], key)
		require.Nil(t, read.Figures[2][key], "only reported")
	}
	require.Nil(t, read.Figures[3]["value"], "what is wrong has no value")
	require.Equal(t, "lost 3 messages", read.Comparisons[0].Sides[1].Wrong)
	require.Subset(t, read.Comparisons[0].Sides[0].Rounds[0], map[string]any{"number": 1.0, "messages": 10.0, "seconds": 0.5, "lost": 0.0})
	for _, key := range []string{"command", "commit", "hardware", "versions", "settings", "started", "seconds"} {
		require.Contains(t, read.Run, key)
	}

	again, err := report.Read(folder)
	require.NoError(t, err)
	require.Equal(t, sample(), again)
}

func TestWrite_Markdown(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, sample().Write(folder))
	text, err := os.ReadFile(filepath.Join(folder, "results.md"))
	require.NoError(t, err)
	for _, line := range []string{
		"`bench -run drain`, commit abc, 2026-01-02 03:04 UTC, 12 s.",
		"Hardware: cores 2.",
		"| ours ÷ floor | 0.97 |  | at least 0.95 | yes |",
		"| slow ÷ floor | 0.50 |  | at least 0.95 | **no** |",
		"| ours | 1,234 messages/s |  |  |  |",
		"| lossy | wrong: lost 3 messages |  | at least 1 | **no** |",
		"| ours | 1,234 |",
		"| lossy, **wrong: lost 3 messages** |  |",
		"![A drain](drain.svg)",
	} {
		require.Contains(t, string(text), line)
	}
}

// What loses messages is not shown as fast.
func TestWrite_ChartLeavesOutWhatIsWrong(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, sample().Write(folder))
	chart, err := os.ReadFile(filepath.Join(folder, "drain.svg"))
	require.NoError(t, err)
	require.Contains(t, string(chart), "<svg")
	require.Contains(t, string(chart), "ours")
	require.NotContains(t, string(chart), "lossy")
}

func TestFailed(t *testing.T) {
	t.Parallel()
	r := sample()
	require.False(t, r.Failed(), "a target that is missed is a figure, not a failure")
	r.Comparisons[0].Error = "the server is gone"
	require.True(t, r.Failed())
}

func TestUpdateReadme(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "README.md")
	require.NoError(t, os.WriteFile(file, []byte("before\n"+report.Begin+"\nold\n"+report.End+"\nafter\n"), 0o600))
	require.NoError(t, report.UpdateReadme(file, "new\n"))
	updated, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "before\n"+report.Begin+"\n\nnew\n\n"+report.End+"\nafter\n", string(updated))

	require.NoError(t, os.WriteFile(file, []byte("no marks"), 0o600))
	require.ErrorContains(t, report.UpdateReadme(file, "new"), "marks")
}
