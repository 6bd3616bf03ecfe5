package rig

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// PeakMemory is the most resident memory that this process has had, in bytes. It is known
// on Linux only. (What getrusage says begins with the memory of the process that started
// this one.)
func PeakMemory() (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int
			_, err := fmt.Sscanf(value, "%d kB", &kib)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}
