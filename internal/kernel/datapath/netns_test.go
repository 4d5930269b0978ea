package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ended returns what a call gives that must not hang.
func ended(t *testing.T, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(dialTimeout):
		t.Fatal("the call hangs")
		return nil
	}
}

// Whoever can change what is at the path of a pod's namespace must not get the
// pod's address into another one: between the daemon's look and the set-up, or
// before a repair.
func TestNetnsPathThatLeadsElsewhere(t *testing.T) {
	v := newVPC(t)
	a, b := v.sandbox(podA), v.sandbox(podB)
	id, err := InspectNetns(a.path())
	a.must(err)
	a.want.NetnsID = id
	path := filepath.Join(t.TempDir(), "netns")
	lead := func(to string) {
		t.Helper()
		_ = os.Remove(path)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	a.want.Netns = path
	for to, want := range map[string]error{
		b.path(): ErrNoNetns, v.host.path(): ErrNoNetns,
		fifo: ErrNotNetns, "/dev/zero": ErrNotNetns, t.TempDir(): ErrNotNetns, "/proc/self/ns/mnt": ErrNotNetns,
	} {
		lead(to)
		for what, call := range map[string]func() error{
			"AddPod":   func() error { _, err := v.node.AddPod(ctx, a.want); return err },
			"CheckPod": func() error { return v.node.CheckPod(ctx, a.want) },
			"Repair":   func() error { _, err := v.node.Repair(ctx, v.wanted(a)); return err },
		} {
			if err := ended(t, call); !errors.Is(err, want) {
				t.Errorf("%s at %s: error %v, want %v", what, to, err, want)
			}
		}
		if _, err := b.nl.LinkByName("eth0"); err == nil {
			t.Fatalf("another pod got the link of %s", podA)
		}
	}
	lead(a.path())
	if _, err := v.node.AddPod(ctx, a.want); err != nil {
		t.Error(err)
	}
}
