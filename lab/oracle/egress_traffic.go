package oracle

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
)

// Time limits of requests to the outside: if a reply is expected, and if none is.
const (
	askWithin    = 15 * time.Second
	refuseWithin = 2 * time.Second
)

// EgressTraffic verifies connections to the outside from each pod that is not a gateway, over both families, and
// several from each client. The outside must see a gateway's address if an Egress of the pod covers the destination,
// and the pod's own address otherwise. If the Egress has no gateway, there must be no reply. The lab must be at rest.
// An Egress whose tunnels lead to a Service is skipped: a lab without kubelets has no kube-proxy.
func EgressTraffic(ctx context.Context, l *lab.Lab) error {
	v, err := viewEgress(ctx, l.Kube.Client, running(l))
	if err != nil {
		return err
	}
	for _, n := range l.Nodes() {
		var wg sync.WaitGroup
		for _, p := range n.Pods() {
			if o := v.objects[p.UID]; o == nil || gatewayOf(o) != "" {
				continue
			}
			wg.Go(func() {
				for _, to := range []netip.Addr{site.OutsideHost, site.OutsideHost6} {
					if err := v.talks(ctx, p, to); err != nil {
						v.wrong("pod %s/%s on %s, to %s: %w", p.Namespace, p.Name, n.Name, to, err)
					}
				}
			})
		}
		wg.Wait()
	}
	return errors.Join(v.errs...)
}

// talks returns an error unless a pod is seen by the expected address.
func (v *egressView) talks(ctx context.Context, p *node.Pod, to netip.Addr) error {
	six := to.Is6()
	if !ofFamily(p.Addrs, six).IsValid() {
		return nil
	}
	ask := func(network string, within time.Duration) (netip.Addr, error) {
		one, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		r, err := echo.Ask(one, p.Netns(), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "hello from "+p.Name)
		return r.You, err
	}
	_, by := wayOf(v.uses[p.UID], to)
	want := p.Addrs
	switch {
	case by == nil:
	case toService(by):
		return nil
	case len(gatewayAddrs(by, six)) == 0:
		if as, err := ask("tcp", refuseWithin); err == nil {
			return fmt.Errorf("Egress %s has no gateway, but the pod is seen as %s", key(by), as)
		}
		return nil
	default:
		want = gatewayAddrs(by, six)
	}
	times := map[string]int{"tcp": 1, "udp": 1}
	if by != nil {
		times["tcp"] = 2 * len(want) // so that most gateways are used
	}
	for network, n := range times {
		for range n {
			as, err := ask(network, askWithin)
			if err != nil {
				return fmt.Errorf("by %s, by %s: %w", network, wayName(by), err)
			}
			if !slices.Contains(want, as) {
				return fmt.Errorf("it is seen as %s by %s, want one of %v, by %s", as, network, want, wayName(by))
			}
		}
	}
	return nil
}

func wayName(e *v1alpha1.Egress) string {
	if e == nil {
		return "its own way"
	}
	return "Egress " + key(e).String()
}
