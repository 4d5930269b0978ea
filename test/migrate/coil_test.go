// Package migrate moves nodes of recorded clusters to Berth's own programs, and back.
package migrate

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/demo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, "berthd", "berth", "berthctl", "berth-operator", "berth-egress"))
}

// move runs the demo of a recording, with each proof as a subtest, calls proved after each, and checks that nothing is left.
func move(ctx context.Context, t *testing.T, recording string, proved func()) error {
	t.Helper()
	dir, err := os.MkdirTemp("", "demo")
	harness.OK(t, err)
	var out bytes.Buffer
	failed := demo.Run(ctx, demo.Options{
		Lab: lab.Options{Dir: dir, BinDir: harness.BinDir}, Coil: recording, Out: &out,
		Subtest: func(name string, proof func() error) {
			t.Run(name, func(t *testing.T) { harness.OK(t, proof()) })
			proved()
		},
	})
	t.Log(out.String())
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s still exists: %v", dir, err)
	}
	if left, err := ns.List(fabric.Prefix(lab.IDOf(dir))); err != nil || len(left) > 0 {
		t.Errorf("namespaces after the demo = %v, %v; want none", left, err)
	}
	return failed
}

// A node of each recorded version moves to Berth's programs and back while its pods hold connections, and the tool, the daemon
// and the API server are killed at random. The daemon then serves the adopted pods as its own: CHECK, new pods beside them, and DEL. The proofs are
// those of `make demo MODE=migrate FROM=coil`.
func TestNodesMoveFromCoil(t *testing.T) {
	for name, turns := range map[string][]int{replay.V2Newest: {0, 3, 6, 9}, replay.V2Oldest: {1, 4, 7}, replay.V1: {2, 5, 8}} {
		t.Run(name, func(t *testing.T) {
			harness.Rotate(t, turns...)
			harness.OK(t, move(t.Context(), t, name, func() {}))
		})
	}
}

func TestInterruptedMoveCleansUp(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	if err := move(ctx, t, replay.V2Newest, interrupt); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted demo returned %v", err)
	}
}
