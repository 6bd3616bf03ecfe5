package report

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"

	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
)

// Describe fills in where the run takes place.
func (r *Run) Describe(ctx context.Context, servers rig.Rig) (err error) {
	r.Commit = commit(ctx)
	if r.Hardware, err = hardware(ctx); err != nil {
		return err
	}
	if r.Settings, err = servers.Settings(ctx); err != nil {
		return err
	}
	if r.Versions, err = servers.Versions(ctx); err != nil {
		return err
	}
	r.Versions["Go"] = strings.TrimPrefix(runtime.Version(), "go")
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if name, shown := shownModules[module.Path]; shown {
				r.Versions[name] = module.Version
			}
		}
	}
	return nil
}

var shownModules = map[string]string{
	"github.com/ThreeDotsLabs/watermill":          "watermill",
	"github.com/ThreeDotsLabs/watermill-sql/v3":   "watermill-sql",
	"github.com/ThreeDotsLabs/watermill-amqp/v2":  "watermill-amqp",
	"github.com/ThreeDotsLabs/watermill-kafka/v3": "watermill-kafka",
	"github.com/lib/pq":                           "lib/pq",
}

// commit is empty outside of a clone.
func commit(ctx context.Context) string {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return ""
	}
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no").Output()
	if err != nil {
		return ""
	}
	if len(changes) > 0 {
		return strings.TrimSpace(string(head)) + " with changes"
	}
	return strings.TrimSpace(string(head))
}

func hardware(ctx context.Context) (map[string]string, error) {
	processors, err := cpu.InfoWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("processors: %w", err)
	}
	memory, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	platform, _, release, err := host.PlatformInformationWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("system: %w", err)
	}
	described := map[string]string{
		"cores":  fmt.Sprint(runtime.NumCPU()),
		"memory": fmt.Sprintf("%d GiB", memory.Total>>30),
		"system": fmt.Sprintf("%s %s %s", platform, release, runtime.GOARCH),
	}
	if len(processors) > 0 {
		described["processor"] = strings.TrimSpace(processors[0].ModelName)
	}
	return described, nil
}
