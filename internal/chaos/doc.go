// Package chaos breaks networks, processes, brokers and databases under the ledger of
// internal/ledger, and has the books balance each time. docs/faults.md says how to run
// it. It is a module of its own, so that its proxies stay out of the root's.
package chaos
