package forwarder

import (
	"context"
	"fmt"
)

// Waves sends msgs through send in waves: each holds at most one message of a unit,
// and a unit's next message goes out only after its last one was confirmed. So at
// most one message per unit is unconfirmed at any time, and none overtakes a failed
// one: those behind it get ErrKeyHeld. With distinct keys the first wave is the whole
// batch. Once ctx has ended no further wave is sent; what is left gets
// Unavailable(ctx's error).
//
// send gets the messages of one wave in the order given and returns one result for
// each.
func Waves(ctx context.Context, msgs []Outgoing, send func(ctx context.Context, wave []Outgoing) []error) []error {
	results := make([]error, len(msgs))
	failed := map[Unit]bool{}
	waiting := make([]int, len(msgs)) // indexes into msgs
	for i := range msgs {
		waiting[i] = i
	}
	for len(waiting) > 0 {
		wave, later := nextWave(msgs, waiting, failed, results)
		if len(wave) > 0 {
			sendWave(ctx, msgs, wave, failed, results, send)
		}
		waiting = later
	}
	return results
}

// nextWave takes the first waiting message of each unit; what is behind a failed one
// gets its result here and waits no longer.
func nextWave(msgs []Outgoing, waiting []int, failed map[Unit]bool, results []error) (wave, later []int) {
	taken := make(map[Unit]bool, len(waiting))
	for _, i := range waiting {
		unit := msgs[i].Unit()
		switch {
		case failed[unit]:
			results[i] = ErrKeyHeld
		case taken[unit]:
			later = append(later, i)
		default:
			taken[unit] = true
			wave = append(wave, i)
		}
	}
	return wave, later
}

func sendWave(
	ctx context.Context,
	msgs []Outgoing,
	wave []int,
	failed map[Unit]bool,
	results []error,
	send func(ctx context.Context, wave []Outgoing) []error,
) {
	if err := ctx.Err(); err != nil {
		for _, i := range wave {
			results[i] = Unavailable(err)
			failed[msgs[i].Unit()] = true
		}
		return
	}
	outgoing := make([]Outgoing, len(wave))
	for n, i := range wave {
		outgoing[n] = msgs[i]
	}
	answers := send(ctx, outgoing)
	for n, i := range wave {
		if len(answers) != len(wave) { // nobody knows which message was sent
			results[i] = Unavailable(fmt.Errorf("%w: %d results for %d messages", errResultCount, len(answers), len(wave)))
		} else {
			results[i] = answers[n]
		}
		if results[i] != nil {
			failed[msgs[i].Unit()] = true
		}
	}
}
