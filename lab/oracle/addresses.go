package oracle

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// Addresses verifies the addresses of a whole cluster's pods, and returns the number of pods. It compares
// the addresses with each other, with berthd's report on each node, and with EC2's state of the nodes, or in
// port mode with PodNICs, the cloud's ports and the nodes' OVSDBs. It ignores the nodes in without, such as
// one that is powered off. The cluster must be idle: pods that are starting or terminating are an error.
func Addresses(ctx context.Context, l *lab.Lab, without ...string) (pods int, err error) {
	if l.Mode == lab.PortMode {
		return portsAgree(ctx, l, without)
	}
	list := &corev1.PodList{}
	if err := l.Kube.Client.List(ctx, list); err != nil {
		return 0, fmt.Errorf("list pods: %w", err)
	}
	holder := map[netip.Addr]string{}
	for _, n := range l.Nodes() {
		if slices.Contains(without, n.Name) {
			continue
		}
		here := slices.DeleteFunc(slices.Clone(list.Items), func(p corev1.Pod) bool {
			return p.Spec.NodeName != n.Name || p.Spec.HostNetwork || p.DeletionTimestamp != nil
		})
		if err := agree(ctx, l, n, here, holder); err != nil {
			return 0, err
		}
		pods += len(here)
	}
	return pods, nil
}

// agree compares a node's pods with its daemon and with EC2. holder maps addresses of other nodes' pods to the pods;
// agree adds those of this node.
func agree(ctx context.Context, l *lab.Lab, n *node.Node, pods []corev1.Pod, holder map[netip.Addr]string) error {
	doc, err := lab.Document(ctx, n)
	if err != nil {
		return err
	}
	reported := map[netip.Addr]string{}
	for _, a := range doc.Allocated {
		for _, address := range []netip.Addr{a.Address, a.IPv6} {
			if address.IsValid() {
				reported[address] = a.Namespace + "/" + a.Pod
			}
		}
	}
	for _, nic := range doc.NICs { // a pod's first interface may be a branch
		for _, a := range nic.Addresses {
			if nic.Interface == firstInterface {
				reported[a.Addr()] = nic.Namespace + "/" + nic.Pod
			}
		}
	}
	for _, p := range pods {
		name := p.Namespace + "/" + p.Name
		if want := l.PodFamilies(); len(p.Status.PodIPs) != len(want.Families()) {
			return fmt.Errorf("pod %s has the addresses %v, want one of each family of %s", name, p.Status.PodIPs, want)
		}
		for _, ip := range p.Status.PodIPs {
			address, err := netip.ParseAddr(ip.IP)
			if err != nil {
				return fmt.Errorf("pod %s has the invalid address %q", name, ip.IP)
			}
			if !l.PodFamilies().Has(ipfamily.Of(address)) {
				return fmt.Errorf("pod %s has the address %s, want %s", name, address, l.PodFamilies())
			}
			if other := holder[address]; other != "" {
				return fmt.Errorf("%s is the address of both pods %s and %s", address, other, name)
			}
			holder[address] = name
			if reported[address] != name {
				return fmt.Errorf("berthd on %s reports %s, the address of %s, for %q", n.Name, address, name, reported[address])
			}
			if l.Cloud != nil && !onENI(l, n.InstanceID, address) {
				return fmt.Errorf("no ENI of %s has %s, the address of %s", n.Name, address, name)
			}
			delete(reported, address)
		}
	}
	if len(reported) > 0 {
		return fmt.Errorf("berthd on %s reports addresses of pods that do not exist: %v", n.Name, reported)
	}
	return nil
}

// onENI reports whether EC2 has an address on one of an instance's ENIs or branches.
func onENI(l *lab.Lab, instanceID string, a netip.Addr) bool {
	books := l.Snapshot()
	owns := func(e vpc.ENI) bool { return e.Owns(a) }
	return slices.ContainsFunc(books.InstanceENIs(instanceID), func(e vpc.ENI) bool {
		return owns(e) || slices.ContainsFunc(books.Branches(e.ID), owns)
	})
}
