package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/redact"
)

// programs are the names of processes that concern pods' networks.
var programs = []string{
	"berthd", "berth-operator", "kubelet", "containerd", "crio", "dockerd", "kube-proxy", "bird", "bird6", "systemd-network", "NetworkManager",
	"calico-node", "cilium-agent", "flanneld", "aws-k8s-agent", "multus-daemon", "firewalld", "coredns",
}

// processes adds the visible processes with their arguments. Environment variables are not
// collected.
func processes(_ context.Context, s *archive.Sink) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, dir := range dirs {
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil || !slices.Contains(programs, strings.TrimSpace(string(comm))) {
			continue // it ended
		}
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		fmt.Fprintf(&b, "%s %s\n", filepath.Base(dir), commandLine(args))
		for _, name := range []string{"status", "limits"} {
			data, _ := os.ReadFile(filepath.Join(dir, name))
			for line := range strings.Lines(string(data)) {
				if strings.HasPrefix(line, "Vm") || strings.HasPrefix(line, "Threads") || strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "Max open files") {
					b.WriteString("    " + line)
				}
			}
		}
	}
	if b.Len() == 0 {
		return errors.New("no relevant process is visible from here (a container sees only its own)")
	}
	return s.Bytes("system/processes.txt", b.Bytes())
}

// commandLine returns the arguments in /proc/PID/cmdline, which end with zero bytes, as one
// line. It removes secrets before it joins the arguments, as a line does not show where an
// argument with spaces ends.
func commandLine(cmdline []byte) string {
	var args []any
	for arg := range strings.SplitSeq(strings.TrimRight(string(cmdline), "\x00"), "\x00") {
		args = append(args, arg)
	}
	shown, _ := redact.Value(args).([]any)
	return strings.ReplaceAll(strings.TrimSpace(fmt.Sprintln(shown...)), "\n", " ")
}

// kubeletAddress is the default of the kubelet's health endpoint (--healthz-port).
const kubeletAddress = "127.0.0.1:10248"

// kubelet adds the kubelet's health. Its version is in the Node.
func kubelet(ctx context.Context, s *archive.Sink) error {
	return ask(ctx, kubeletAddress, "/healthz", func(r io.Reader) error { return s.Text("kubelet-healthz.txt", io.LimitReader(r, 64<<10)) })
}
