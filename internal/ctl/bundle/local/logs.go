package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
)

// podLogDir is the kubelet's directory of logs. It has one folder per pod: NAMESPACE_NAME_UID.
const podLogDir = "/var/log/pods"

// podLogs adds the logs of Berth's pods, including those of earlier containers.
func (n *node) podLogs(ctx context.Context, s *archive.Sink) error {
	dir := n.at(podLogDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%w (not visible in a container; the API server has the logs of pods too)", err)
	}
	for _, e := range entries {
		if !strings.Contains(e.Name(), "berth") {
			continue
		}
		files, err := filepath.Glob(filepath.Join(dir, e.Name(), "*", "*.log*"))
		s.Failed(e.Name(), err)
		for _, name := range files {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			rel, _ := filepath.Rel(dir, name)
			s.Failed(rel, n.logFile(s, path.Join("logs/pods", rel), name))
		}
	}
	return nil
}

func (n *node) logFile(s *archive.Sink, to, name string) error {
	f, err := openRegular(name)
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.ModTime().Before(time.Now().Add(-n.Since)) || strings.HasSuffix(name, ".gz") {
		return nil // too old, or compressed
	}
	return s.LogFile(to, f)
}

// units are the systemd units whose logs are collected.
var units = []string{"berthd", "kubelet", "containerd", "crio", "docker", "cri-docker", "k3s", "k3s-agent", "rke2-agent", "systemd-networkd", "NetworkManager"}

// journal adds the journal of units, by journalctl. A container usually has neither.
func (n *node) journal(ctx context.Context, s *archive.Sink) error {
	program, err := exec.LookPath("journalctl")
	if err != nil {
		return fmt.Errorf("the journal of the kubelet and the runtime: %w (run berthctl on the node itself to collect it)", err)
	}
	for _, unit := range units {
		s.Failed(unit, n.journalOf(ctx, s, program, unit))
	}
	return ctx.Err()
}

func (n *node) journalOf(ctx context.Context, s *archive.Sink, program, unit string) error {
	cmd := exec.CommandContext(ctx, program, "--unit", unit, "--no-pager", "--quiet", "--output", "short-iso-precise",
		fmt.Sprintf("--since=-%ds", int(n.Since.Seconds())), fmt.Sprintf("--lines=%d", s.Most()/100))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	first := make([]byte, 1)
	if _, readErr := io.ReadFull(out, first); readErr == nil { // a unit that does not exist has no lines
		err = s.Log("logs/journal-"+unit+".log", io.MultiReader(bytes.NewReader(first), out))
	}
	if waitErr := cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("%w: %s", waitErr, strings.TrimSpace(stderr.String())))
	}
	return err
}

// kernelLog adds the kernel's log, which reports full neighbour and connection tables and
// processes that were killed for lack of memory.
func kernelLog(ctx context.Context, s *archive.Sink) error {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/kmsg: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return piped(func(w io.Writer) error { return kernelLines(ctx, fd, w) }, func(r io.Reader) error { return s.Log("logs/kernel.log", r) })
}

// kernelLines writes the available records (Documentation/ABI/testing/dev-kmsg). Each read
// returns one: "priority,sequence,microseconds,flags;text".
func kernelLines(ctx context.Context, fd int, w io.Writer) error {
	buf := make([]byte, 16<<10)
	for ctx.Err() == nil {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, syscall.EAGAIN), err == nil && n == 0:
			return nil
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR): // records were overwritten
			continue
		case err != nil:
			return fmt.Errorf("/dev/kmsg: %w", err)
		}
		head, text, _ := strings.Cut(string(buf[:n]), ";")
		fields := strings.Split(head, ",")
		text, _, _ = strings.Cut(text, "\n") // device properties follow
		if len(fields) < 3 {
			continue
		}
		if _, err := fmt.Fprintf(w, "<%s> %sus %s\n", fields[0], fields[2], text); err != nil {
			return err
		}
	}
	return ctx.Err()
}
