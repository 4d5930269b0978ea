package daemon

import (
	"cmp"
	"context"
	"errors"
	"net"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
)

// What an attachment has in the kernel is set up, compared and taken down here, and
// nowhere else: a link to the pod, with the addresses of the lease and their routes,
// where there is a lease, then its NICs, and then its egress, whose packets leave by one of them.

// wire sets up all that a record says, as far as it is not there, and returns the
// record with what the kernel tells of it. The error is a Failure.
func (d *Daemon) wire(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	rec, err := d.wireLease(ctx, rec)
	if err != nil {
		return rec, err
	}
	rec, err = d.plug(ctx, rec)
	if err != nil {
		return rec, err
	}
	return d.applyEgress(ctx, rec)
}

// wireLease is wire for the lease alone.
func (d *Daemon) wireLease(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if rec.Lease.Empty() {
		return rec, nil
	}
	links, err := d.Kernel.AddPod(ctx, podOf(rec))
	if err != nil {
		return rec, kernelFailure(err)
	}
	rec.HostMAC, rec.PodMAC, rec.MTU = mac.Addr(links.HostMAC), mac.Addr(links.PodMAC), links.MTU
	return rec, nil
}

// unwire takes down what leads to the pod. The link of the lease is left for the
// reaper. The error is a Failure. The lease is seen to also where a NIC fails.
func (d *Daemon) unwire(ctx context.Context, rec attachment.Record) error {
	if err := d.clearEgress(ctx, rec); err != nil {
		return err
	}
	err := d.unplug(ctx, rec)
	if rec.Lease.Empty() {
		return err
	}
	if err := d.Kernel.DetachPod(ctx, rec.HostLink, rec.Lease.Held()); err != nil {
		return kernelFailure(err)
	}
	return err
}

// wired tells how the kernel differs from a record, and changes nothing.
func (d *Daemon) wired(ctx context.Context, rec attachment.Record) error {
	var err error
	if !rec.Lease.Empty() {
		err = d.Kernel.CheckPod(ctx, podOf(rec))
	}
	return cmp.Or(err, d.plugged(ctx, rec), d.egressDiffers(ctx, rec))
}

// podOf is a record with a lease as the data path wants it.
func podOf(r attachment.Record) datapath.Pod {
	p := datapath.Pod{
		Netns: r.Netns.Path, NetnsID: netnsID(r.Netns),
		IfName: r.Key.IfName, HostIfName: r.HostLink, MTU: r.MTU,
		IPv4: r.Lease.IPv4, IPv6: r.Lease.IPv6,
		HostMAC: net.HardwareAddr(r.HostMAC), PodMAC: net.HardwareAddr(r.PodMAC),
		Several: len(r.NICs) > 0,
	}
	switch local := r.Lease.NodeLocal; {
	case local.Is4():
		p.IPv4 = local
	case local.IsValid():
		p.IPv6 = local
	}
	for _, nic := range r.NICs {
		for _, a := range nic.Addresses {
			if leads := nic.DefaultRoute && a.Gateway.IsValid(); leads && a.Gateway.Is4() {
				p.Yield4 = true
			} else if leads {
				p.Yield6 = true
			}
		}
	}
	return p
}

// kernelFailure says what a person can do about a data path error.
func kernelFailure(err error) error {
	switch {
	case errors.Is(err, datapath.ErrNoNetns), errors.Is(err, datapath.ErrNotNetns):
		return failf(types.ErrInvalidNetNS, "netns-missing", "%s", err)
	case errors.Is(err, datapath.ErrNotSetUp), errors.Is(err, datapath.ErrClosed):
		return failf(types.ErrTryAgainLater, "datapath", "the node's data path is not ready: %s", err)
	}
	return &Failure{Code: CodeKernel, Reason: "kernel", Message: "the kernel refused a step of the pod's network", Details: err.Error(), Err: err}
}
