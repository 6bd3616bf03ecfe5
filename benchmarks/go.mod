module github.com/watermill-outbox/outbox/benchmarks

go 1.26.0

require (
	github.com/ThreeDotsLabs/watermill v1.5.1
	github.com/lib/pq v1.12.3
	github.com/stretchr/testify v1.12.1
	github.com/watermill-outbox/outbox v0.0.0
)

require (
	github.com/ThreeDotsLabs/watermill-sql/v3 v3.1.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/watermill-outbox/outbox => ../
