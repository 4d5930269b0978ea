package podegress

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podegress/egressfake"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/confirm"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// add is an ADD that waits for so long at most, and tells how long it did.
func add(c *Clients, req attachment.Request, most time.Duration) (e *attachment.Egress, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	start := time.Now()
	e, err = c.Acquire(ctx, req)
	return e, time.Since(start), err
}

// While the API server does not tell which Egresses there are, pods that name one wait, and
// others for a few seconds after the start.
func TestWaitsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clients(t, newObserved(""), func(*Config) {})
		go confirm.Await(t.Context(), c.clock, c.stopWaiting)
		go func() {
			e, took, err := add(c, sourcetest.Request(1), time.Minute)
			if e != nil || err != nil || took != confirm.Timeout {
				t.Errorf("a pod that names none got %v, %v after %v", e, err, took)
			}
		}()
		synctest.Wait()
		if why := c.Why(sourcetest.Key(1)); why == nil || why.Reason != "starting" {
			t.Errorf("it waits for %+v", why)
		}
		_, took, err := add(c, naming(2, "nat"), 45*time.Second)
		if why, ok := errors.AsType[*source.Exhausted](err); !ok || why.Reason != "starting" || took != 45*time.Second {
			t.Errorf("a pod that names one got %v after %v", err, took)
		}
		if c.Why(naming(2, "nat").Key) != nil || c.waiters.Len() > 0 {
			t.Error("nobody waits any more")
		}
		// From now on none waits that need not.
		if _, took, err := add(c, sourcetest.Request(3), time.Minute); err != nil || took != 0 {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// An ADD goes on the moment that the operator has said what it waits for.
func TestWaitEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clients(t, known(selecting("a")), func(*Config) {})
		for after, do := range map[time.Duration]func(b *observed){
			time.Second:     func(b *observed) { b.putClient(clientOf(2, useNamed("nat"))) }, // another pod
			2 * time.Second: func(b *observed) { b.putClient(clientOf(1, useNamed("nat"))) },
			3 * time.Second: func(b *observed) { b.dropEgress(useNamed("nat").name, "") },
		} {
			time.AfterFunc(after, func() { c.change(do) })
		}
		go func() {
			e, took, err := add(c, sourcetest.Request(1), time.Minute)
			if err != nil || took != 2*time.Second || len(e.Egresses) != 1 {
				t.Errorf("%+v, %v after %v", e, err, took)
			}
		}()
		// Its Egress, which may have selected it, is deleted while it waits.
		if e, took, err := add(c, sourcetest.Request(3), time.Minute); err != nil || took != 3*time.Second || e != nil {
			t.Errorf("%+v, %v after %v", e, err, took)
		}
		synctest.Wait()
	})
}

func TestKernel(t *testing.T) {
	c := clients(t, known(), func(cfg *Config) { cfg.ClusterNetworks = prefixes("10.0.0.0/8") })
	k := c.cfg.Kernel.(*egressfake.Kernel)
	rec := record(1)
	both := gatewayNumber(1)
	both.addrs = addrs("10.9.0.9", "fd00::9")
	self := gatewayNumber(2)
	self.addrs = rec.OwnAddrs()
	to := egressWith("nat", both, self)
	to.destinations = prefixes("203.0.113.0/24", "2001:db8::/32")
	e := planned("uid-1", nil, nil, to)
	rec.Egress = &e
	rec.NICs = []attachment.NIC{{IfName: "eth1", Addresses: []attachment.NICAddress{{CIDR: prefixes("192.168.0.0/24")[0]}}}}
	ctx := t.Context()
	harness.OK(t, c.Apply(ctx, rec))
	harness.OK(t, c.Check(ctx, rec))
	s := k.Clients()[rec.Netns.Path]
	got := s.Egresses[0]
	if len(got.Destinations) != 1 || len(got.Gateways) != 1 || len(got.Gateways[0].Addrs) != 1 || got.Gateways[0].Addrs[0] != both.addrs[0] || got.Name != "internet/nat" {
		t.Errorf("a pod with IPv4 alone has %+v", got)
	}
	if len(s.Others) != 1 || len(s.Addrs) != 1 || s.Link != "eth0" || s.Port != 5555 || len(s.ClusterNetworks) != 1 {
		t.Errorf("it has %+v", s)
	}
	// One that reaches IPv6 as its node is kept from going there past its gateways.
	local := rec
	local.Lease.NodeLocal = addrs("fd00::ac:5")[0]
	if s := c.tunnels.setup(local); s.NodeLocal != local.Lease.NodeLocal || len(s.Addrs) != 1 || len(s.Egresses[0].Destinations) != 2 || len(s.Egresses[0].Gateways[0].Addrs) != 1 {
		t.Errorf("with a node-local address of IPv6 it has %+v", s)
	}
	c.SetClusterNetworks(prefixes("10.0.0.0/8", "100.64.0.0/16"))
	if s := c.tunnels.setup(rec); len(s.ClusterNetworks) != 2 {
		t.Errorf("the VPC's networks are not among %v", s.ClusterNetworks)
	}
	harness.OK(t, c.Clear(ctx, rec))
	if c.Check(ctx, rec) == nil || len(k.Clients()) > 0 {
		t.Error("it is there still")
	}
	rec.Egress = &attachment.Egress{Forward: true}
	if c.Check(ctx, rec) == nil {
		t.Error("it does not forward yet")
	}
	harness.OK(t, c.Apply(ctx, rec))
	harness.OK(t, c.Check(ctx, rec))
	// What is in a gateway's namespace has the names of a client's tunnels, and is the gateway's.
	harness.OK(t, k.Apply(ctx, rec.Netns.Path, s))
	harness.OK(t, c.Apply(ctx, rec))
	harness.OK(t, c.Check(ctx, rec))
	harness.OK(t, c.Clear(ctx, rec))
	if len(k.Clients()) != 1 {
		t.Error("a gateway's tunnels are taken away")
	}
	k.Fail(errors.New("no memory"))
	if c.Apply(ctx, rec) == nil || c.Supported(ctx) == nil {
		t.Error("the kernel's error is not reported")
	}
}
