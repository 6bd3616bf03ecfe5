# 'make help' lists the targets.

SHELL := bash
.DEFAULT_GOAL := help

# Every module with code of ours, the root first.
MODULES := $(sort $(patsubst ./%,%,$(patsubst %/go.mod,%,$(shell \
	find . -name go.mod -not -path './tools/*' -not -path '*/.*/*' -not -path '*/testdata/*'))))

# Built once from the pinned source, then taken from Go's build cache.
GOLANGCI := go tool -modfile='$(CURDIR)/tools/go.mod' golangci-lint

# The servers of 'make services', unless the environment names others.
SERVICES_POSTGRES_PORT ?= 54329
SERVICES_KAFKA_PORT ?= 29092
export SERVICES_POSTGRES_PORT SERVICES_KAFKA_PORT
ADDRESSES := export \
	POSTGRES_DSN="$${POSTGRES_DSN:-postgres://outbox:outbox@127.0.0.1:$$SERVICES_POSTGRES_PORT/outbox?sslmode=disable}" \
	KAFKA_BROKERS="$${KAFKA_BROKERS:-127.0.0.1:$$SERVICES_KAFKA_PORT}"

# A workspace around the clone must not hide what a module's own go.mod lacks.
export GOWORK := off

# check COMMAND...: runs it in $$module, and remembers a failure instead of ending there.
CHECK := failed=(); check() { \
		echo "--- $$module: $$*"; \
		(cd "$$module" && "$$@") || failed+=("$$module: $$*"); \
	}; \
	verdict() { \
		if (($${\#failed[@]})); then \
			echo; echo 'FAILED:'; printf '  %s\n' "$${failed[@]}"; exit 1; \
		fi; \
	}

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## run the main job end to end; BROKER=kafka takes the real servers
ifeq ($(BROKER),kafka)
demo: services
	@$(ADDRESSES); cd examples && go run ./quickstart -broker=kafka
else
demo:
	@cd examples && go run ./quickstart -broker='$(or $(BROKER),embedded)'
endif

.PHONY: test
test: services ## start the servers if need be, then lint and test every module
	@$(ADDRESSES); $(CHECK); \
	for module in $(MODULES); do \
		check $(GOLANGCI) run --config '$(CURDIR)/.golangci.yml' ./...; \
		check go mod tidy -diff; \
		check go build -o /dev/null ./...; \
		check go test -race -count=1 -timeout=20m ./...; \
	done; \
	verdict

.PHONY: lint
lint: ## run the linters
	@$(CHECK); \
	for module in $(MODULES); do \
		check $(GOLANGCI) run --config '$(CURDIR)/.golangci.yml' ./...; \
	done; \
	verdict

.PHONY: fmt
fmt: ## format the code
	@for module in $(MODULES); do \
		(cd "$$module" && $(GOLANGCI) fmt --config '$(CURDIR)/.golangci.yml' ./...) || exit; \
	done

.PHONY: tidy
tidy: ## run go mod tidy in every module
	@for module in $(MODULES); do (cd "$$module" && go mod tidy) || exit; done

.PHONY: services
services: ## start Postgres and Kafka, unless they answer already
	@internal/services/postgres.sh start
	@internal/services/kafka.sh start

.PHONY: services-stop
services-stop: ## stop what 'make services' started
	@internal/services/kafka.sh stop
	@internal/services/postgres.sh stop
