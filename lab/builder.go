package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
)

// builder starts the parts of a lab in the order of their dependencies.
type builder struct{ lab *Lab }

// raise starts all.
func (b builder) raise(ctx context.Context) error {
	l := b.lab
	if swept, err := Sweep(l.Dir, l.ID); err != nil {
		return fmt.Errorf("remove leftovers of an earlier lab: %w", err)
	} else if len(swept) > 0 {
		l.Progress(fmt.Sprintf("removed %d leftovers of an earlier lab", len(swept)))
	}
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return fmt.Errorf("lab directory: %w", err)
	}
	switch l.Mode {
	case PoolMode:
		return b.raiseSite(ctx)
	case PortMode:
		return b.raisePorts(ctx)
	default:
		return b.raiseEC2(ctx)
	}
}

// raiseEC2 raises a lab with a VPC of EC2.
func (b builder) raiseEC2(ctx context.Context) error {
	l := b.lab
	var err error
	if l.Cloud, err = vpc.New(*l.Spec, l.CloudOptions...); err != nil {
		return err
	}
	snapshot := l.Cloud.Snapshot()
	if l.Fabric, err = fabric.New(fabric.Options{ID: l.ID, CIDRs: cidrs(snapshot), Subnets: snapshot.Subnets, EgressOnly: egressOnly(snapshot)}); err != nil {
		return err
	}
	l.Progress(fmt.Sprintf("VPC %s with %d subnets; internet host %s, on-premises host %s",
		snapshot.VPCs[0].CIDRs[0], len(snapshot.Subnets), fabric.InternetHost, fabric.OnPremHost))
	if l.HasIPv6() {
		l.Progress(fmt.Sprintf("IPv6 VPC %s; internet host %s, on-premises host %s", snapshot.VPCs[0].IPv6CIDRs[0], fabric.InternetHost6, fabric.OnPremHost6))
	}
	if err := b.serve(); err != nil {
		return err
	}
	if l.Kubelets != nil { // machines boot while the control plane starts
		return b.raiseCluster(ctx, l.follower.follow)
	}
	if err := b.raiseKube(ctx); err != nil {
		return err
	}
	if err := l.follower.follow(); err != nil {
		return err
	}
	return b.settle(ctx)
}

// settle waits until the lab is up, unless the caller starts the daemons.
func (b builder) settle(ctx context.Context) error {
	l := b.lab
	if err := l.WaitReports(ctx); err != nil {
		return errors.Join(err, l.Err())
	}
	if l.NoDaemons {
		return nil
	}
	if err := l.WaitReady(ctx); err != nil || !l.hasPorts() {
		return err
	}
	return l.Kube.WaitVPCs(ctx)
}

func cidrs(b vpc.Snapshot) []netip.Prefix {
	var out []netip.Prefix
	for _, v := range b.VPCs {
		out = append(append(out, v.CIDRs...), v.IPv6CIDRs...)
	}
	return out
}

// egressOnly reports whether IPv6 leaves by an egress-only internet gateway.
func egressOnly(b vpc.Snapshot) bool {
	return slices.ContainsFunc(b.RouteTables, func(t vpc.RouteTable) bool { return slices.ContainsFunc(t.Routes, vpc.Route.EgressOnly) })
}
