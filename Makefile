# 'make help' lists the targets.

SHELL := bash
.DEFAULT_GOAL := help

# With it, 'cd examples' may lead elsewhere.
unexport CDPATH

# Every module with code of ours, the root first.
FOUND := $(shell find . \( -name '.?*' -o -path ./tools -o -name testdata \) -prune -o -name go.mod -print || echo failed)
ifneq (,$(filter failed,$(or $(FOUND),failed)))
$(error cannot find the modules)
endif
MODULES := $(sort $(patsubst ./%,%,$(patsubst %/go.mod,%,$(FOUND))))

# Built once from the pinned source, then taken from Go's build cache. The path is
# left to the shell, which takes an apostrophe in it for what it is.
export CLONE := $(CURDIR)
GOLANGCI := go tool -modfile="$$CLONE/tools/go.mod" golangci-lint
# It repeats at the end of a module's tests what failed, without the output of the others.
GOTESTSUM := go tool -modfile="$$CLONE/tools/go.mod" gotestsum --format=standard-quiet

# The servers of 'make services', unless the environment names others.
SERVICES_POSTGRES_PORT ?= 54329
SERVICES_KAFKA_PORT ?= 29092
SERVICES_RABBITMQ_PORT ?= 25673
SERVICES_PGBOUNCER_PORT ?= 26432
export SERVICES_POSTGRES_PORT SERVICES_KAFKA_PORT SERVICES_RABBITMQ_PORT SERVICES_PGBOUNCER_PORT
# PGHOSTADDR and its like would change where they lead.
ADDRESSES := if [[ -z $${POSTGRES_DSN:-} ]]; then unset "$${!PG@}"; fi; export \
	POSTGRES_DSN="$${POSTGRES_DSN:-postgres://outbox:outbox@127.0.0.1:$$SERVICES_POSTGRES_PORT/outbox?sslmode=disable}" \
	KAFKA_BROKERS="$${KAFKA_BROKERS:-127.0.0.1:$$SERVICES_KAFKA_PORT}" \
	AMQP_URI="$${AMQP_URI:-amqp://outbox:outbox@127.0.0.1:$$SERVICES_RABBITMQ_PORT/}" \
	PGBOUNCER_DSN="$${PGBOUNCER_DSN:-postgres://outbox:outbox@127.0.0.1:$$SERVICES_PGBOUNCER_PORT/outbox?sslmode=disable}"

# A workspace around the clone must not hide what a module's own go.mod lacks.
export GOWORK := off

# check COMMAND...: runs it in $$module, and remembers a failure instead of ending there.
# verdict says at the very end what failed: much is printed after that, and a log may be cut.
CHECK := set -o pipefail; failed=(); said=$$(mktemp -d); trap 'rm -rf "$$said"' EXIT; \
	check() { \
		echo "--- $$module: $$*"; \
		(cd "$$module" && "$$@") 2>&1 | tee "$$said/last" || { \
			failed+=("$$module: $$*"); \
			{ grep '^=== FAIL' "$$said/last"; tail -n 40 "$$said/last"; } | cut -c 1-300 >"$$said/$${\#failed[@]}"; \
		}; \
	}; \
	verdict() { \
		local n; \
		for n in "$${!failed[@]}"; do \
			echo; echo "FAILED: $${failed[n]}"; cat "$$said/$$((n + 1))"; \
		done; \
		((! $${\#failed[@]})); \
	}

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The real servers that the demo needs.
ifeq ($(BROKER),kafka)
DEMO_SERVICES := postgres kafka
else ifeq ($(BROKER),amqp)
DEMO_SERVICES := postgres rabbitmq
endif

.PHONY: demo
demo: ## run the main job end to end; BROKER=kafka and BROKER=amqp take real servers
	@for service in $(DEMO_SERVICES); do internal/services/$$service.sh start || exit; done; \
	$(ADDRESSES); cd examples && go run ./quickstart -broker='$(or $(BROKER),embedded)'

# Built with the tag, Watermill's suite waits five times as long before it gives up, as
# it does in Watermill's own stress tests: a busy machine is not a failure.
TEST_FLAGS := -race -tags=stress -count=1 -timeout=20m

.PHONY: test
test: services ## start the servers if need be, then lint and test every module
	@$(ADDRESSES); $(CHECK); \
	for module in $(MODULES); do \
		check $(GOLANGCI) run --config "$$CLONE/.golangci.yml" ./...; \
		check go mod tidy -diff; \
		check go build -o /dev/null ./...; \
		check $(GOTESTSUM) -- $(TEST_FLAGS) ./...; \
	done; \
	module=internal/embedded; check $(OTHER_SERVERS); \
	verdict

# Their versions stand in internal/embedded/otherservers/servers.go. Races show on one
# server as well as on another, and so do the long tests of routers and poison queues.
OTHER_SERVERS := go run ./otherservers -dir=../.. -- -count=1 -timeout=20m -skip='^Test((RouterPlugin|PoisonPublisher)_|VeryLarge|ManyLargeRows|RetentionBesideTheStream)'

.PHONY: test-servers
test-servers: services ## the database part of the tests on the oldest and the newest Postgres, and on an unusual one
	@$(ADDRESSES); cd internal/embedded && $(OTHER_SERVERS)

# chaos starts servers of its own. CHAOS_SEED repeats the random choices of a run.
.PHONY: chaos
chaos: ## break networks, brokers, databases and processes; FORM=all in every way
	@cd internal/chaos && CHAOS="$(or $(FORM),full)" go test -race -count=1 -timeout=60m -v -run='^TestFaults$$' .

DURATION ?= 30m

.PHONY: soak
soak: ## as chaos, at random, for DURATION (30m)
	@cd internal/chaos && CHAOS=soak CHAOS_DURATION='$(DURATION)' go test -race -count=1 -timeout=0 -v -run='^TestFaults$$' .

RUN_BENCH := cd benchmarks && go run ./cmd/bench

.PHONY: bench
bench: services ## measure it beside what users have today, about 10 minutes; BENCH='-run REGEXP' for a part
	@$(ADDRESSES); $(RUN_BENCH) $(BENCH)

.PHONY: bench-short
bench-short: services ## a first impression of 'make bench', about 2 minutes
	@$(ADDRESSES); $(RUN_BENCH) -short $(BENCH)

.PHONY: bench-readme
bench-readme: ## write benchmarks/results/published into benchmarks/README.md
	@$(RUN_BENCH) -results results/published -readme README.md

.PHONY: lint
lint: ## run the linters
	@$(CHECK); \
	for module in $(MODULES); do \
		check $(GOLANGCI) run --config "$$CLONE/.golangci.yml" ./...; \
	done; \
	verdict

.PHONY: fmt
fmt: ## format the code
	@for module in $(MODULES); do \
		(cd "$$module" && $(GOLANGCI) fmt --config "$$CLONE/.golangci.yml" ./...) || exit; \
	done

.PHONY: tidy
tidy: ## run go mod tidy in every module
	@for module in $(MODULES); do (cd "$$module" && go mod tidy) || exit; done

.PHONY: services
services: ## start Postgres, PgBouncer, Kafka and RabbitMQ, unless they answer already
	@internal/services/postgres.sh start
	@internal/services/pgbouncer.sh start
	@internal/services/kafka.sh start
	@internal/services/rabbitmq.sh start

.PHONY: services-stop
services-stop: ## stop what 'make services' started
	@internal/services/rabbitmq.sh stop
	@internal/services/kafka.sh stop
	@internal/services/pgbouncer.sh stop
	@internal/services/postgres.sh stop
