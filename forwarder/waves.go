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
	for queues := queuesOf(msgs); len(queues) > 0; {
		sendWave(ctx, msgs, queues, results, send)
		queues = behind(queues, results)
	}
	return results
}

// queuesOf lists the messages of each unit, as indexes into msgs. No queue is empty.
func queuesOf(msgs []Outgoing) [][]int {
	var queues [][]int
	places := make(map[Unit]int, len(msgs))
	for i, msg := range msgs {
		place, ok := places[msg.Unit()]
		if !ok {
			place = len(queues)
			places[msg.Unit()] = place
			queues = append(queues, nil)
		}
		queues[place] = append(queues[place], i)
	}
	return queues
}

// sendWave sends the head of each queue.
func sendWave(
	ctx context.Context, msgs []Outgoing, queues [][]int, results []error,
	send func(ctx context.Context, wave []Outgoing) []error,
) {
	err := ctx.Err()
	var answers []error
	if err == nil {
		wave := make([]Outgoing, len(queues))
		for n, queue := range queues {
			wave[n] = msgs[queue[0]]
		}
		answers = send(ctx, wave)
		if len(answers) != len(wave) { // nobody knows which message was sent
			err = fmt.Errorf("%w: %d results for %d messages", errResultCount, len(answers), len(wave))
		}
	}
	for n, queue := range queues {
		if err != nil {
			results[queue[0]] = Unavailable(err)
		} else {
			results[queue[0]] = answers[n]
		}
	}
}

// behind returns what is left to send once the heads have their results. What is behind
// a failed one gets its result here.
func behind(queues [][]int, results []error) [][]int {
	left := queues[:0]
	for _, queue := range queues {
		head, rest := queue[0], queue[1:]
		if results[head] != nil {
			for _, i := range rest {
				results[i] = ErrKeyHeld
			}
			continue
		}
		if len(rest) > 0 {
			left = append(left, rest)
		}
	}
	return left
}
