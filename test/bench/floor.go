package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
)

// floor is what a whole ADD cannot be below: a plugin that does nothing, by the
// same libcni, and the bare netlink calls.
type floor struct {
	bench       *bench
	host        *netlink.Handle
	nulls, sums []float64 // ms: of the plugin alone, and with the netlink calls
}

func (b *bench) openFloor() (*floor, error) {
	if err := b.install(filepath.Join(b.binDir, "null")); err != nil {
		return nil, err
	}
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"null","plugins":[{"type":"null"}]}`))
	if err != nil {
		return nil, fmt.Errorf("configure the plugin that does nothing: %w", err)
	}
	b.null = newRuntime(b.few.Netns, b.lab.ID+"-n", filepath.Join(b.varDir, "cache-null"), b.pluginDir, list)
	host, err := nodeNetlink(b.few)
	return &floor{bench: b, host: host}, err
}

// measure does both once. The plugin is the first, since the end of a link slows
// down what comes after it.
func (f *floor) measure(ctx context.Context, round int) error {
	null, _, err := addAndDel(ctx, f.bench.null)
	if err != nil {
		return err
	}
	bare, err := f.bench.bareOnce(f.host, round)
	if err != nil {
		return fmt.Errorf("bare netlink calls: %w", err)
	}
	if round >= warmUp {
		f.nulls, f.sums = append(f.nulls, millis(null)), append(f.sums, millis(null+bare))
	}
	return nil
}

// results hold the ADDs of the same rounds against the floor.
func (f *floor) results(adds []float64) []Result {
	return []Result{
		ratio("exec-add-floor", "ms", adds, f.sums),
		{Name: "exec-null", Value: median(f.nulls), Unit: "ms", Runs: len(f.nulls)},
	}
}
