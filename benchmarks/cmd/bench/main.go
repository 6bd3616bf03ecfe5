// Program bench measures the outbox beside what users have today and beside what is
// possible at all, on real servers. See the README.md beside the module's go.mod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/report"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/benchmarks/internal/suite"
)

type options struct {
	short  bool
	list   bool
	only   *regexp.Regexp
	rounds int
	// tenMillion adds the largest backlog.
	tenMillion bool
	results    string
	readme     string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 1 && args[0] == suite.DrainCommand {
		return suite.Drain(ctx, os.Stdout)
	}
	opts, err := parse(args)
	if err != nil {
		return err
	}
	return run(ctx, opts)
}

func parse(args []string) (opts options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&opts.short, "short", false, "a first impression: fewer rows and rounds")
	flags.BoolVar(&opts.list, "list", false, "list the comparisons and end")
	flags.IntVar(&opts.rounds, "rounds", 0, "rounds of each comparison, in place of its own number")
	flags.StringVar(&opts.results, "results", "results/latest", "the folder to write to")
	flags.StringVar(&opts.readme, "readme", "", "measure nothing, write the results into this file, between its marks")
	flags.BoolVar(&opts.tenMillion, "ten-million", false, "a backlog of 10 million rows as well; it takes some 8 GiB of disk")
	only := flags.String("run", "", "only comparisons whose name matches this regular expression")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	opts.only, err = regexp.Compile(*only)
	return opts, err
}

func (o options) comparisons(r rig.Rig) (chosen []compare.Comparison) {
	scale := suite.Long
	if o.short {
		scale = suite.Short
	}
	if o.tenMillion {
		scale.Backlogs = append(slices.Clone(scale.Backlogs), 10_000_000)
	}
	for _, c := range suite.All(r, scale) {
		if !o.only.MatchString(c.Name) {
			continue
		}
		if o.rounds > 0 {
			c.Rounds = o.rounds
		}
		chosen = append(chosen, c)
	}
	return chosen
}

// updateReadme writes what an earlier run has measured.
func updateReadme(opts options) error {
	r, err := report.Read(opts.results)
	if err != nil {
		return err
	}
	folder, err := filepath.Rel(filepath.Dir(opts.readme), opts.results)
	if err != nil {
		return err
	}
	return report.UpdateReadme(opts.readme, r.Markdown(folder))
}

func run(ctx context.Context, opts options) error {
	if opts.readme != "" {
		return updateReadme(opts)
	}
	r := rig.FromEnvironment()
	chosen := opts.comparisons(r)
	if opts.list {
		for _, c := range chosen {
			fmt.Printf("%-28s %s\n", c.Name, c.Title)
		}
		return nil
	}
	if len(chosen) == 0 {
		return errors.New("no comparison has such a name; -list shows them")
	}
	started := time.Now()
	out := report.Report{Run: report.Run{Command: strings.Join(append([]string{"bench"}, os.Args[1:]...), " "), Started: started}}
	if err := out.Run.Describe(ctx, r); err != nil {
		return err
	}
	p := progress{started: started, comparisons: len(chosen)}
	for _, c := range chosen {
		p.begin(c)
		result := compare.Run(ctx, c, p.tell)
		out.Comparisons = append(out.Comparisons, result)
		if result.Error != "" {
			p.linef("ended early: %s", result.Error)
		}
		for _, figure := range c.Figures {
			out.Figures = append(out.Figures, figure.Evaluate(result))
		}
		out.Run.Seconds = time.Since(started).Seconds()
		if err := out.Write(opts.results); err != nil { // what is measured is kept, whatever comes
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Printf("\n%s\nwritten to %s\n", out.Summary(), opts.results)
	if out.Failed() {
		return errors.New("a comparison ended early")
	}
	return nil
}
