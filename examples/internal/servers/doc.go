// Package servers gives an example a Postgres and a broker to run on, so that the
// example itself reads as the code that a team would write: throwaway servers of its
// own, or real ones by configuration. On real servers everything that a run makes
// (a Postgres schema, topics, consumer groups, exchanges, queues) bears a name that no
// other run has, and is removed at the end.
package servers
