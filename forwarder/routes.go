package forwarder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

var (
	// ErrNoRoute says that no route leads from a destination to a broker.
	ErrNoRoute = errors.New("forwarder: no route for the destination")
	// ErrInvalidRoutes says that routes cannot work; the error that wraps it names the
	// route or the broker.
	ErrInvalidRoutes = errors.New("forwarder: invalid routes")
)

// Route leads from destinations to a broker.
type Route struct {
	// Destination is a name, or a pattern in which each * stands for any characters or
	// none.
	Destination string
	// Broker is the name of a broker of NewRoutes.
	Broker string
}

func (r Route) matches(destination string) bool { return covers(r.Destination, destination) }

// covers says whether pattern matches text; where text is a pattern too, whether it
// matches all that text can match.
func covers(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	first, rest := parts[0], parts[1:]
	if len(rest) == 0 {
		return text == first
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	last := len(rest) - 1
	for _, part := range rest[:last] {
		if _, text, ok = strings.Cut(text, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(text, rest[last])
}

// Routes is a publisher for several brokers: each destination goes to the broker of the
// first route that matches it. Give it to New: the forwarder then holds back only the
// destinations of a broker that is away, and the others go on. It is safe for
// concurrent use if the brokers' publishers are.
type Routes struct {
	brokers map[string]message.Publisher
	routes  []Route
}

// NewRoutes returns Routes to brokers, which are given by name. It takes over the
// publishers: Close closes them. Everything that is wrong is reported at once: a route
// to a broker that is not there or behind one that matches all it could match, a broker
// that no route leads to. The error wraps ErrInvalidRoutes.
//
// A message for a destination without a route waits in the outbox, as for a destination
// that its broker does not have. To learn of it at the start, use Require.
func NewRoutes(brokers map[string]message.Publisher, routes []Route) (*Routes, error) {
	errs := []error{}
	if len(brokers) == 0 {
		errs = append(errs, fmt.Errorf("%w: there is no broker", ErrInvalidRoutes))
	}
	used := map[string]bool{}
	for i, route := range routes {
		used[route.Broker] = true
		errs = append(errs, checkRoute(brokers, routes[:i], route))
	}
	for _, name := range slices.Sorted(maps.Keys(brokers)) {
		if brokers[name] == nil {
			errs = append(errs, fmt.Errorf("%w: the publisher of broker %q is nil", ErrInvalidRoutes, name))
		}
		if !used[name] {
			errs = append(errs, fmt.Errorf("%w: no route leads to broker %q", ErrInvalidRoutes, name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Routes{brokers: maps.Clone(brokers), routes: slices.Clone(routes)}, nil
}

func checkRoute(brokers map[string]message.Publisher, earlier []Route, route Route) error {
	switch {
	case route.Destination == "":
		return fmt.Errorf("%w: the route to broker %q has no destination, * stands for all", ErrInvalidRoutes, route.Broker)
	case route.Broker == "":
		return fmt.Errorf("%w: the route from %q has no broker", ErrInvalidRoutes, route.Destination)
	}
	if _, ok := brokers[route.Broker]; !ok {
		return fmt.Errorf("%w: the route from %q leads to %q, brokers are %q",
			ErrInvalidRoutes, route.Destination, route.Broker, slices.Sorted(maps.Keys(brokers)))
	}
	for _, first := range earlier {
		if covers(first.Destination, route.Destination) {
			return fmt.Errorf("%w: the route from %q is never used, %q before it matches all of it",
				ErrInvalidRoutes, route.Destination, first.Destination)
		}
	}
	return nil
}

// Require reports the destinations that no route leads from, for a program that knows
// where it publishes. The error wraps ErrNoRoute.
func (r *Routes) Require(destinations ...string) error {
	errs := make([]error, len(destinations))
	for i, destination := range destinations {
		if _, ok := r.Broker(destination); !ok {
			errs[i] = noRoute(destination)
		}
	}
	return errors.Join(errs...)
}

// Broker returns the name of the broker that the destination's messages go to.
func (r *Routes) Broker(destination string) (name string, ok bool) {
	for _, route := range r.routes {
		if route.matches(destination) {
			return route.Broker, true
		}
	}
	return "", false
}

// Publish sends messages through the broker of the destination, as its publisher does.
// Where there is none the error wraps ErrNoRoute.
func (r *Routes) Publish(destination string, msgs ...*message.Message) error {
	name, ok := r.Broker(destination)
	if !ok {
		return noRoute(destination)
	}
	return r.brokers[name].Publish(destination, msgs...) //nolint:wrapcheck // as the publisher says it
}

// Close closes the publishers of all brokers.
func (r *Routes) Close() error {
	errs := []error{}
	for _, name := range slices.Sorted(maps.Keys(r.brokers)) {
		if err := r.brokers[name].Close(); err != nil {
			errs = append(errs, fmt.Errorf("forwarder: close broker %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func noRoute(destination string) error { return fmt.Errorf("%w: %q", ErrNoRoute, destination) }

// routedPublisher sends the parts of a batch to their brokers at the same time. One
// worker uses it at a time.
type routedPublisher struct {
	routes  *Routes
	brokers map[string]BatchPublisher
}

func newRoutedPublisher(routes *Routes) *routedPublisher {
	p := &routedPublisher{routes: routes, brokers: map[string]BatchPublisher{}}
	for name, publisher := range routes.brokers {
		p.brokers[name] = batchPublisher(publisher)
	}
	return p
}

func (p *routedPublisher) PublishBatch(ctx context.Context, msgs []Outgoing) []error {
	results := make([]error, len(msgs))
	places := map[string][]int{}
	for i, msg := range msgs {
		name, ok := p.routes.Broker(msg.Destination)
		if !ok {
			results[i] = DestinationUnavailable(noRoute(msg.Destination))
			continue
		}
		places[name] = append(places[name], i)
	}
	var brokers sync.WaitGroup
	for name, places := range places {
		brokers.Go(func() { publishPart(ctx, p.brokers[name], msgs, places, results) })
	}
	brokers.Wait()
	return results
}

// publishPart publishes the messages at places, and puts their results there.
func publishPart(ctx context.Context, publisher BatchPublisher, msgs []Outgoing, places []int, results []error) {
	part := make([]Outgoing, len(places))
	for n, i := range places {
		part[n] = msgs[i]
	}
	for n, err := range publishBatch(ctx, publisher, part) {
		results[places[n]] = err
	}
}
