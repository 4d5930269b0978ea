package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
)

// previous are the addresses that the runtime remembers, by the sandbox's interfaces.
type previous map[string][]netip.Addr

// previousOf is what a CHECK comes with.
func previousOf(req *rpc.CheckRequest) (previous, error) {
	prev := previous{}
	add := func(ifName, cidr string) error {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return failf(types.ErrInvalidNetworkConfig, "bad-request", "prevResult: address %q is not a CIDR", cidr)
		}
		prev[ifName] = append(prev[ifName], p.Addr())
		return nil
	}
	for _, a := range req.GetAddresses() {
		if err := add(req.GetAttachment().GetIfName(), a); err != nil {
			return nil, err
		}
	}
	for _, l := range req.GetLinks() {
		for _, a := range l.GetAddresses() {
			if err := add(l.GetSandbox().GetName(), a.GetCidr()); err != nil {
				return nil, err
			}
		}
	}
	return prev, nil
}

// differs names an address that a record does not have where the runtime remembers it.
// Interfaces that are others' are passed over, and those that came, or became others, after
// the ADD of which the runtime knows.
func (p previous) differs(rec attachment.Record) error {
	have := previous{rec.Key.IfName: rec.Lease.Addrs()}
	if rec.Chained != nil {
		have[rec.Key.IfName] = rec.Chained.Addresses
	}
	for _, nic := range rec.NICs {
		if nic.Later && nic.IfName != rec.Key.IfName {
			continue
		}
		for _, a := range nic.Addresses {
			have[nic.IfName] = append(have[nic.IfName], a.CIDR.Addr())
		}
	}
	for ifName, addrs := range p {
		ours, known := have[ifName]
		for _, a := range addrs {
			if known && !slices.Contains(ours, a) {
				return failf(CodeMismatch, "mismatch", "interface %s of attachment %s holds %v, not %s", ifName, rec.Key, ours, a)
			}
		}
	}
	return nil
}

// check compares an attachment's record with what the runtime remembers and
// with the kernel.
func (d *Daemon) check(ctx context.Context, key attachment.Key, netns string, prev previous) error {
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
	if err := prev.differs(rec); err != nil {
		return err
	}
	if err := d.wired(ctx, rec); err != nil {
		return &Failure{Code: CodeMismatch, Reason: "mismatch", Message: fmt.Sprintf("attachment %s is not as it was set up", key), Details: err.Error(), Err: err}
	}
	return nil
}
