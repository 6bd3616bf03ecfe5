// Package benchmarks measures the outbox beside what it is compared with, on real
// servers: those of "make services", or the one of POSTGRES_DSN.
package benchmarks
