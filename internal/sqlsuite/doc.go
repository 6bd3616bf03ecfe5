// Package sqlsuite proves the adapter for watermill-sql together with the rest of the
// module and with Watermill's own conformance suite. It holds only tests.
package sqlsuite
