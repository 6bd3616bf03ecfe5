package report

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
)

// Markdown is the run for people. The charts are in folder.
func (r Report) Markdown(folder string) string {
	charts := r.Charts()
	var out strings.Builder
	r.writeRun(&out)
	out.WriteString("\n" + r.figures() + "\n")
	for _, result := range r.Comparisons {
		fmt.Fprintf(&out, "\n### %s\n\n%s\n", result.Title, sides(result))
		if result.Error != "" {
			fmt.Fprintf(&out, "\nIt ended early: %s\n", oneLine(result.Error))
		}
		if chart, ok := charts[result.Name]; ok {
			fmt.Fprintf(&out, "\n![%s](%s)\n", result.Title, path.Join(folder, chart))
		}
	}
	return out.String()
}

func (r Report) writeRun(out *strings.Builder) {
	started := r.Run.Started.UTC().Format("2006-01-02 15:04 MST")
	fmt.Fprintf(out, "`%s`, commit %s, %s, %.0f s.\n", r.Run.Command, r.Run.Commit, started, r.Run.Seconds)
	for _, group := range []struct {
		name   string
		values map[string]string
	}{{"Hardware", r.Run.Hardware}, {"Versions", r.Run.Versions}, {"Postgres settings", r.Run.Settings}} {
		items := make([]string, 0, len(group.values))
		for _, name := range slices.Sorted(maps.Keys(group.values)) {
			items = append(items, name+" "+group.values[name])
		}
		fmt.Fprintf(out, "\n%s: %s.\n", group.name, strings.Join(items, ", "))
	}
}

func (r Report) figures() string {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"figure", "value", "spread", "target", "met"})
	for _, f := range r.Figures {
		t.AppendRow(table.Row{f.Name, value(f), spread(f), target(f), met(f)})
	}
	return t.RenderMarkdown()
}

func value(f compare.FigureResult) string {
	if f.Value == nil {
		return "wrong: " + oneLine(f.Wrong)
	}
	return number(*f.Value) + unit(f.Unit)
}

func spread(f compare.FigureResult) string {
	if f.Least == nil || f.Most == nil {
		return ""
	}
	return number(*f.Least) + " – " + number(*f.Most)
}

func target(f compare.FigureResult) string {
	if f.Target == nil {
		return ""
	}
	return fmt.Sprintf("%s %s%s", f.Bound, number(*f.Target), unit(f.Unit))
}

func met(f compare.FigureResult) string {
	switch {
	case f.Met == nil:
		return ""
	case *f.Met:
		return "yes"
	default:
		return "**no**"
	}
}

func unit(name string) string {
	if name == "ratio" {
		return ""
	}
	return " " + name
}

// number has three digits that count, and no exponent.
func number(value float64) string {
	switch size := max(value, -value); {
	case size >= 100 || value == float64(int64(value)):
		return grouped(fmt.Sprintf("%.0f", value))
	case size >= 10:
		return fmt.Sprintf("%.1f", value)
	case size >= 0.1:
		return fmt.Sprintf("%.2f", value)
	default:
		return fmt.Sprintf("%.4f", value)
	}
}

func grouped(digits string) string {
	sign, digits := strings.TrimRight(digits, "0123456789"), strings.TrimLeft(digits, "-")
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

// sides has a line for each side, and a column for each value that any of them has.
func sides(result compare.Result) string {
	names := map[string]bool{}
	for _, side := range result.Sides {
		for name := range side.Summary {
			names[name] = true
		}
	}
	columns := slices.Sorted(maps.Keys(names))
	t := table.NewWriter()
	header := make(table.Row, 1+len(columns))
	header[0] = "side"
	for i, name := range columns {
		header[1+i] = title(name, result.Unit)
	}
	t.AppendHeader(header)
	for _, side := range result.Sides {
		row := make(table.Row, 1+len(columns))
		row[0] = side.Name
		if side.Wrong != "" {
			row[0] = side.Name + ", **wrong: " + side.Wrong + "**"
		}
		for i, name := range columns {
			row[1+i] = cell(side, name)
		}
		t.AppendRow(row)
	}
	return t.RenderMarkdown()
}

func title(value, unit string) string {
	if value == compare.Rate {
		return unit
	}
	return strings.ReplaceAll(value, "_", " ")
}

func cell(side compare.SideResult, value string) string {
	s, ok := side.Summary[value]
	if !ok || (side.Wrong != "" && value == compare.Rate) {
		return ""
	}
	if len(side.Rounds) == 1 {
		return number(s.Median)
	}
	return fmt.Sprintf("%s (%s – %s)", number(s.Median), number(s.Least), number(s.Most))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Summary is the table of figures, for a terminal.
func (r Report) Summary() string { return r.figures() }
