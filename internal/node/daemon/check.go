package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/rpc"
)

// previous holds the addresses of a CHECK's prevResult, by interface in the sandbox.
type previous map[string][]netip.Addr

// previousOf reads the addresses of a request.
func previousOf(req *rpc.CheckRequest) (previous, error) {
	prev := previous{}
	add := func(ifName, cidr string) error {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return cnierror.New(types.ErrInvalidNetworkConfig, "bad-request", "prevResult: address %q is not a CIDR", cidr)
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

// differs returns an error for an address of the prevResult that is not in the record. It ignores
// interfaces of other plugins, and NICs that were added or changed after the ADD, which the prevResult
// cannot include.
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
				return cnierror.New(cnierror.CodeMismatch, "mismatch", "interface %s of attachment %s holds %v, not %s", ifName, rec.Key, ours, a)
			}
		}
	}
	return nil
}

// check compares an attachment's record with the prevResult and the kernel.
func (a *attachments) check(ctx context.Context, key attachment.Key, netns string, prev previous) error {
	unlock, err := a.locks.lock(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok := a.store.Get(key)
	if !ok || rec.State != attachment.Ready {
		return cnierror.New(types.ErrUnknownContainer, "unknown", "no attachment %s on this node", key)
	}
	ns, err := netnsOf(a.inspect, netns)
	if err != nil {
		return err
	}
	if !rec.Netns.Same(ns) {
		return cnierror.New(cnierror.CodeMismatch, "mismatch", "attachment %s was set up in another network namespace than %s", key, netns)
	}
	if err := prev.differs(rec); err != nil {
		return err
	}
	if err := a.wiring.check(ctx, rec); err != nil {
		return cnierror.Because(err, cnierror.CodeMismatch, "mismatch", fmt.Sprintf("attachment %s is not as it was set up", key))
	}
	return nil
}

// netnsOf identifies the sandbox's namespace. The error is a Failure.
func netnsOf(inspect func(path string) (datapath.NetnsID, error), path string) (attachment.Netns, error) {
	id, err := inspect(path)
	switch {
	case errors.Is(err, datapath.ErrNoNetns):
		return attachment.Netns{}, cnierror.New(types.ErrInvalidNetNS, "netns-missing", "network namespace %s does not exist; is the directory of namespaces mounted into berthd with HostToContainer propagation?", path)
	case errors.Is(err, datapath.ErrNotNetns):
		return attachment.Netns{}, cnierror.New(types.ErrInvalidNetNS, "netns-invalid", "%s: it was unmounted, or its mount does not reach berthd (HostToContainer propagation is needed)", err)
	case err != nil:
		return attachment.Netns{}, cnierror.New(types.ErrInvalidNetNS, "netns-invalid", "opening the network namespace: %s", err)
	}
	return attachment.Netns{Path: path, Dev: id.Dev, Inode: id.Inode}, nil
}

// readyRecords returns the records of ready attachments, in no particular order.
func (a *attachments) readyRecords() []attachment.Record {
	return slices.DeleteFunc(a.store.Records(), func(rec attachment.Record) bool { return rec.State != attachment.Ready })
}
