package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/attachment"
)

// check compares an attachment's record with what the runtime remembers and
// with the kernel.
func (d *Daemon) check(ctx context.Context, key attachment.Key, netns string, addrs []netip.Addr) error {
	unlock, err := d.locks.lock(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok := d.Store.Get(key)
	if !ok || rec.State != attachment.Ready {
		return failf(types.ErrUnknownContainer, "unknown", "no attachment %s on this node", key)
	}
	ns, err := d.netnsOf(netns)
	if err != nil {
		return err
	}
	if !rec.Netns.Same(ns) {
		return failf(CodeMismatch, "mismatch", "attachment %s was set up in another network namespace than %s", key, netns)
	}
	for _, a := range addrs {
		if !slices.Contains(rec.Lease.Addrs(), a) {
			return failf(CodeMismatch, "mismatch", "attachment %s holds %v, not %s", key, rec.Lease.Addrs(), a)
		}
	}
	if err := d.wired(ctx, rec); err != nil {
		return &Failure{Code: CodeMismatch, Reason: "mismatch", Message: fmt.Sprintf("attachment %s is not as it was set up", key), Details: err.Error(), Err: err}
	}
	return nil
}
