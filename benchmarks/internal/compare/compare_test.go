package compare_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 3, compare.Median([]float64{9, 1, 3}), 0)
	require.InDelta(t, 2.5, compare.Median([]float64{4, 1, 3, 2}), 0)
	require.InDelta(t, 7, compare.Median([]float64{7}), 0)
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var values []float64
	for i := 100; i > 0; i-- {
		values = append(values, float64(i))
	}
	require.InDelta(t, 50, compare.Quantile(0.5, values), 0)
	require.InDelta(t, 99, compare.Quantile(0.99, values), 0)
	require.InDelta(t, 100, compare.Quantile(1, values), 0)
	require.InDelta(t, 5, compare.Quantile(0.99, []float64{5, 1}), 0, "the worst of a few")
}

// script is a side that gives one sample after the other.
func script(name string, turns *[]string, samples ...compare.Sample) compare.Side {
	round := 0
	return compare.Side{Name: name, Round: func(context.Context) (compare.Sample, error) {
		*turns = append(*turns, name)
		round++
		return samples[round-1], nil
	}}
}

func perSecond(rate int) compare.Sample { return compare.Sample{Messages: rate, Took: time.Second} }

func run(t *testing.T, sides ...compare.Side) compare.Result {
	t.Helper()
	return compare.Run(t.Context(), compare.Comparison{
		Name: "test", Rounds: 3,
		Open: func(context.Context, *compare.Cleanup) ([]compare.Side, error) { return sides, nil },
	}, func(compare.Event) {})
}

func TestRun_SidesTakeTurns(t *testing.T) {
	t.Parallel()
	var turns []string
	result := run(t,
		script("a", &turns, perSecond(1), perSecond(2), perSecond(3)),
		script("b", &turns, perSecond(4), perSecond(5), perSecond(6)))
	require.Empty(t, result.Error)
	require.Equal(t, []string{"a", "b", "b", "a", "a", "b"}, turns)
	require.Equal(t, 2, result.Sides[0].Rounds[1].Place)
	require.Equal(t, 1, result.Sides[1].Rounds[1].Place)
	require.Equal(t, compare.Summary{Median: 2, Least: 1, Most: 3}, result.Sides[0].Summary[compare.Rate])
}

// The ratio is taken within the round: the ratio of the medians would be 1.
func TestFigure_IsTheMedianOfTheRoundsRatios(t *testing.T) {
	t.Parallel()
	var turns []string
	result := run(t,
		script("a", &turns, perSecond(100), perSecond(200), perSecond(300)),
		script("b", &turns, perSecond(200), perSecond(400), perSecond(100)))
	figure := compare.Figure{Name: "a ÷ b", Of: "a", Over: "b", Bound: compare.AtLeast, Target: 0.5}.Evaluate(result)
	require.InDelta(t, 0.5, *figure.Value, 1e-9)
	require.InDelta(t, 0.5, *figure.Least, 1e-9)
	require.InDelta(t, 3, *figure.Most, 1e-9)
	require.Equal(t, "ratio", figure.Unit)
	require.True(t, *figure.Met)
}

func TestFigure_Bounds(t *testing.T) {
	t.Parallel()
	var turns []string
	same := compare.Sample{Values: map[string]float64{"ms": 4}}
	result := run(t, script("a", &turns, same, same, same))
	for _, test := range []struct {
		bound  compare.Bound
		target float64
		met    bool
	}{
		{compare.AtMost, 4, true},
		{compare.AtMost, 3.9, false},
		{compare.AtLeast, 4, true},
		{compare.AtLeast, 4.1, false},
	} {
		figure := compare.Figure{Of: "a", Value: "ms", Unit: "ms", Bound: test.bound, Target: test.target}.Evaluate(result)
		require.Equal(t, test.met, *figure.Met, "4 is %s %v", test.bound, test.target)
	}
	reported := compare.Figure{Of: "a", Value: "ms"}.Evaluate(result)
	require.Nil(t, reported.Met)
	require.Nil(t, reported.Target)
	require.InDelta(t, 4, *reported.Value, 0)
}

// A side that loses messages in any of its rounds is wrong, not fast.
func TestFigure_OfASideThatLoses(t *testing.T) {
	t.Parallel()
	var turns []string
	lossy := perSecond(1_000_000)
	lossy.Lost = 1
	result := run(t,
		script("right", &turns, perSecond(10), perSecond(10), perSecond(10)),
		script("lossy", &turns, perSecond(1_000_000), lossy, perSecond(1_000_000)))
	require.Empty(t, result.Sides[0].Wrong)
	require.Equal(t, "lost 1 messages", result.Sides[1].Wrong)
	for _, figure := range []compare.Figure{
		{Of: "lossy", Over: "right", Bound: compare.AtLeast, Target: 1},
		{Of: "right", Over: "lossy", Bound: compare.AtLeast, Target: 0},
		{Of: "lossy", Bound: compare.AtLeast, Target: 1},
	} {
		evaluated := figure.Evaluate(result)
		require.Nil(t, evaluated.Value)
		require.False(t, *evaluated.Met)
		require.Equal(t, "lossy: lost 1 messages", evaluated.Wrong)
	}
}

func TestFigure_OfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	var turns []string
	result := run(t, script("a", &turns, perSecond(1), perSecond(1), perSecond(1)))
	for _, figure := range []compare.Figure{{Of: "b"}, {Of: "a", Over: "b"}, {Of: "a", Value: "ms"}} {
		evaluated := figure.Evaluate(result)
		require.Nil(t, evaluated.Value)
		require.NotEmpty(t, evaluated.Wrong)
	}
}

func TestRun_KeepsWhatWasMeasuredBeforeAnError(t *testing.T) {
	t.Parallel()
	round, closed := 0, false
	side := compare.Side{Name: "a", Round: func(context.Context) (compare.Sample, error) {
		if round++; round == 3 {
			return compare.Sample{}, errors.New("the server is gone")
		}
		return perSecond(round), nil
	}}
	result := compare.Run(t.Context(), compare.Comparison{
		Rounds: 5,
		Open: func(_ context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			clean.Add(func(context.Context) error { closed = true; return nil })
			return []compare.Side{side}, nil
		},
	}, func(compare.Event) {})
	require.Contains(t, result.Error, "a, round 3: the server is gone")
	require.Len(t, result.Sides[0].Rounds, 2)
	require.True(t, closed)
	require.Nil(t, compare.Figure{Of: "a"}.Evaluate(result).Value, "rounds that were not measured are missing")
}

func TestTally(t *testing.T) {
	t.Parallel()
	tally := compare.NewTally("run-", 4)
	for _, number := range []int{1, 3, 3, 3} {
		tally.Add(tally.ID(number))
	}
	var sample compare.Sample
	require.NoError(t, tally.Into(&sample))
	require.Equal(t, 2, sample.Lost, "2 and 4")
	require.Equal(t, 2, sample.Duplicates)
	require.Equal(t, 2, tally.Arrived())

	for _, foreign := range []string{"", "run-", "other-000000000001", tally.ID(5), tally.ID(0), "run-00000000000x"} {
		tally := compare.NewTally("run-", 4)
		tally.Add(foreign)
		require.ErrorContains(t, tally.Into(&sample), "not sent", foreign)
		require.Equal(t, 4, sample.Lost, "it is not taken for one of ours")
	}
}

func TestMeter_MeasuresFromTheStart(t *testing.T) {
	t.Parallel()
	meter := compare.NewMeter(30)
	require.Zero(t, meter.Sample())
	meter.Start()
	for range 3 {
		meter.Add(10)
	}
	meter.Start()
	require.NoError(t, meter.Wait(t.Context(), time.Minute))
	sample := meter.Sample()
	require.Equal(t, 30, sample.Messages)
	require.Positive(t, sample.Took)
	all, first, last := meter.Part(0, 1), meter.Part(0, 2.0/3), meter.Part(2.0/3, 1)
	require.Equal(t, 20, all.Messages, "from the first confirmation on")
	require.Less(t, all.Took, sample.Took)
	require.Equal(t, 10, last.Messages)
	require.Equal(t, all.Took, first.Took+last.Took)
}

func TestMeter_HoldsBackWhatIsTooEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		meter := compare.NewMeter(1)
		go func() {
			meter.AwaitStart(t.Context())
			meter.Add(1)
		}()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's time, in which nothing may be sent
		meter.Start()
		require.NoError(t, meter.Wait(t.Context(), time.Minute))
		require.Less(t, meter.Sample().Took, time.Second)
		require.GreaterOrEqual(t, meter.Sample().Took, time.Duration(0), "sent after the time began to run")
	})
}

func TestMeter_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	meter := compare.NewMeter(30)
	meter.Add(29)
	require.ErrorContains(t, meter.Wait(t.Context(), time.Millisecond), "29 of 30")
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, meter.Wait(ended, time.Minute), context.Canceled)
	meter.Add(1)
	require.NoError(t, meter.Wait(t.Context(), time.Minute))
}

func ExampleTally_ID() {
	fmt.Println(compare.NewTally("a-", 0).ID(7))
	// Output: a-000000000007
}
