package chaos_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// dropPackets has no packet of that process arrive, nor any that is sent to it, until the
// function that it returns is called. Where the system lets nobody drop packets, which
// takes root, none is dropped, and the table says so.
func (w *world) dropPackets(ctx context.Context, pid int) (restore func(ctx context.Context) error, err error) {
	if err := w.servers.run(ctx, "nft.sh", "install"); err != nil {
		w.note = ", stopped only"
		w.t.Logf("no packets are dropped: %v", err)
		return func(context.Context) error { return nil }, nil
	}
	ports, err := localPorts(pid)
	if err != nil {
		return nil, err
	}
	if len(ports) == 0 {
		return nil, fmt.Errorf("process %d has no connection", pid)
	}
	table := fmt.Sprintf("outbox_chaos_%d", pid)
	// What a suite leaves behind that is killed drops nothing after two minutes. Everything
	// on this machine goes through output, in either direction.
	err = nft(ctx, fmt.Sprintf(`table inet %s {
			set ports {
				flags timeout
				type inet_service
				timeout 2m
				elements = { %s }
			}
			chain drops {
				type filter hook output priority filter
				tcp sport @ports drop
				tcp dport @ports drop
			}
		}`, table, strings.Join(ports, ", ")))
	return func(ctx context.Context) error { return nft(ctx, "delete table inet "+table) }, err
}

func nft(ctx context.Context, rules string) error {
	command := exec.CommandContext(ctx, "nft", "-f", "-")
	command.Stdin = strings.NewReader(rules)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(output))
	}
	return nil
}

// localPorts are those of a process's TCP connections.
func localPorts(pid int) (ports []string, err error) {
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil, err
	}
	sockets := map[string]bool{}
	for _, d := range descriptors {
		if target, err := os.Readlink(d); err == nil { // closed meanwhile
			sockets[target] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(content)) {
			const address, inode = 1, 9 // https://docs.kernel.org/networking/proc_net_tcp.html
			fields := strings.Fields(line)
			if len(fields) <= inode || !sockets["socket:["+fields[inode]+"]"] {
				continue
			}
			_, hex, _ := strings.Cut(fields[address], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", table, err)
			}
			ports = append(ports, strconv.FormatUint(port, 10))
		}
	}
	return ports, nil
}
