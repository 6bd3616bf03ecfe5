//go:build race

package wal_test

const isRace = true
