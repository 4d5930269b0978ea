package main

import (
	"context"
	"os"
	"testing"

	"github.com/berthnet/berth/test/harness"
)

// referenceDir is where Debian's containernetworking-plugins are.
const referenceDir = "/usr/lib/cni"

// TestPools does a small run of each group of figures of pools, so that they
// have what they rely on: nothing is said of how long anything takes.
func TestPools(t *testing.T) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		t.Fatal("KUBEBUILDER_ASSETS is empty: expected the directory that hack/kubebox.sh prints")
	}
	b := &bench{options: options{binDir: harness.BinDir, refDir: referenceDir, assets: assets, rounds: 1}}
	t.Cleanup(func() { harness.OK(t, b.close()) })
	var results []Result
	for _, g := range []struct {
		needs need
		run   func(context.Context, *bench) ([]Result, error)
	}{
		{nothing, poolBook},
		{controlPlanePrograms, func(ctx context.Context, b *bench) ([]Result, error) { return b.blockRequests(ctx, 1, 40, 40) }},
		{poolModeLab, poolAdds},
	} {
		harness.OK(t, b.provide(t.Context(), g.needs))
		got, err := g.run(t.Context(), b)
		harness.OK(t, err)
		results = append(results, got...)
	}
	for _, name := range []string{
		"pool-book-memory", "pool-carve", "pool-carve-last", "pool-requests-40", "pool-requests-memory",
		"pool-exec-add", "pool-exec-del", "pool-daemon-add",
	} {
		if r, ok := find(results, name); !ok || r.Value <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// What the start of an operator costs is taken off, and that varies by more
	// than so few requests cost.
	if _, ok := find(results, "pool-requests-cpu"); !ok {
		t.Error("there is no pool-requests-cpu")
	}
	if r, _ := find(results, "pool-requests-writes"); r.Value != 2 || r.Ratio != 1 {
		t.Errorf("API writes for a block: %+v, want 2: its creation, and the answer", r)
	}
}
