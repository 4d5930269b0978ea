package networkpolicy

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
)

func sleep(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // in a bubble

// Status tells which policies are in force, since when, and why they are not.
func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, k, _ := c.node("one", t.TempDir())
		server := running("server", "10.0.0.1")
		if s := one.Status(time.Now()); s.Connected || s.Version != 0 || len(s.Attachments) != 0 {
			t.Errorf("at the start: %+v", s)
		}
		must(t, add(t, one, server))
		began := time.Now()
		sleep(time.Minute)
		s := one.Status(time.Now())
		if !s.Connected || s.ConnectError != "" || s.Failure != "" || s.Applied.IsZero() || !s.Enabled {
			t.Errorf("connected: %+v", s)
		}
		if len(s.Attachments) != 1 || len(s.Policies) != 1 || len(s.Sets) != 1 {
			t.Fatalf("%+v", s)
		}
		a := s.Attachments[0]
		want := introspect.AppliedPolicy{PolicyRef: introspect.PolicyRef{Kind: "NetworkPolicy", Namespace: "default", Name: "clients-only"}, Tier: "NetworkPolicy", Isolates: true}
		if a.Pod != "server" || a.UID != server.UID || len(a.Addresses) != 1 || !a.Known || !a.InForce || len(a.Ingress) != 1 || a.Ingress[0] != want || len(a.Egress) != 0 {
			t.Errorf("%+v", a)
		}
		if p := s.Policies[0]; p.Digest != clientsOnly().Policy.Digest() || p.Pods != 1 || p.InForce != 1 {
			t.Errorf("%+v", p)
		}
		since := a.Since
		if since.IsZero() || since.After(began) {
			t.Errorf("in force since %v", since)
		}

		// The operator is away, and a new one tells everything again: nothing changed.
		c.server.Stop()
		sleep(time.Minute)
		lost := one.Status(time.Now())
		if lost.Connected || lost.ConnectError == "" || !lost.Attachments[0].InForce || !lost.ConnectedSince.After(began) {
			t.Errorf("without an operator: %+v", lost)
		}
		c.start()
		c.fill()
		sleep(2 * time.Minute)
		if s = one.Status(time.Now()); !s.Connected || s.ConnectError != "" || !s.Attachments[0].Since.Equal(since) {
			t.Errorf("after a new operator: %+v", s)
		}

		// A policy changes, and the kernel rejects the change.
		k.fails(errors.New("ENOMEM"))
		p := clientsOnly()
		p.Policy.Rules[policy.Ingress][0].AnyPeer = true
		c.feed.SetPolicy(p)
		sleep(time.Second)
		s = one.Status(time.Now())
		if a := s.Attachments[0]; a.InForce || !a.Since.IsZero() || s.Failure != "ENOMEM" || s.FailureSince.IsZero() || s.Policies[0].InForce != 0 || s.Policies[0].Digest != p.Policy.Digest() {
			t.Errorf("while the kernel rejects: %+v", s)
		}
		if j := one.Judge(policy.Flow{Source: foreign, Destination: server.Addrs[0], Protocol: 6, Port: 80}); j.Failure != "ENOMEM" || !j.Ingress.Allowed {
			t.Errorf("while the kernel rejects: %+v", j)
		}
		k.fails(nil)
		sleep(2 * time.Minute)
		s = one.Status(time.Now())
		if a := s.Attachments[0]; !a.InForce || !a.Since.After(since) || s.Failure != "" || !s.FailureSince.IsZero() {
			t.Errorf("after the kernel refused: %+v", s)
		}
		if text, err := json.Marshal(one.Status(time.Now())); err != nil || strings.Contains(string(text), "null") {
			t.Errorf("%s, %v", text, err)
		}

		// A pod of which the operator says nothing.
		stranger := running("stranger", "10.0.0.3")
		must(t, one.Set(t.Context(), "stranger", stranger))
		s = one.Status(time.Now())
		if a := s.Attachments[1]; a.Known || !a.InForce || len(a.Ingress)+len(a.Egress) > 0 || len(s.Policies) != 1 {
			t.Errorf("an unknown pod: %+v", s)
		}
	})
}

// Judge names the policy and rule that decide, and the pod at each end.
func TestJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		out := &networkingv1.NetworkPolicy{}
		out.Namespace, out.Name = "default", "no-egress"
		out.Spec.PodSelector.MatchLabels = map[string]string{"app": "mute"}
		out.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		c.feed.SetPolicy(compile.NetworkPolicy(out))
		c.feed.SetPod(resolved("mute", "one"))
		one, _, _ := c.node("one", t.TempDir())
		server, mute, client := running("server", "10.0.0.1"), running("mute", "10.0.0.4"), resolved("client", "two")
		client.Addrs = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
		c.feed.SetPod(client)
		must(t, add(t, one, server))
		must(t, add(t, one, mute))
		sleep(time.Second)
		judge := func(from, to netip.Addr) introspect.PolicyJudgement {
			return one.Judge(policy.Flow{Source: from, Destination: to, Protocol: 6, Port: 80})
		}
		if j := judge(client.Addrs[0], server.Addrs[0]); !j.Ingress.Allowed || j.Ingress.Policy == nil || j.Ingress.Policy.Name != "clients-only" || j.Ingress.Pod != "server" || j.Egress.Pod != "" || !j.Egress.Allowed || j.Failure != "" {
			t.Errorf("client: %+v", j)
		}
		if j := judge(foreign, server.Addrs[0]); j.Ingress.Allowed || !j.Ingress.Isolated || j.Ingress.Policy != nil {
			t.Errorf("stranger: %+v", j)
		}
		if j := judge(mute.Addrs[0], foreign); j.Egress.Allowed || !j.Egress.Isolated || j.Egress.Pod != "mute" || !j.Ingress.Allowed || j.Ingress.Pod != "" {
			t.Errorf("mute: %+v", j)
		}
	})
}

// counting is a kernel that counts denied packets.
type counting struct{ Kernel }

func (counting) Refused() ([]policytable.Refused, error) {
	return []policytable.Refused{
		{Direction: policy.Ingress, Packets: 9}, {Direction: policy.Egress, Packets: 1},
		{Direction: policy.Ingress, Policies: []policy.Ref{{Namespace: "default", Name: "clients-only"}}, Packets: 7}, {Direction: policy.Ingress, Policies: []policy.Ref{{Name: "admins"}}, Packets: 2},
	}, nil
}

func TestDeniedPacketsAreCounted(t *testing.T) {
	e := New(Options{Kernel: counting{&kernel{}}, Dir: t.TempDir(), Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler)})
	text, err := json.Marshal(e.Status(time.Time{}).Denied)
	const want = `[{"direction":"Egress","policies":[],"packets":1},{"direction":"Ingress","policies":[],"packets":9},` +
		`{"direction":"Ingress","policies":[{"kind":"ClusterNetworkPolicy","name":"admins"}],"packets":2},` +
		`{"direction":"Ingress","policies":[{"kind":"NetworkPolicy","namespace":"default","name":"clients-only"}],"packets":7}]`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
}

// comparison is how a kernel compares, and with what.
type comparison struct {
	differs  int // so many times
	pods     []netip.Addr
	elements []policytable.Expected
}

func (k *kernel) Compare(pods []netip.Addr, elements []policytable.Expected) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.compared.pods, k.compared.elements = pods, elements; k.compared.differs > 0 {
		k.compared.differs--
		return errors.New("set x lacks 10.0.0.2")
	}
	return nil
}

// A judgement says whether the kernel has what decides. A change that comes in between is no difference.
func TestJudgeComparesTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, one, k, server := withServer(t)
		f := policy.Flow{Source: foreign, Destination: server.Addrs[0], Protocol: 6, Port: 80}
		for differs, want := range []string{"", "", "the kernel differs from what berthd applied: set x lacks 10.0.0.2"} {
			k.mu.Lock()
			k.compared.differs = differs
			k.mu.Unlock()
			if j := one.Judge(f); j.Failure != want || j.Ingress.Allowed {
				t.Errorf("differs %d times: %+v, want %q", differs, j, want)
			}
		}
		set := clientsOnly().Policy.Rules[policy.Ingress][0].Peers[0]
		if !slices.Equal(k.compared.pods, server.Addrs) || !slices.Equal(k.compared.elements, []policytable.Expected{{Set: set, Element: policy.Element{Addr: foreign}}}) {
			t.Errorf("compared %v and %+v", k.compared.pods, k.compared.elements)
		}
	})
}

// A policy is digested once, however often its state is asked for or its pods change, and digests of policies that are gone are
// dropped.
func TestPoliciesAreDigestedOnce(t *testing.T) {
	var r record
	now, old, fresh := time.Now(), clientsOnly().Policy, clientsOnly().Policy
	list := func(p *policy.Policy) map[string]inForce {
		return map[string]inForce{"a": {list: []*policy.Policy{p}}, "b": {list: []*policy.Policy{p}}}
	}
	r.succeeded(list(old), now)
	r.succeeded(list(fresh), now.Add(time.Second))
	if since := r.force["b"].since; !since.Equal(now) {
		t.Errorf("a new copy of a policy is in force since %v, want %v as before", since, now)
	}
	if _, has := r.digests[fresh]; !has || len(r.digests) != 1 {
		t.Errorf("digests of %d policies are kept, want that of the present one", len(r.digests))
	}
	r.digests[fresh] = "kept"
	if r.digest(fresh) != "kept" {
		t.Error("the digest was computed again")
	}
}
