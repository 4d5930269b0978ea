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

// programs are those that matter to pods' networks.
var programs = []string{
	"berthd", "berth-operator", "kubelet", "containerd", "crio", "dockerd", "kube-proxy", "bird", "bird6", "systemd-network", "NetworkManager",
	"calico-node", "cilium-agent", "flanneld", "aws-k8s-agent", "multus-daemon", "firewalld", "coredns",
}

// processes lists those that can be seen, with their arguments. Variables of other
// programs are nobody's business.
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
		return errors.New("none that matters can be seen from here (a container sees its own only)")
	}
	return s.Bytes("system/processes.txt", b.Bytes())
}

// commandLine is what /proc/PID/cmdline has, each argument ended by a zero byte, without
// secrets. They are taken out before it is one line, in which an argument of several
// words has no end.
func commandLine(cmdline []byte) string {
	var args []any
	for arg := range strings.SplitSeq(strings.TrimRight(string(cmdline), "\x00"), "\x00") {
		args = append(args, arg)
	}
	shown, _ := redact.Value(args).([]any)
	return strings.ReplaceAll(strings.TrimSpace(fmt.Sprintln(shown...)), "\n", " ")
}

// kubeletAddress is where a kubelet tells of its health unless --healthz-port says
// otherwise.
const kubeletAddress = "127.0.0.1:10248"

// kubelet asks the kubelet for its health. Its version is in the Node.
func kubelet(ctx context.Context, s *archive.Sink) error {
	return ask(ctx, kubeletAddress, "/healthz", func(r io.Reader) error { return s.Text("kubelet-healthz.txt", io.LimitReader(r, 64<<10)) })
}
