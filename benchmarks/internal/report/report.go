// Package report writes down what a run has measured: JSON, a Markdown table and charts.
package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
)

// Report is a whole run.
type Report struct {
	Run         Run                    `json:"run"`
	Figures     []compare.FigureResult `json:"figures"`
	Comparisons []compare.Result       `json:"comparisons"`
}

// Run says how the figures came about.
type Run struct {
	Command  string            `json:"command"`
	Commit   string            `json:"commit"`
	Started  time.Time         `json:"started"`
	Seconds  float64           `json:"seconds"`
	Hardware map[string]string `json:"hardware"`
	Versions map[string]string `json:"versions"`
	// Settings are those of Postgres that matter.
	Settings map[string]string `json:"settings"`
}

// Failed says whether a comparison ended early. (A figure below its target is no failure
// of the run.)
func (r Report) Failed() bool {
	for _, result := range r.Comparisons {
		if result.Error != "" {
			return true
		}
	}
	return false
}

// Write writes results.json, results.md and the charts into a folder.
func (r Report) Write(folder string) error {
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	encoded, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "results.json"), append(encoded, '\n'), 0o600); err != nil {
		return err
	}
	if err := r.writeCharts(folder); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "results.md"), []byte(r.Markdown("")), 0o600)
}

// Read reads what Write wrote.
func Read(folder string) (r Report, err error) {
	encoded, err := os.ReadFile(filepath.Join(folder, "results.json")) //nolint:gosec // the folder is the caller's
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(encoded, &r)
}
