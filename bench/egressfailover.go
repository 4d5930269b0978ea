package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

const (
	// The interval and the timeout of new connections.
	dialInterval = 50 * time.Millisecond
	dialTimeout  = 500 * time.Millisecond
)

// egressFailover measures the longest time in which no new connection of a client succeeds after its
// gateway failed: killed, which its kubelet reports, with tunnels to gateways in turn with tunnels to the
// Service; and lost with its node, which nobody reports. The affinity is ClientIP, the default, so all
// connections of a client pass through the failed gateway.
func egressFailover(ctx context.Context, b *bench) []Result {
	proxy := startServiceProxy(b.bed.lab, serviceEgress, b.bed.few.Netns)
	defer func() { _ = proxy.stop() }()
	clients := map[types.NamespacedName]string{} // network namespaces by Egress
	for _, key := range []types.NamespacedName{directEgress, serviceEgress} {
		bounded, cancel := context.WithTimeout(ctx, egressPatience)
		defer cancel()
		p := must.Get(b.bed.few.AddPod(bounded, "failover-"+key.Name, node.PodOptions{Namespace: clientNamespace, Annotations: egressAnnotations(key)}))
		clients[key] = p.Netns()
	}
	s, bed := series{}, egressBed{b.bed}
	for range max(b.options.rounds/13, 1) {
		s.add("direct", bed.failOver(ctx, directEgress, clients[directEgress], (*lab.Gateway).Cut))
		s.add("service", bed.failOver(ctx, serviceEgress, clients[serviceEgress], (*lab.Gateway).Cut))
		s.add("node", bed.failOver(ctx, directEgress, clients[directEgress], (*lab.Gateway).Vanish))
	}
	must.OK(proxy.stop())
	return []Result{s.ratio("egress-failover", "s", "direct", "service"), measured("egress-failover-node", "s", s["node"]...)}
}

// failOver kills the gateway of a client's connections, waits until connections pass through another, and
// returns the longest gap in seconds. It deletes the gateway's Pod, so that the Egress gets a replacement.
func (b egressBed) failOver(ctx context.Context, key types.NamespacedName, client string, kill func(*lab.Gateway) error) float64 {
	b.ready(ctx, key)
	bounded, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	d := &dialler{client: client}
	defer d.stop()
	d.start(bounded)
	by := must.Get(d.until(bounded, func(netip.Addr) bool { return true }))
	gateways := b.lab.Gateways(key)
	i := slices.IndexFunc(gateways, func(g *lab.Gateway) bool { return slices.Contains(g.Pod.Addrs, by) })
	if i < 0 {
		must.OK(fmt.Errorf("connections through Egress %s come from %s, which is not the address of a gateway", key, by))
	}
	must.OK(kill(gateways[i]))
	if _, err := d.until(bounded, func(a netip.Addr) bool { return a != by }); err != nil {
		must.OK(fmt.Errorf("after gateway %s of Egress %s failed: %w", gateways[i].Name, key, err))
	}
	gap := d.stop()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: gateways[i].Name}}
	must.OK(b.lab.Kube.Client.Delete(ctx, pod, kubeclient.GracePeriodSeconds(0)))
	return gap.Seconds()
}

// dialler starts connections from a client to the host outside at an interval, without waiting for the
// previous ones.
type dialler struct {
	client string // network namespace
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu        sync.Mutex // guards all below
	succeeded []connected
}

// connected is a successful connection.
type connected struct {
	at time.Time  // when it was answered
	by netip.Addr // source address that the host outside sees
}

func (d *dialler) start(ctx context.Context) {
	ctx, d.cancel = context.WithCancel(ctx)
	d.all.Go(func() {
		tick := time.NewTicker(dialInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				d.all.Go(func() { d.dial(ctx) })
			}
		}
	})
}

func (d *dialler) dial(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	r, err := echo.Ask(ctx, d.client, "tcp", netip.AddrPortFrom(site.OutsideHost, echo.Port), netip.Addr{}, "x")
	if err != nil {
		return // failures are measured as gaps
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.succeeded = append(d.succeeded, connected{time.Now(), r.You})
}

// until waits for several consecutive connections from addresses that by accepts, and returns the first
// address.
func (d *dialler) until(ctx context.Context, by func(netip.Addr) bool) (netip.Addr, error) {
	const enough = 10
	for {
		d.mu.Lock()
		last := d.succeeded[max(0, len(d.succeeded)-enough):]
		ok := len(last) == enough && !slices.ContainsFunc(last, func(c connected) bool { return !by(c.by) })
		d.mu.Unlock()
		if ok {
			return last[0].by, nil
		}
		select {
		case <-ctx.Done():
			return netip.Addr{}, fmt.Errorf("no %d consecutive connections succeeded: %w", enough, ctx.Err())
		case <-time.After(dialInterval):
		}
	}
}

// stop stops the dialler, and returns the longest time between two consecutive successful connections.
func (d *dialler) stop() (gap time.Duration) {
	d.cancel()
	d.all.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortFunc(d.succeeded, func(a, b connected) int { return a.at.Compare(b.at) })
	for i := 1; i < len(d.succeeded); i++ {
		gap = max(gap, d.succeeded[i].at.Sub(d.succeeded[i-1].at))
	}
	return gap
}

// serviceProxy replaces kube-proxy on one node, for the IPv4 address of an Egress's Service: it sends
// everything to one ready endpoint, as session affinity does for a client, and deletes the conntrack
// entries of an endpoint that is no longer ready. It reacts at once, where kube-proxy may wait for a second.
type serviceProxy struct {
	lab   *lab.Lab
	of    types.NamespacedName
	netns string
	// stop stops the proxy, and returns its error.
	stop func() error
	to   netip.Addr // current endpoint
}

func startServiceProxy(l *lab.Lab, of types.NamespacedName, netns string) *serviceProxy {
	ctx, cancel := context.WithCancel(context.Background())
	p := &serviceProxy{lab: l, of: of, netns: netns}
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx) }()
	p.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	return p
}

func (p *serviceProxy) run(ctx context.Context) error {
	for ctx.Err() == nil {
		w, err := p.lab.Kube.Client.Watch(ctx, &discoveryv1.EndpointSliceList{},
			kubeclient.InNamespace(p.of.Namespace), kubeclient.MatchingLabels{discoveryv1.LabelServiceName: p.of.Name})
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // stopped
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

// follow selects another endpoint if the current one is not ready.
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
			return ns.Do(p.netns, func() error { return errors.Join(dnat(front, p.to), deleteConnections(front)) })
		}
	}
	return fmt.Errorf("Service %s has no IPv4 address: %v", p.of, s.Spec.ClusterIPs)
}

// dnat rewrites the destination front to another address, in the calling thread's network namespace. It
// removes the rule if that address is not valid.
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
		const destination = 16 // offset in the IPv4 header
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: front.AsSlice()},
			&expr.Immediate{Register: 1, Data: to.AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
		}})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("redirect %s to %s: %w", front, to, err)
	}
	return nil
}

// deleteConnections deletes the conntrack entries of connections to an address, in the calling thread's
// network namespace.
func deleteConnections(front netip.Addr) error {
	f := &netlink.ConntrackFilter{}
	if err := f.AddIP(netlink.ConntrackOrigDstIP, front.AsSlice()); err != nil {
		return err
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f); err != nil {
		return fmt.Errorf("delete connections to %s: %w", front, err)
	}
	return nil
}
