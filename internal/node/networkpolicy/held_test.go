package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
)

// A kernel that refuses a change has it again later, with all that came meanwhile.
func TestRefusedChangesAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, one, k, server := withServer(t)
		k.fails(errors.New("ENOMEM"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := one.Set(ctx, "server", server); err == nil || err.Error() != "ENOMEM" {
			t.Error("a pod's policies are said to be in force although the kernel refused them")
		}
		client := c.addClient()
		sleep(time.Second)
		k.fails(nil)
		sleep(2 * time.Minute)
		if !k.lets(client.Addrs[0], server.Addrs[0]) || k.lets(foreign, server.Addrs[0]) {
			t.Errorf("the kernel has not what it should: %v", slices.Collect(maps.Keys(k.sets)))
		}
	})
}

// An ADD waits for the next attempt if the kernel rejects the first one.
func TestAddsWaitForTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, k, _ := c.node("one", t.TempDir())
		server := running("server", "10.0.0.1")
		sleep(time.Second)
		k.fails(errors.New("ENOMEM"))
		time.AfterFunc(100*time.Millisecond, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.fail = nil
		})
		began := time.Now()
		must(t, add(t, one, server))
		if took := time.Since(began); took > time.Second {
			t.Errorf("the ADD took %s", took)
		}
		if k.lets(foreign, server.Addrs[0]) {
			t.Error("the policies are not in force after the ADD")
		}
	})
}

// A policy that the kernel rejects holds the pods that it selects only: they are closed, and it is said why. Others that came with it are
// in force, new pods start, and once the kernel takes the policy so do its own.
func TestRefusedPoliciesHoldTheirPodsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, k, _ := c.node("one", t.TempDir())
		server, victim := running("server", "10.0.0.1"), running("victim", "10.0.0.4")
		client := c.addClient()
		c.feed.SetPod(resolved("victim", "one"))
		must(t, add(t, one, server))
		must(t, add(t, one, victim))
		k.refuses(policy.Ref{Namespace: "default", Name: "refused"})
		allowing := func(name, app, cidr string) compile.Compiled {
			p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
			p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}}}}
			return compile.NetworkPolicy(p)
		}
		c.feed.SetPolicy(allowing("refused", "victim", "192.0.2.0/24"))
		for i := range 20 {
			c.feed.SetPolicy(allowing(fmt.Sprint("innocent-", i), "server", "192.0.2.0/24"))
		}
		sleep(20 * time.Second)
		if k.lets(foreign, victim.Addrs[0]) || k.lets(client.Addrs[0], victim.Addrs[0]) {
			t.Error("a pod whose policy is refused is not closed")
		}
		if !k.lets(foreign, server.Addrs[0]) || !k.lets(client.Addrs[0], server.Addrs[0]) {
			t.Error("policies that came with one that is refused are not in force")
		}
		if c := one.Condition(); c.Healthy || !strings.Contains(c.Message, "the kernel rejects NetworkPolicy default/refused, so its pods are closed (default/victim): ") || strings.Contains(c.Message, "innocent") {
			t.Errorf("the condition is %+v", c)
		}
		for _, a := range one.Status(time.Now()).Attachments {
			if a.InForce != (a.Pod == "server") {
				t.Errorf("the policies of %s are in force: %t", a.Pod, a.InForce)
			}
		}
		c.feed.SetPod(resolved("neighbour", "one"))
		must(t, add(t, one, running("neighbour", "10.0.0.5")))
		c.feed.SetPolicy(allowing("refused", "victim", "198.51.100.0/24"))
		c.feed.SetPod(resolved("another", "one"))
		began := time.Now()
		must(t, add(t, one, running("another", "10.0.0.6")))
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("a pod waits for %s because the policy of another one is refused again", took)
		}
		c.feed.SetPolicy(allowing("refused", "victim", "192.0.2.0/24"))
		if err := add(t, one, victim); err == nil || !strings.Contains(err.Error(), "the kernel rejects NetworkPolicy default/refused") {
			t.Errorf("a pod starts closed: %v", err)
		}
		k.mu.Lock()
		before := k.tries
		k.mu.Unlock()
		sleep(time.Minute)
		k.mu.Lock()
		if n := k.tries - before; n < 6 || n > 30 {
			t.Errorf("the kernel was asked %d times in a minute", n)
		}
		k.refuse = policy.Ref{}
		k.mu.Unlock()
		sleep(20 * time.Second)
		if !k.lets(foreign, victim.Addrs[0]) || k.lets(client.Addrs[0], victim.Addrs[0]) {
			t.Error("a policy that the kernel takes by now is not in force")
		}
		if c := one.Condition(); !c.Healthy {
			t.Errorf("the condition is %+v", c)
		}
	})
}

// Pods whose policies the kernel accepts open soon again, also on a node where something changes all the time.
func TestSearchForRefusedPoliciesGoesOnDuringChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, k, _ := c.node("one", t.TempDir())
		server := running("server", "10.0.0.1")
		client := c.addClient()
		must(t, add(t, one, server))
		k.refuses(policy.Ref{Namespace: "default", Name: "refused"})
		c.feed.SetPod(resolved("victim", "one"))
		must(t, add(t, one, running("victim", "10.0.0.4")))
		refused := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "refused"}}
		refused.Spec.PodSelector.MatchLabels = map[string]string{"app": "victim"}
		c.feed.SetPolicy(compile.NetworkPolicy(refused))
		innocent := clientsOnly()
		innocent.Policy.Name = "innocent"
		c.feed.SetPolicy(innocent)
		for i := range 100 {
			other := resolved("other", "two")
			other.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}
			other.Labels = map[string]string{"app": "client"}
			c.feed.SetPod(other)
			sleep(100 * time.Millisecond)
		}
		if !k.lets(client.Addrs[0], server.Addrs[0]) {
			t.Error("a pod whose policies the kernel accepts is closed for ten seconds")
		}
		if c := one.Condition(); !strings.Contains(c.Message, "the kernel rejects NetworkPolicy default/refused, ") {
			t.Errorf("the condition is %+v", c)
		}
	})
}

// When policies that the kernel rejects are deleted before it is known which they are, connections are ended again.
func TestConnectionsEndAfterRefusedPoliciesAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, k, _ := c.node("one", t.TempDir())
		must(t, add(t, one, running("server", "10.0.0.1")))
		refused := clientsOnly()
		refused.Policy.Name = "refused"
		k.refuses(refused.Policy.Ref)
		c.feed.SetPolicy(refused)
		for range 500 {
			if strings.Contains(one.Condition().Message, "until berthd has found which") {
				c.feed.DeletePolicy(refused.Policy.Ref)
				break
			}
			sleep(10 * time.Millisecond)
		}
		sleep(time.Minute)
		if c := one.Condition(); !c.Healthy {
			t.Fatalf("the condition is %+v", c)
		}
		k.mu.Lock()
		before := len(k.ends)
		k.mu.Unlock()
		c.feed.DeletePolicy(clientsOnly().Policy.Ref)
		sleep(time.Second)
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.ends) == before {
			t.Error("after a change of policies, connections that they forbid are not ended")
		}
	})
}

// refusing is a kernel that refuses the first change, and notes which changes of sets are passed to it.
type refusing struct {
	*kernel
	passed []policy.SetChanges
}

func (k *refusing) Apply(_ []policytable.Pod, _ policytable.Elements, changed policy.SetChanges) error {
	if k.passed = append(k.passed, changed); len(k.passed) == 1 {
		return unix.EMSGSIZE
	}
	return nil
}

// The kernel remembers the changes of sets that it refused, so each is passed once: an element that came and went meanwhile would go twice.
func TestRefusedChangesArePassedOnce(t *testing.T) {
	k := &refusing{kernel: &kernel{}}
	e := New(Options{Kernel: k, Dir: t.TempDir(), Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler)})
	p := clientsOnly().Policy
	e.state.Take(&policy.Update{Version: 1, Policies: map[policy.Ref]*policy.Policy{p.Ref: p}})
	e.holding.refusals = refusalsUntilHeld - 1
	_, err := e.change(e.lists(), true, policy.SetChanges{"pods-1": {Elements: map[policy.Element]bool{{Addr: foreign}: false}}})
	must(t, err)
	if len(k.passed) != 2 || len(k.passed[0]) != 1 || len(k.passed[1]) != 0 {
		t.Errorf("changes passed to the kernel are %v", k.passed)
	}
}

// What the operator told while the kernel refused it is stored once the kernel has it.
func TestRefusedChangesAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.feed.SetPod(resolved("server", "one"))
		dir := t.TempDir()
		one, k, stop := c.node("one", dir)
		server := running("server", "10.0.0.1")
		must(t, add(t, one, server))
		sleep(time.Minute)
		k.fails(errors.New("ENOMEM"))
		c.feed.SetPolicy(clientsOnly())
		sleep(time.Second)
		k.fails(nil)
		sleep(time.Minute)
		if k.lets(foreign, server.Addrs[0]) {
			t.Fatal("the policy is not in force")
		}
		c.server.Stop()
		stop()
		one, k, _ = c.node("one", dir) // with an empty kernel
		must(t, add(t, one, server))
		if k.lets(foreign, server.Addrs[0]) {
			t.Error("after a reboot a policy is not in force that was before")
		}
	})
}
