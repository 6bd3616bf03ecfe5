// Package ledger proves the whole way on real servers: many writers commit and roll
// back, forwarders in processes of their own are killed hard, a Watermill consumer
// with an inbox handles what arrives, and in the end the books must balance.
//
// Run does it once and returns a Report; Require fails a test on any violation. A
// test binary that uses it calls RunForwarderIfAsked first thing in its TestMain,
// since the forwarders are that binary, started again:
//
//	func TestMain(m *testing.M) {
//		ledger.RunForwarderIfAsked()
//		goleak.VerifyTestMain(m)
//	}
//
// LEDGER_SEED repeats the random choices of a run (not its timing), LEDGER_SCALE
// makes it so many times as long.
//
// The broker is behind the interface Broker. The truth about what was committed is
// the business table, not what the writers remember.
package ledger
