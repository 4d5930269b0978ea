package networkpolicy

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// podKernel is a pod's table in memory.
type podKernel struct {
	kernel
	removed, closed int
	failRemove      error
}

func (k *podKernel) Remove() error {
	if k.closed > 0 {
		return errors.New("it is closed")
	}
	if k.failRemove != nil {
		return k.failRemove
	}
	k.removed++
	return nil
}

func (k *podKernel) Close() error {
	k.closed++
	return nil
}

// Policies of a pod whose packets do not pass the node's IP stack are in force in its network namespace, and nowhere else.
// One such pod does not hold up others.
func TestPoliciesInsidePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &kernel{}
		opened := map[string]*podKernel{}
		var openErr error
		e := New(Options{
			Kernel: node, Dir: t.TempDir(), Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler), Interval: time.Hour,
			OpenInside: func(i Inside) (PodKernel, Denials, error) {
				if openErr != nil {
					return nil, nil, openErr
				}
				opened[i.Netns] = &podKernel{}
				return opened[i.Netns], nil, nil
			},
		})
		alone := &policy.Policy{Ref: policy.Ref{Namespace: "default", Name: "alone"}, Tier: policy.Namespaced, Isolates: [2]bool{true, false}}
		choose := func(version uint64, names ...string) {
			u := &policy.Update{Version: version, Whole: true, Pods: map[policy.PodName]*policy.Selected{}, Policies: map[policy.Ref]*policy.Policy{alone.Ref: alone}}
			for _, name := range []string{"a", "b", "c"} {
				s := &policy.Selected{UID: "uid-of-" + name}
				if slices.Contains(names, name) {
					s.Policies = []policy.Ref{alone.Ref}
				}
				u.Pods[policy.PodName{Namespace: "default", Name: name}] = s
			}
			e.take(1, u)
		}
		choose(1, "a", "c")
		step := func() error {
			t.Helper()
			<-e.dirty
			err := e.apply()
			if l := &e.own.looks; l.listed != nil {
				l.found, l.listed = <-l.listed, nil
				err = e.rest()
			}
			return err
		}
		set := func(p Pod) error {
			t.Helper()
			done := make(chan error)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			go func() { done <- e.Set(ctx, p.Name, p) }()
			synctest.Wait()
			_ = step()
			return <-done
		}
		a, b, c := running("a", "10.0.0.1"), running("b", "10.0.0.2"), running("c", "10.0.0.3")
		a.Inside = &Inside{Netns: "a", Links: []string{"eth0"}, Only: true}
		b.Inside = &Inside{Netns: "b", Links: []string{"eth1"}}
		must(t, set(a))
		must(t, set(b))
		must(t, set(c))
		inPod := opened["a"]
		if len(inPod.pods) != 1 || !slices.Equal(inPod.pods[0].Addrs, a.Addrs) || len(inPod.pods[0].Policies) != 1 {
			t.Errorf("the pod's own table has %+v", inPod.pods)
		}
		for _, p := range node.pods {
			if slices.Contains(p.Addrs, a.Addrs[0]) {
				t.Error("the node's table has a pod whose packets it does not see")
			}
		}
		if b := opened["b"]; b.pods != nil || b.removed != 1 || b.closed != 1 {
			t.Errorf("the table of a pod without policies: %+v", b)
		}

		inPod.pods, inPod.sets = nil, nil
		e.suspect(interval)
		must(t, step())
		if len(inPod.pods) != 1 || e.record.repaired.IsZero() {
			t.Error("a pod's table that was removed is not restored, or nothing says so")
		}

		openErr = errors.New("EPERM")
		choose(2, "a", "b", "c")
		if err := set(b); !errors.Is(err, openErr) {
			t.Errorf("the pod's policies are not in force, and Set returns %v", err)
		}
		if err := set(c); err != nil {
			t.Errorf("another pod has to wait: %v", err)
		}
		openErr = rtnl.ErrNoNetns
		must(t, set(b)) // it is gone
		openErr = nil
		must(t, set(b))
		if len(opened["b"].pods) != 1 {
			t.Error("the policies are not in force after an error")
		}

		opened["b"].ends, opened["b"].endTakes = nil, 10*time.Millisecond
		for i := range 10 { // connections of pods are not looked at for each change either
			choose(uint64(3+i), "a", "b", "c")
			must(t, step())
		}
		if n := len(opened["b"].ends); n != 1 {
			t.Errorf("connections of a pod were looked at %d times within a moment", n)
		}
		a.Inside = &Inside{Netns: "a", Links: []string{"eth9"}, Only: true}
		must(t, set(a))
		if inPod.removed != 0 || inPod.closed != 1 {
			t.Errorf("with another interface, the table is not replaced in one step: %+v", inPod)
		}
		if inPod = opened["a"]; len(inPod.pods) != 1 {
			t.Errorf("the table for another interface has %+v", inPod.pods)
		}
		e.Remove("a")
		must(t, step())
		if inPod.removed != 1 || inPod.closed != 1 {
			t.Errorf("the table of a pod that is gone: %+v", inPod)
		}
		e.insides.closeAll()
		if b := opened["b"]; b.removed != 0 || b.closed != 1 {
			t.Errorf("after the end of the process: %+v", b)
		}
	})
}

// A pod whose own table cannot be changed holds up nothing but itself: other pods start, connections end, and what the operator tells
// is stored.
func TestOnePodDoesNotHoldUpTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		dir := t.TempDir()
		one, k, stop := c.nodeWith("one", dir, func(o *Options) {
			o.OpenInside = func(Inside) (PodKernel, Denials, error) { return nil, nil, errors.New("EPERM") }
		})
		bad := running("server", "10.0.0.1")
		bad.Inside = &Inside{Netns: "bad", Links: []string{"eth0"}, Only: true}
		if err := add(t, one, bad); err == nil {
			t.Error("a pod starts without its policies")
		}
		sleep(time.Minute) // it fails again and again
		k.mu.Lock()
		k.ends = nil
		k.mu.Unlock()
		c.feed.SetPod(resolved("late", "one"))
		began := time.Now()
		must(t, add(t, one, running("late", "10.0.0.5")))
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("another pod waits for %s", took)
		}
		sleep(time.Second)
		k.mu.Lock()
		if len(k.ends) == 0 {
			t.Error("connections that policies forbid do not end")
		}
		k.mu.Unlock()
		if said := one.Condition(); said.Healthy {
			t.Error("the condition says nothing about the pod")
		}
		c.server.Stop()
		stop()
		one, _, _ = c.node("one", dir)
		must(t, add(t, one, running("late", "10.0.0.5")))
	})
}

// A table that could not be removed from a pod is removed later.
func TestRemovalFromAPodIsTriedAgain(t *testing.T) {
	k := &podKernel{failRemove: errors.New("EBUSY")}
	i := insides{open: func(Inside) (PodKernel, Denials, error) { return k, nil, nil }, log: slog.New(slog.DiscardHandler), tables: map[string]insidePod{}}
	v := view{inside: map[string]wanted{"a": {Inside: Inside{Netns: "a"}}}}
	if failed := i.apply(v, true, nil, nil); failed["a"] == nil {
		t.Error("no error although the table stays")
	}
	k.failRemove = nil
	if failed := i.apply(v, true, nil, nil); len(failed) > 0 || k.removed != 1 || k.closed != 1 {
		t.Errorf("after another attempt: %v, %+v", failed, k)
	}
}

// When connections cannot be listed, pods start all the same, and the attempt is repeated.
func TestConnectionsThatCannotBeListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, k, _ := c.node("one", t.TempDir())
		k.mu.Lock()
		k.failEnd = errors.New("EINTR")
		k.mu.Unlock()
		must(t, add(t, one, running("server", "10.0.0.1")))
		sleep(time.Minute)
		c.feed.SetPod(resolved("late", "one"))
		began := time.Now()
		must(t, add(t, one, running("late", "10.0.0.5")))
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("a pod waits for %s", took)
		}
		sleep(time.Minute)
		k.mu.Lock()
		k.failEnd, k.ends = nil, nil
		k.mu.Unlock()
		sleep(time.Minute)
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.ends) == 0 || !one.Condition().Healthy {
			t.Error("connections are not looked at again")
		}
	})
}

// Connections end as the node's table judges them: tunnels of Egresses go on, and pods that are judged elsewhere do not count.
func TestConnectionsEndAsTheNodeJudges(t *testing.T) {
	e := New(Options{Kernel: &kernel{}, Dir: t.TempDir(), Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler)})
	alone := &policy.Policy{Ref: policy.Ref{Namespace: "default", Name: "alone"}, Tier: policy.Namespaced, Isolates: [2]bool{true, true}}
	client, inside, outside := running("client", "10.0.0.1"), running("inside", "192.0.2.7"), running("outside", "10.0.0.3")
	gateway := netip.MustParseAddrPort("10.9.0.1:5555")
	client.Tunnels = []netip.AddrPort{gateway}
	inside.Inside = &Inside{Netns: "inside", Links: []string{"eth0"}, Only: true}
	e.pods = map[string]Pod{"client": client, "inside": inside, "outside": outside}
	v := e.view(map[string]inForce{"client": {list: []*policy.Policy{alone}}, "inside": {list: []*policy.Policy{alone}}, "outside": {}})
	pod, other := client.Addrs[0], outside.Addrs[0]
	for _, c := range []struct {
		name   string
		flow   policy.Flow
		allows bool
	}{
		{"a connection of an isolated pod", policy.Flow{Source: pod, Destination: gateway.Addr(), Protocol: 6, Port: 5555}, false},
		{"a tunnel", policy.Flow{Source: pod, Destination: gateway.Addr(), Protocol: 17, Port: 5555}, true},
		{"the gateway's end of it", policy.Flow{Source: gateway.Addr(), Destination: pod, Protocol: 17, Port: 5555}, true},
		{"another port of the gateway", policy.Flow{Source: pod, Destination: gateway.Addr(), Protocol: 17, Port: 53}, false},
		{"a host with the address of a pod in a network of its own", policy.Flow{Source: other, Destination: inside.Addrs[0], Protocol: 6, Port: 80}, true},
	} {
		if got := v.allows(c.flow); got != c.allows {
			t.Errorf("%s: allowed %t", c.name, got)
		}
	}
}
