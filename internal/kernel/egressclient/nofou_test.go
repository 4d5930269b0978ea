package egressclient

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/kernel/kernelstate"
	"github.com/berthnet/berth/lab/network/ns"
)

// Where the kernel lacks FoU, or a namespace of tests hides it, Apply says so and leaves nothing half
// made. Where it has FoU, the same Setup stands afterwards.
func TestKernelWithoutFoU(t *testing.T) {
	const name = "clientnofou"
	if err := ns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Remove(name) })
	before := stateText(t, ns.Path(name))
	s := one(Egress{Destinations: nets("203.0.113.0/24"), Gateways: []Gateway{gw(1, true, "10.1.1.2")}})
	err := Apply(context.Background(), ns.Path(name), s)
	if Supported() == nil {
		t.Logf("this kernel has FoU: Apply says %v", err)
		if errors.Is(err, ErrNoFoU) {
			t.Errorf("Apply: %v, though the kernel has FoU", err)
		}
		return
	}
	if !errors.Is(err, ErrNoFoU) || !strings.Contains(err.Error(), "fou") || !strings.Contains(err.Error(), ns.Path(name)) {
		t.Errorf("Apply: %v, want %v, which module, and where", err, ErrNoFoU)
	}
	if after := stateText(t, ns.Path(name)); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	if err := Apply(context.Background(), ns.Path(name), Setup{}); err != nil {
		t.Errorf("take away what is not there: %v", err)
	}
	if _, err := os.Stat(ns.Path(name)); err != nil {
		t.Error(err)
	}
}

// stateText is what the kernel has in a namespace.
func stateText(t *testing.T, path string) string {
	t.Helper()
	var b strings.Builder
	err := ns.Do(path, func() error {
		for _, p := range kernelstate.Parts() {
			if err := p.Write(&b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Limits and use of the whole machine's are no part of a namespace.
	machines := func(line string) bool { return strings.HasPrefix(line, "fs/") || strings.HasPrefix(line, "kernel/") }
	return strings.Join(slices.DeleteFunc(strings.Split(b.String(), "\n"), machines), "\n")
}
