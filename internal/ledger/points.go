package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/watermill-outbox/outbox/forwarder"
)

// Point is a moment in the life of a batch at which a replica can be killed or frozen.
type Point string

const (
	// AfterClaim is when rows are locked, nothing is sent.
	AfterClaim Point = "after_claim"
	// AfterPublish is when the broker has confirmed a message at least.
	AfterPublish Point = "after_publish"
	// BeforeSettle is when the statement that settles is about to be sent.
	BeforeSettle Point = "before_settle"
	// InCommit is when COMMIT is on its way, and may or may not be carried out.
	InCommit Point = "in_commit"
)

// Points are all of them, in their order.
var Points = []Point{AfterClaim, AfterPublish, BeforeSettle, InCommit}

// What a child is told through its standard input, and what it says.
const (
	killCommand = "kill "
	haltCommand = "halt "
	goOnCommand = "go on"
	haltedLine  = "halted"
)

// points is the child's side: what to do at the next point of a kind.
type points struct {
	mu   sync.Mutex
	kill Point
	halt Point
	goOn chan struct{}
}

func (p *points) obey(command string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, ok := strings.CutPrefix(command, killCommand); ok {
		p.kill = Point(at)
	}
	if at, ok := strings.CutPrefix(command, haltCommand); ok {
		p.halt, p.goOn = Point(at), make(chan struct{})
	}
	if command == goOnCommand && p.goOn != nil {
		close(p.goOn)
		p.goOn = nil
	}
}

// reach is called at each point. A worker that is to halt waits here; the parent
// freezes the whole process then.
func (p *points) reach(at Point) {
	p.mu.Lock()
	kill, goOn := p.kill == at, p.goOn
	halt := p.halt == at && goOn != nil
	if halt {
		p.halt = ""
	}
	p.mu.Unlock()
	if kill {
		die()
	}
	if halt {
		fmt.Println(haltedLine)
		<-goOn
	}
}

// commit carries out a COMMIT, which is where a process dies in the middle of.
func (p *points) commit(commit func() error) error {
	p.mu.Lock()
	kill := p.kill == InCommit
	p.mu.Unlock()
	if kill {
		go func() { _ = commit() }()
		<-time.After(rand.N(2 * time.Millisecond))
		die()
	}
	p.reach(InCommit)
	return commit()
}

type pointedPublisher struct {
	publisher

	points *points
}

func (p pointedPublisher) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	p.points.reach(AfterClaim)
	results := p.publisher.PublishBatch(ctx, msgs)
	if anyConfirmed(results) {
		p.points.reach(AfterPublish)
	}
	return results
}
