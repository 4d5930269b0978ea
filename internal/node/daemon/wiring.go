package daemon

import (
	"context"
	"errors"
	"net"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
)

// wiring is the kernel state of an attachment: the link of the lease with its addresses and
// routes, if there is a lease, then the NICs, and then the egress, whose packets leave through one of them. It is
// set up, compared and removed only here.
type wiring struct {
	kernel Kernel
	parts  parts
}

// wire sets up all recorded state that the kernel lacks, and returns the record with the kernel's
// values. The error is a Failure.
func (w *wiring) wire(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	rec, err := w.wireLease(ctx, rec)
	if err != nil {
		return rec, err
	}
	return w.parts.setUp(ctx, rec)
}

// wireLease is wire for the lease only.
func (w *wiring) wireLease(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if rec.Lease.Empty() {
		return rec, nil
	}
	links, err := w.kernel.AddPod(ctx, PodOf(rec))
	if err != nil {
		return rec, kernelFailure(err)
	}
	rec.HostMAC, rec.PodMAC, rec.MTU = mac.Addr(links.HostMAC), mac.Addr(links.PodMAC), links.MTU
	return rec, nil
}

// unwire removes everything that leads to the pod, except the link of the lease, which the reaper removes. It
// removes the lease even if a part fails. The error is a Failure.
func (w *wiring) unwire(ctx context.Context, rec attachment.Record) error {
	err := w.parts.remove(ctx, rec)
	if failed := w.detach(ctx, rec); failed != nil {
		return failed
	}
	return err
}

// detach is unwire without the parts.
func (w *wiring) detach(ctx context.Context, rec attachment.Record) error {
	if rec.Lease.Empty() {
		return nil
	}
	if err := w.kernel.DetachPod(ctx, rec.HostLink, rec.Lease.Held()); err != nil {
		return kernelFailure(err)
	}
	return nil
}

// check returns an error that describes how the kernel differs from a record, or nil, and changes nothing.
func (w *wiring) check(ctx context.Context, rec attachment.Record) error {
	if !rec.Lease.Empty() {
		if err := w.kernel.CheckPod(ctx, PodOf(rec)); err != nil {
			return err
		}
	}
	for _, p := range w.parts {
		if err := p.Check(ctx, rec); err != nil {
			return err
		}
	}
	return nil
}

// PodOf converts a record with a lease for the data path.
func PodOf(r attachment.Record) datapath.Pod {
	p := datapath.Pod{
		Netns: r.Netns.Path, NetnsID: datapath.NetnsID{Dev: r.Netns.Dev, Inode: r.Netns.Inode},
		IfName: r.Key.IfName, HostIfName: r.HostLink, MTU: r.MTU,
		IPv4: r.Lease.IPv4, IPv6: r.Lease.IPv6,
		HostMAC: net.HardwareAddr(r.HostMAC), PodMAC: net.HardwareAddr(r.PodMAC),
		Several: len(r.NICs) > 0, FormerLink: r.FormerLink(),
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

// kernelFailure returns the Failure for a data path error.
func kernelFailure(err error) error {
	switch {
	case errors.Is(err, datapath.ErrNoNetns), errors.Is(err, datapath.ErrNotNetns):
		return cnierror.New(types.ErrInvalidNetNS, "netns-missing", "%s", err)
	case errors.Is(err, datapath.ErrNotSetUp), errors.Is(err, datapath.ErrClosed):
		return cnierror.New(types.ErrTryAgainLater, "datapath", "the node's data path is not ready: %s", err)
	}
	return cnierror.Because(err, cnierror.CodeKernel, "kernel", "the kernel rejected a step of the pod's network setup")
}
