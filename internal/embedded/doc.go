// Package embedded offers throwaway servers for demos and tests: a private
// Postgres in a child process, and an in-process Kafka that speaks the real
// protocol. Neither needs a container, an account or a running service, and
// nothing of them is left afterwards, also after a hard kill of the program.
//
// A program that starts a Postgres must call [RunChildIfAsked] first thing in
// main or TestMain, since the server's keeper is that same program, started a
// second time:
//
//	func main() {
//		embedded.RunChildIfAsked()
//		…
//		pg, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{})
//		if err != nil { … }
//		defer pg.Close()
//		db, err := sql.Open("postgres", pg.DSN())
//
// The servers trade durability for speed (Postgres runs with fsync=off, Kafka
// keeps everything in memory): they hold data that nobody will miss.
package embedded
