//go:build !unix

package main

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }

func interrupted(*os.ProcessState) bool { return false }
