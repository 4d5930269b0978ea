//go:build e2e

package neutron

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/openstack"
	"github.com/berthnet/berth/test/harness"
)

// processes lists the running programs of instances in a directory.
func processes(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	harness.OK(t, err)
	for _, file := range all {
		args, _ := os.ReadFile(file) // the process may have ended
		if line := strings.ReplaceAll(string(args), "\x00", " "); strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	return found
}

// nothingIsLeft checks that no program and no link of an instance is left.
func nothingIsLeft(t *testing.T, dir string) {
	t.Helper()
	harness.Eventually(t, time.Minute, "all programs have ended", func() error {
		if left := processes(t, dir); len(left) > 0 {
			return errors.New(strings.Join(left, "\n"))
		}
		return nil
	})
	links, err := net.Interfaces()
	harness.OK(t, err)
	for _, l := range links {
		if strings.HasPrefix(l.Name, "vpc") {
			t.Errorf("link %s is left", l.Name)
		}
	}
	left, err := os.ReadDir(dir)
	harness.OK(t, err)
	for _, e := range left {
		if e.IsDir() && e.Name() != "log" {
			t.Errorf("directory %s is left", e.Name())
		}
	}
}

// TestInterruptedStart interrupts an instance while it starts, with either backend; nothing is left.
func TestInterruptedStart(t *testing.T) {
	harness.OK(t, present.close())
	for _, b := range []openstack.Backend{openstack.OVN, openstack.Agent} {
		dir, err := os.MkdirTemp("", "os")
		harness.OK(t, err)
		defer os.RemoveAll(dir)
		ctx, cancel := context.WithCancel(t.Context())
		_, err = openstack.Start(ctx, openstack.Options{Dir: dir, Backend: b, Keystone: true, Progress: func(line string) {
			if strings.HasPrefix(line, "starting") {
				time.AfterFunc(300*time.Millisecond, cancel)
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error = %v, want %v", b, err, context.Canceled)
		}
		nothingIsLeft(t, dir)
	}
}

// TestStartFails: if a program ends while an instance starts, the error names it and includes the end of its log, and
// nothing is left.
func TestStartFails(t *testing.T) {
	harness.OK(t, present.close())
	l, err := net.Listen("tcp", ":9696")
	harness.OK(t, err)
	defer l.Close()
	dir, err := os.MkdirTemp("", "os")
	harness.OK(t, err)
	defer os.RemoveAll(dir)
	_, err = openstack.Start(harness.Deadline(t, 2*time.Minute), openstack.Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "neutron-server has exited") {
		t.Errorf("start with the port in use: error = %v, want \"neutron-server has exited\"", err)
	}
	nothingIsLeft(t, dir)
}

// TestNodesComeAndGo makes a node leave with its programs and rejoin under the same name, and tries nodes that cannot
// join.
func TestNodesComeAndGo(t *testing.T) {
	w := of(t, openstack.OVN, false)
	ctx := harness.Deadline(t, 2*time.Minute)
	if _, err := w.Join(ctx, nodeNames[0], ns.Path(w.spaces[0])); err == nil || !strings.Contains(err.Error(), "has already joined") {
		t.Errorf("join with a name in use: error = %v, want \"has already joined\"", err)
	}
	for _, name := range []string{"", "Node", "a_b", strings.Repeat("n", 43)} {
		if _, err := w.Join(ctx, name, ns.Path(w.spaces[0])); err == nil || !strings.Contains(err.Error(), "node name") {
			t.Errorf("join with the name %q: error = %v, want one about the node name", name, err)
		}
	}
	if _, err := w.Join(ctx, "node-z", ns.Path("there-is-none")); err == nil || !strings.Contains(err.Error(), "join node node-z") {
		t.Errorf("join with an unknown namespace: error = %v, want one about joining node-z", err)
	}
	last := w.nodes[1]
	harness.OK(t, last.Leave())
	dir := filepath.Dir(strings.TrimPrefix(last.OVSDB(), "unix:"))
	if left := processes(t, dir); len(left) > 0 {
		t.Errorf("programs of a node that left still run: %v", left)
	}
	again, err := w.Join(ctx, last.Name, last.Netns())
	harness.OK(t, err)
	w.nodes[1] = again
	if got := len(w.Nodes()); got != len(nodeNames) {
		t.Errorf("%d nodes, want %d", got, len(nodeNames))
	}
}

// starter is the environment variable of a test process that only starts an instance: its directory and the namespace
// of its services.
const starter = "BERTH_TEST_STARTER"

// TestStarterKilled kills the process that started an instance, with either backend: all programs end.
func TestStarterKilled(t *testing.T) {
	if dir, netns, ok := strings.Cut(os.Getenv(starter), " "); ok {
		_, err := openstack.Start(t.Context(), openstack.Options{Dir: dir, Netns: netns, Backend: openstack.Backend(filepath.Base(dir))})
		harness.OK(t, err)
		fmt.Println("started")
		select {}
	}
	harness.OK(t, present.close())
	for _, b := range []openstack.Backend{openstack.OVN, openstack.Agent} {
		parent, err := os.MkdirTemp("", "os")
		harness.OK(t, err)
		defer os.RemoveAll(parent)
		dir, space := filepath.Join(parent, string(b)), fmt.Sprintf("btneutron-%d-%s", os.Getpid(), b)
		harness.OK(t, ns.Create(space))
		defer func() { harness.OK(t, ns.Remove(space)) }()
		child := exec.Command(os.Args[0], "-test.run=^TestStarterKilled$")
		child.Env = append(os.Environ(), starter+"="+dir+" "+ns.Path(space))
		out, err := child.StdoutPipe()
		harness.OK(t, err)
		harness.OK(t, child.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "started" {
			t.Log(lines.Text())
		}
		running := processes(t, dir)
		harness.OK(t, child.Process.Kill())
		_ = child.Wait() // it was killed
		if len(running) < 4 {
			t.Errorf("%s: running programs = %v, want at least 4", b, running)
		}
		harness.Eventually(t, time.Minute, string(b)+": all programs have ended", func() error {
			if left := processes(t, dir); len(left) > 0 {
				return errors.New(strings.Join(left, "\n"))
			}
			return nil
		})
	}
}
