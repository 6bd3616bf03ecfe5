package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// modelUnits hold two units of one hash.
var modelUnits = []Unit{
	{Destination: "gone", PartitionKey: "k39705"},
	{Destination: "up", PartitionKey: "k3382"},
	{Destination: "gone", PartitionKey: "a"},
	{Destination: "up", PartitionKey: "b"},
	{Destination: "other", PartitionKey: "c"},
	{Destination: "other", PartitionKey: "d"},
}

var errModel = errors.New("test: no")

// delivery is the first of a message.
type delivery struct {
	number int
	at     time.Time
}

// model is a broker that fails as it likes, until it is told to be calm.
type model struct {
	nopPublisher

	mu     sync.Mutex
	random *rand.Rand
	calm   bool
	away   map[string]bool // destinations; "" is the broker
	first  map[Unit][]delivery
	seen   map[Unit]map[int]bool
}

func (m *model) roll(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.random.IntN(n)
}

func (m *model) PublishBatch(ctx context.Context, msgs []Outgoing) []error {
	return Waves(ctx, msgs, func(ctx context.Context, wave []Outgoing) []error {
		if m.roll(20) == 0 { // slow enough for others to come in between
			sleep(ctx, time.Duration(m.roll(10))*time.Millisecond, nil)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		results := make([]error, len(wave))
		breaks := len(wave)
		if m.random.IntN(10) == 0 {
			breaks = m.random.IntN(len(wave) + 1)
		}
		for i, msg := range wave {
			if results[i] = m.refusal(msg, i >= breaks); results[i] == nil {
				m.note(msg)
			}
		}
		return results
	})
}

func (m *model) refusal(msg Outgoing, broken bool) error {
	chance := m.random.IntN(100)
	switch {
	case strings.HasPrefix(msg.Message.UUID, "poison"):
		return Refused(errModel)
	case m.calm:
		return nil
	case broken || m.away[""]:
		return Unavailable(errModel)
	case m.away[msg.Destination] || chance < 2:
		return DestinationUnavailable(errModel)
	case chance < 8:
		return Refused(errModel)
	case chance < 10:
		return errModel
	case chance < 11:
		return Permanent(errModel)
	}
	return nil
}

func (m *model) note(msg Outgoing) {
	unit, number := msg.Unit(), numberOf(msg.Message.UUID)
	if m.seen[unit] == nil {
		m.seen[unit] = map[int]bool{}
	}
	if !m.seen[unit][number] {
		m.seen[unit][number] = true
		m.first[unit] = append(m.first[unit], delivery{number, time.Now()})
	}
}

func numberOf(id string) int {
	number, err := strconv.Atoi(id[strings.LastIndex(id, "-")+1:])
	if err != nil {
		panic(err)
	}
	return number
}

func (m *model) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// deployment is what its replicas are configured with, each with one of a list.
type deployment struct {
	orderings []Ordering
	policies  []DeadLetterPolicy
}

// orders says whether units keep their order.
func (d deployment) orders() bool { return !slices.Contains(d.orderings, None) }

// simulation runs forwarders, producers and operators on one outbox.
type simulation struct {
	t  *testing.T
	db *testdb.DB
	// watch is the test's own pool: its sessions are not killed.
	watch      *sql.DB
	model      *model
	deployment deployment
	// ordered is since when units keep their order.
	ordered time.Time
	// flows says that operators put rows back into the flow, instead of making them due.
	flows bool

	mu      sync.Mutex
	deleted map[Unit]map[int]bool
	// blocking are dead letters that have blocked their units.
	blocking map[Unit]map[int]bool
}

// config is another one at each start.
func (s *simulation) config() Config {
	settlements := []Settlement{Delete, MarkPublished}
	return Config{
		Schema:          s.db.Schema,
		Ordering:        s.deployment.orderings[s.model.roll(len(s.deployment.orderings))],
		OnDeadLetter:    s.deployment.policies[s.model.roll(len(s.deployment.policies))],
		Settlement:      settlements[s.model.roll(2)],
		Workers:         1 + s.model.roll(3),
		BatchSize:       1 + s.model.roll(20),
		BatchBytes:      1 + s.model.roll(2000),
		PollInterval:    10 * time.Millisecond,
		RetryInitial:    2 * time.Millisecond,
		RetryMax:        10 * time.Millisecond,
		MaxAttempts:     1 + s.model.roll(6),
		DatabaseTimeout: time.Second,
	}
}

// forwarder is a replica, of which the patrol comes more often than it does otherwise.
func (s *simulation) forwarder(ctx context.Context) {
	f, err := New(s.db.DB, s.model, s.config(), nil)
	if err != nil {
		s.t.Errorf("new forwarder: %v", err)
		return
	}
	version, err := f.waitForDatabase(ctx)
	if err != nil { // it was stopped
		assert.ErrorIs(s.t, err, errStopped)
		return
	}
	newWorker := f.workers(version)
	var all sync.WaitGroup
	for range f.config.Workers {
		w := newWorker()
		all.Go(func() { w.run(ctx) })
	}
	prober, patrol := newProber(newWorker()), newPatrol(newWorker())
	all.Go(func() { prober.run(ctx) })
	all.Go(func() {
		for ctx.Err() == nil {
			_ = errors.Join(patrol.look(ctx), patrol.tour(ctx), patrol.dropStale(ctx)) // sessions are killed
			sleep(ctx, 200*time.Millisecond, nil)
		}
	})
	all.Wait()
}

// replica is started again and again.
func (s *simulation) replica(ctx context.Context) {
	for ctx.Err() == nil {
		life, end := context.WithTimeout(ctx, time.Duration(50+s.model.roll(600))*time.Millisecond)
		s.forwarder(life)
		end()
	}
}

// produce writes a unit's rows one after another.
func (s *simulation) produce(ctx context.Context, unit Unit) (rows int) {
	for rows < 150 && ctx.Err() == nil {
		tx, err := s.db.BeginTx(context.WithoutCancel(ctx), nil)
		if err != nil {
			continue // the session was killed
		}
		wrote := 0
		for range 1 + s.model.roll(4) {
			id := fmt.Sprintf("m-%d", rows+wrote)
			if s.model.roll(50) == 0 {
				id = "poison" + id
			}
			_, err = tx.ExecContext(context.WithoutCancel(ctx), `INSERT INTO `+s.db.Schema.Outbox()+` (id, destination, partition_key, payload)
				VALUES ($1, $2, $3, $4)`, id, unit.Destination, unit.PartitionKey, strings.Repeat("x", s.model.roll(150)))
			if err != nil {
				break
			}
			wrote++
		}
		sleep(ctx, time.Duration(s.model.roll(10))*time.Millisecond, nil)
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			_ = tx.Rollback()
			continue
		}
		rows += wrote
		sleep(ctx, time.Duration(s.model.roll(20))*time.Millisecond, nil)
	}
	return rows
}

// upset has brokers, sessions and rows meet with something, now and then.
func (s *simulation) upset(ctx context.Context) {
	outbox := s.db.Schema.Outbox()
	const head = `seq = (SELECT min(seq) FROM %outbox WHERE published_at IS NULL AND destination = $1 AND partition_key = $2)`
	const exact = ` AND destination = $1 AND partition_key = $2 AND published_at IS NULL`
	statements := []string{
		`SELECT id FROM %outbox WHERE ` + head + exact + ` FOR UPDATE`,
		`SELECT id FROM %outbox WHERE ` + head + exact + ` FOR UPDATE`,
		`UPDATE %outbox SET next_attempt_at = now() + interval '50 ms' WHERE ` + head + exact + ` RETURNING id`,
		`DELETE FROM %outbox WHERE ` + head + exact + ` RETURNING id`,
	}
	// A row that is put back into the flow is overtaken by one behind it that is made due.
	if s.flows {
		statements = append(statements,
			`UPDATE %outbox AS o SET next_attempt_at = NULL WHERE next_attempt_at IS NOT NULL AND `+head+exact+`
			AND EXISTS (SELECT FROM %outbox AS b WHERE b.unit_hash = o.unit_hash AND b.destination = $1
				AND b.seq > o.seq AND b.next_attempt_at = 'infinity') RETURNING id`,
		)
	} else {
		statements = append(statements,
			`UPDATE %outbox SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL`+exact+` RETURNING id`,
			`UPDATE %outbox SET next_attempt_at = now() WHERE next_attempt_at = 'infinity'`+exact+` AND random() < 0.2 RETURNING id`,
		)
	}
	for ctx.Err() == nil {
		sleep(ctx, time.Duration(s.model.roll(30))*time.Millisecond, nil)
		switch what := s.model.roll(len(statements) + 4); {
		case what < len(statements):
			unit := modelUnits[s.model.roll(len(modelUnits))]
			s.operate(ctx, strings.ReplaceAll(statements[what], "%outbox", outbox), unit)
		case what == len(statements):
			_, _ = s.db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid() ORDER BY random() LIMIT 2`)
		default:
			names := []string{"", "gone", "up", "gone"}
			s.model.set(func() {
				name := names[s.model.random.IntN(len(names))]
				s.model.away[name] = !s.model.away[name] && s.model.random.IntN(3) > 0
			})
		}
	}
}

// operate holds its locks for a while.
func (s *simulation) operate(ctx context.Context, statement string, unit Unit) {
	tx, err := s.db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	var id sql.NullString
	_ = tx.QueryRowContext(context.WithoutCancel(ctx), statement, unit.Destination, unit.PartitionKey).Scan(&id)
	sleep(ctx, time.Duration(s.model.roll(40)*s.model.roll(4))*time.Millisecond, nil)
	deletes := id.Valid && strings.HasPrefix(statement, "DELETE")
	if deletes { // before, since its commit may be done and its answer be lost
		s.mu.Lock()
		s.deleted[unit][numberOf(id.String)] = true
		s.mu.Unlock()
	}
	_ = tx.Commit()
}

func (s *simulation) letters() map[Unit]map[int]time.Time {
	letters := map[Unit]map[int]time.Time{}
	rows, err := s.watch.QueryContext(s.t.Context(), `SELECT id, destination, partition_key, dead_at FROM `+s.db.Schema.DeadLetters())
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		var (
			id   string
			unit Unit
			at   time.Time
		)
		require.NoError(s.t, rows.Scan(&id, &unit.Destination, &unit.PartitionKey, &at))
		if letters[unit] == nil {
			letters[unit] = map[int]time.Time{}
		}
		letters[unit][numberOf(id)] = at
	}
	require.NoError(s.t, rows.Err())
	return letters
}

// check looks for what is lost, and for what was overtaken.
func (s *simulation) check(unit Unit, rows int, letters map[int]time.Time, unblocked time.Time) {
	first := map[int]time.Time{}
	for _, d := range s.model.first[unit] {
		first[d.number] = d.at
	}
	gone := func(n int, at time.Time) bool {
		delivered, ok := first[n]
		dead, isDead := letters[n]
		return s.deleted[unit][n] || ok && !delivered.After(at) || isDead && dead.Before(at)
	}
	for n := range rows {
		require.Truef(s.t, gone(n, time.Now()), "%v: %d of %d is lost", unit, n, rows)
	}
	if !s.deployment.orders() {
		return
	}
	for _, d := range s.model.first[unit] {
		if d.at.Before(s.ordered) {
			continue
		}
		for n := range d.number {
			require.Truef(s.t, gone(n, d.at), "%v: %d has overtaken %d (flows: %v)", unit, d.number, n, s.flows)
			dead, isDead := letters[n]
			blocks := s.blocking[unit][n] && isDead && dead.Before(d.at) && d.at.Before(unblocked)
			require.Falsef(s.t, blocks, "%v: %d went on behind the dead letter %d", unit, d.number, n)
		}
	}
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	if text := os.Getenv("MODEL_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		return seed
	}
	return rand.Uint64()
}

// unblock has units go on whose dead letters block them.
func (s *simulation) unblock() {
	rows, err := s.watch.QueryContext(s.t.Context(), `UPDATE `+s.db.Schema.DeadLetters()+` SET blocks = false WHERE blocks
		RETURNING id, destination, partition_key`)
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		var (
			id   string
			unit Unit
		)
		require.NoError(s.t, rows.Scan(&id, &unit.Destination, &unit.PartitionKey))
		s.blocking[unit][numberOf(id)] = true
	}
	require.NoError(s.t, rows.Err())
}

// Whatever brokers, operators, replicas and the network do, nothing is lost, nothing overtakes
// an earlier row of its unit, and nothing stands still for ever, also where one configuration
// takes the place of another, or replicas of both run. MODEL_SEED repeats what a run has rolled,
// as far as the machine does.
func TestModel(t *testing.T) {
	t.Parallel()
	perKey := func(policies ...DeadLetterPolicy) deployment { return deployment{[]Ordering{PerKey}, policies} }
	none := deployment{[]Ordering{None}, []DeadLetterPolicy{Continue}}
	for name, deployments := range map[string][]deployment{
		"continue":          {perKey(Continue)},
		"block":             {perKey(Block)},
		"none":              {none},
		"block or continue": {perKey(Block, Continue)},
		"per key or none":   {{[]Ordering{PerKey, None}, []DeadLetterPolicy{Continue}}},
		"block, continue":   {perKey(Block), perKey(Continue)},
		"continue, block":   {perKey(Continue), perKey(Block)},
		"block, none":       {perKey(Block), none},
		"none, block":       {none, perKey(Block)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := seedOf(t)
			t.Logf("MODEL_SEED=%d", seed)
			simulate(t, seed, deployments)
		})
	}
}

func simulate(t *testing.T, seed uint64, deployments []deployment) {
	t.Helper()
	db := testdb.New(t)
	watch := db.DB
	db.DB = testdb.Open(t, "postgres", db.DSN+"&application_name=model_"+db.Schema.Schema)
	db.SetMaxOpenConns(40)
	s := &simulation{
		t: t, db: db, watch: watch, deleted: map[Unit]map[int]bool{}, blocking: map[Unit]map[int]bool{},
		model: &model{
			random: rand.New(rand.NewPCG(seed, 0)),
			away:   map[string]bool{}, first: map[Unit][]delivery{}, seen: map[Unit]map[int]bool{},
		},
	}
	s.flows = s.model.roll(2) == 0
	for _, unit := range modelUnits {
		s.deleted[unit], s.blocking[unit] = map[int]bool{}, map[int]bool{}
	}
	ctx, stop := context.WithCancel(t.Context())
	var replicas, others sync.WaitGroup
	defer replicas.Wait()
	defer stop()
	stormy, calm := context.WithTimeout(ctx, 2*time.Second)
	defer calm()
	rows := make([]int, len(modelUnits))
	for i, unit := range modelUnits {
		others.Go(func() { rows[i] = s.produce(stormy, unit) })
	}
	for range 2 {
		others.Go(func() { s.upset(stormy) })
	}
	for i, d := range deployments {
		replicas.Wait()
		if d.orders() && !s.deployment.orders() {
			s.ordered = time.Now()
		}
		s.deployment = d
		running, end := ctx, context.CancelFunc(func() {})
		if i < len(deployments)-1 {
			running, end = context.WithTimeout(ctx, time.Second)
		}
		defer end()
		for range 3 {
			replicas.Go(func() { s.replica(running) })
		}
	}
	others.Wait()

	s.model.set(func() { s.model.calm = true })
	unblocked := time.Now()
	left := -1
	for deadline := time.Now().Add(30 * time.Second); left != 0 && time.Now().Before(deadline); {
		sleep(ctx, 10*time.Millisecond, nil)
		if s.deployment.orders() {
			s.unblock()
		}
		require.NoError(t, watch.QueryRowContext(t.Context(),
			`SELECT count(*) FROM `+db.Schema.Outbox()+` WHERE published_at IS NULL`).Scan(&left))
	}
	require.Zero(t, left, "rows stand still")
	stop()
	replicas.Wait()
	letters := s.letters()
	delivered := 0
	for i, unit := range modelUnits {
		s.check(unit, rows[i], letters[unit], unblocked)
		delivered += len(s.model.first[unit])
	}
	t.Logf("%d rows were delivered, %d dead letters", delivered, len(letters))
	require.Positive(t, delivered)
}

var _ message.Publisher = (*model)(nil)
