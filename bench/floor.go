package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
)

// openFloor prepares floor, and opens netlink in the node's namespace.
func (b *testbed) openFloor() (*netlink.Handle, error) {
	if err := b.dirs.install(filepath.Join(b.options.binDir, "null")); err != nil {
		return nil, err
	}
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"null","plugins":[{"type":"null"}]}`))
	if err != nil {
		return nil, fmt.Errorf("configure the plugin that does nothing: %w", err)
	}
	b.null = newRuntime(b.few.Netns, b.lab.ID+"-n", filepath.Join(b.dirs.data, "cache-null"), b.dirs.plugins, list)
	return nodeNetlink(b.few)
}

// floor measures what a whole ADD cannot be below: a plugin that does nothing, by
// the same libcni, and the bare netlink calls. The plugin is the first, since the
// end of a link slows down what comes after it.
func (b *testbed) floor(ctx context.Context, host *netlink.Handle, i int, note note) error {
	var null float64
	err := addAndDel(ctx, b.null, "", func(of string, ms float64) {
		if of == "add" {
			null = ms
		}
	})
	if err != nil {
		return err
	}
	bare, err := b.bareOnce(host, i)
	note("null", null)
	note("floor", null+millis(bare))
	return err
}
