//go:build !unix

package ledger

import (
	"errors"
	"os"
)

var errCannotFreeze = errors.New("processes cannot be stopped and continued here")

func freeze(*os.Process) error { return errCannotFreeze }

func thaw(*os.Process) error { return errCannotFreeze }
