package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/poll"
)

// serviceProxy stands for kube-proxy on one node, for the IPv4 address of an Egress's Service: it
// sends all to the first of the endpoints that are ready, as session affinity keeps a client at one
// while that is ready, and forgets connections to one that no longer is. It does so at once, where
// kube-proxy may wait for a second.
type serviceProxy struct {
	lab    *lab.Lab
	of     types.NamespacedName
	netns  string
	cancel context.CancelFunc
	ended  chan error

	to netip.Addr // to which packets are sent
}

func startServiceProxy(l *lab.Lab, of types.NamespacedName, netns string) *serviceProxy {
	ctx, cancel := context.WithCancel(context.Background())
	p := &serviceProxy{lab: l, of: of, netns: netns, cancel: cancel, ended: make(chan error, 1)}
	go func() { p.ended <- p.run(ctx) }()
	return p
}

// close ends it, and tells what went wrong.
func (p *serviceProxy) close() error {
	p.cancel()
	return <-p.ended
}

func (p *serviceProxy) run(ctx context.Context) error {
	for ctx.Err() == nil {
		w, err := p.lab.Kube.Client.Watch(ctx, &discoveryv1.EndpointSliceList{},
			kubeclient.InNamespace(p.of.Namespace), kubeclient.MatchingLabels{discoveryv1.LabelServiceName: p.of.Name})
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // it was ended
			}
			return fmt.Errorf("watch EndpointSlices: %w", err)
		}
		for e := range w.ResultChan() {
			slice, ok := e.Object.(*discoveryv1.EndpointSlice)
			if !ok || slice.AddressType != discoveryv1.AddressTypeIPv4 {
				continue
			}
			if err := p.follow(ctx, slice); err != nil {
				w.Stop()
				return err
			}
		}
	}
	return nil
}

// follow sends packets to another endpoint, if the one of before is not ready.
func (p *serviceProxy) follow(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	var ready []netip.Addr
	for _, e := range slice.Endpoints {
		if e.Conditions.Ready == nil || !*e.Conditions.Ready {
			continue
		}
		for _, text := range e.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				ready = append(ready, a)
			}
		}
	}
	if slices.Contains(ready, p.to) {
		return nil
	}
	p.to = netip.Addr{}
	if len(ready) > 0 {
		p.to = slices.MinFunc(ready, netip.Addr.Compare)
	}
	s := &corev1.Service{}
	if err := poll.Until(ctx, func() error { return p.lab.Kube.Client.Get(ctx, p.of, s) }); err != nil {
		return fmt.Errorf("read Service %s: %w", p.of, err)
	}
	for _, text := range s.Spec.ClusterIPs {
		if front, err := netip.ParseAddr(text); err == nil && front.Is4() {
			return ns.Do(p.netns, func() error { return errors.Join(dnat(front, p.to), forget(front)) })
		}
	}
	return fmt.Errorf("Service %s has no address of IPv4: %v", p.of, s.Spec.ClusterIPs)
}

// dnat sends what is for an address to another, in the calling thread's namespace; nowhere if that is
// not valid.
func dnat(front, to netip.Addr) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "bench-service"})
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: "prerouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	c.FlushChain(chain)
	if to.IsValid() {
		const destination = 16 // offset in the header of IPv4
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: front.AsSlice()},
			&expr.Immediate{Register: 1, Data: to.AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
		}})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("send %s to %s: %w", front, to, err)
	}
	return nil
}

// forget has the calling thread's namespace forget the connections to an address.
func forget(front netip.Addr) error {
	f := &netlink.ConntrackFilter{}
	if err := f.AddIP(netlink.ConntrackOrigDstIP, front.AsSlice()); err != nil {
		return err
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f); err != nil {
		return fmt.Errorf("forget connections to %s: %w", front, err)
	}
	return nil
}
