package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
)

const (
	// Connections are begun so often, and given up after so long.
	dialInterval = 50 * time.Millisecond
	dialTimeout  = 500 * time.Millisecond
)

// egressFailover measures the longest time in which no new connection of a client comes about when its
// gateway goes: killed, so that its kubelet sees it and says so, by tunnels to gateways in turn with
// tunnels to the Service; and gone with its node, of which nobody tells. Affinity is ClientIP, the
// default, so that all connections of a client go by the gateway that goes.
func egressFailover(ctx context.Context, b *bench) (results []Result, err error) {
	proxy := startServiceProxy(b.bed.lab, serviceEgress, b.bed.few.Netns)
	defer func() { err = errors.Join(err, proxy.close()) }()
	clients := map[types.NamespacedName]*node.Pod{}
	for _, key := range []types.NamespacedName{directEgress, serviceEgress} {
		bounded, cancel := context.WithTimeout(ctx, egressPatience)
		defer cancel()
		clients[key], err = b.bed.few.AddPod(bounded, "failover-"+key.Name, node.PodOptions{Namespace: clientNamespace, Annotations: egressAnnotations(key)})
		if err != nil {
			return nil, err
		}
	}
	all := series{}
	for range max(b.options.rounds/13, 1) {
		for _, f := range []struct {
			of   string
			key  types.NamespacedName
			kill func(*lab.Gateway) error
		}{
			{"direct", directEgress, (*lab.Gateway).Cut},
			{"service", serviceEgress, (*lab.Gateway).Cut},
			{"node", directEgress, (*lab.Gateway).Vanish},
		} {
			gap, err := (egressBed{b.bed}).failOver(ctx, f.key, clients[f.key], f.kill)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.of, err)
			}
			all[f.of] = append(all[f.of], gap.Seconds())
		}
	}
	return []Result{
		ratio("egress-failover", "s", all["direct"], all["service"]),
		measured("egress-failover-node", "s", all["node"]...),
	}, nil
}

// failOver kills the gateway by which a client's connections go, and returns the longest gap once
// connections go by another. It has the Egress whole again before it returns.
func (e egressBed) failOver(ctx context.Context, key types.NamespacedName, client *node.Pod, kill func(*lab.Gateway) error) (time.Duration, error) {
	if err := e.ready(ctx, key); err != nil {
		return 0, err
	}
	bounded, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	d := &dialler{client: client.Netns()}
	defer d.stop()
	d.start(bounded)
	by, err := d.until(bounded, func(netip.Addr) bool { return true })
	if err != nil {
		return 0, err
	}
	gateways := e.bed.lab.Gateways(key)
	i := slices.IndexFunc(gateways, func(g *lab.Gateway) bool { return slices.Contains(g.Pod.Addrs, by) })
	if i < 0 {
		return 0, fmt.Errorf("connections come from %s, which is no gateway's", by)
	}
	if err := kill(gateways[i]); err != nil {
		return 0, err
	}
	if _, err := d.until(bounded, func(a netip.Addr) bool { return a != by }); err != nil {
		return 0, fmt.Errorf("after gateway %s went: %w", gateways[i].Name, err)
	}
	gap := d.stop()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: gateways[i].Name}}
	if err := e.bed.lab.Kube.Client.Delete(ctx, pod, kubeclient.GracePeriodSeconds(0)); err != nil {
		return 0, fmt.Errorf("delete the Pod of the gateway that went: %w", err)
	}
	return gap, nil
}

// dialler begins connections from a client to the host outside, one after the other without waiting
// for any.
type dialler struct {
	client string // its namespace
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu   sync.Mutex // guards what is below
	came []connected
}

// connected is a connection that came about.
type connected struct {
	at time.Time  // when it was answered
	by netip.Addr // as the host outside sees it
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
		return // it is a gap that is looked for
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.came = append(d.came, connected{time.Now(), r.You})
}

// until waits for a connection that comes from an address, and some more that do.
func (d *dialler) until(ctx context.Context, by func(netip.Addr) bool) (netip.Addr, error) {
	const enough = 10
	for {
		d.mu.Lock()
		last := d.came[max(0, len(d.came)-enough):]
		ok := len(last) == enough && !slices.ContainsFunc(last, func(c connected) bool { return !by(c.by) })
		d.mu.Unlock()
		if ok {
			return last[0].by, nil
		}
		select {
		case <-ctx.Done():
			return netip.Addr{}, fmt.Errorf("no %d connections in a row come about: %w", enough, ctx.Err())
		case <-time.After(dialInterval):
		}
	}
}

// stop ends it, and returns the longest time between two connections that came about one after the
// other.
func (d *dialler) stop() (gap time.Duration) {
	d.cancel()
	d.all.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortFunc(d.came, func(a, b connected) int { return a.at.Compare(b.at) })
	for i := 1; i < len(d.came); i++ {
		gap = max(gap, d.came[i].at.Sub(d.came[i-1].at))
	}
	return gap
}
