package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/policypart"
	"github.com/berthnet/berth/internal/node/networkpolicy"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/source"
)

// fakeEnforcer is a policypart.Enforcer in memory.
type fakeEnforcer struct {
	wait         time.Duration
	startUnknown bool

	mu        sync.Mutex // guards all below
	known     map[string]chan struct{}
	fail      error // of Set
	pods      map[string]networkpolicy.Pod
	announced []networkpolicy.Pod
	answer    chan struct{} // of Announce; nil: the operator is away
	done      []string      // calls that change something
}

var _ policypart.Enforcer = (*fakeEnforcer)(nil)

func newEnforcer(known ...string) *fakeEnforcer {
	e := &fakeEnforcer{wait: 10 * time.Second, known: map[string]chan struct{}{}, pods: map[string]networkpolicy.Pod{}}
	for _, name := range known {
		close(e.of(name))
	}
	return e
}

// of is closed once a pod is known.
func (e *fakeEnforcer) of(name string) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known[name] == nil {
		e.known[name] = make(chan struct{})
	}
	return e.known[name]
}

func (e *fakeEnforcer) Known(ctx context.Context, name policy.PodName, uid string) error {
	select {
	case <-e.of(name.Name + " " + uid):
		return nil
	case <-ctx.Done():
		return errors.New(e.Unknown(name))
	}
}

func (*fakeEnforcer) Unknown(name policy.PodName) string { return "nobody knows " + name.Name }

func (e *fakeEnforcer) Set(_ context.Context, attachment string, p networkpolicy.Pod) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done = append(e.done, "set "+p.Name)
	if e.fail == nil {
		e.pods[attachment] = p
	}
	return e.fail
}

func (e *fakeEnforcer) Holds(attachment string, p networkpolicy.Pod) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	have := e.pods[attachment]
	return reflect.DeepEqual(have, p)
}

func (e *fakeEnforcer) Remove(attachment string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pods, attachment)
}

func (e *fakeEnforcer) Restore(pods map[string]networkpolicy.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pods = pods
	e.done = append(e.done, fmt.Sprint("restore ", len(pods)))
}

func (e *fakeEnforcer) Announce(p networkpolicy.Pod) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done = append(e.done, "announce "+p.Name)
	e.announced = append(e.announced, p)
	return e.answer
}

func (*fakeEnforcer) Condition() source.Condition {
	return source.Condition{Type: networkpolicy.ConditionReady, Healthy: true, Reason: "InForce"}
}

func (*fakeEnforcer) Describe(*source.Snapshot, int) {}

func (*fakeEnforcer) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// of is the pod of an attachment, with its addresses.
func (e *fakeEnforcer) want(t *testing.T, container string, addrs, local []string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	p, there := e.pods[keyFor(container).String()]
	if !there || p.Name != "pod-"+container || p.Namespace != "default" || p.UID != "uid-"+container || !slices.Equal(textsOf(p.Addrs), addrs) || !slices.Equal(textsOf(p.Local), local) {
		t.Errorf("policies are enforced for %+v, want %v and %v", e.pods, addrs, local)
	}
}

func textsOf(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// changed is what was done, in order.
func (e *fakeEnforcer) changed() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.done, ", ")
}

func (e *fakeEnforcer) note(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done = append(e.done, what)
}

// knownPod is a pod's entry in fakeEnforcer.known.
func knownPod(container string) string { return "pod-" + container + " uid-" + container }

// An ADD puts policies in force before there is an interface of the pod. DEL, and a restart, keep track of pods.
func TestPoliciesComeFirst(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	n.policies = newEnforcer(knownPod("a"), knownPod("b"))
	r := n.restart(nil)
	n.kernel.onEnter("AddPod", func() { n.policies.note("link") })
	mustAdd(t, r, "a", n.newNetns("a"))
	if got := n.policies.changed(); got != "restore 0, announce pod-a, set pod-a, link" {
		t.Errorf("the ADD did %s", got)
	}
	n.policies.want(t, "a", []string{"10.0.0.5"}, nil)
	if got := n.policies.announced; len(got) != 1 || !slices.Equal(textsOf(got[0].Addrs), []string{"10.0.0.5"}) {
		t.Errorf("other nodes are told %+v", got)
	}
	mustAdd(t, r, "a", "/run/netns/a")
	if got := n.policies.changed(); strings.Count(got, "set") != 1 {
		t.Errorf("a repeated ADD did %s", got)
	}
	n.policies.Remove(keyFor("a").String())
	if _, err := r.client.Check(within(t), &rpc.CheckRequest{Attachment: addOf("a", "").GetAttachment(), Netns: "/run/netns/a"}); err == nil || !strings.Contains(err.Error(), "network policies are enforced for other addresses or tunnels") {
		t.Errorf("CHECK of a pod without policies: %v", err)
	}
	n.policies.pods = map[string]networkpolicy.Pod{}
	r = n.restart(r)
	n.policies.want(t, "a", []string{"10.0.0.5"}, nil)
	if got := n.policies.changed(); !strings.HasSuffix(got, ", restore 1") || strings.Count(got, "set") != 1 { // before anything is applied
		t.Errorf("until after a restart: %s", got)
	}
	r.supply.look(false)
	waitFor(t, func() bool {
		c, _ := r.conditions.get(networkpolicy.ConditionReady)
		return c.Healthy && c.Reason == "InForce"
	})
	mustDel(t, r, "a")
	if len(n.policies.pods) != 0 {
		t.Errorf("policies stay in force: %+v", n.policies.pods)
	}
	// A kernel that does not take them: nothing is left.
	n.policies.fail = errors.New("ENOMEM")
	f := r.refused(t, addOf("b", n.newNetns("b")), types.ErrTryAgainLater)
	if !strings.Contains(f.GetMessage(), "the pod's network policies are not in force: ENOMEM") {
		t.Errorf("refused with %v", f)
	}
	if len(r.Store.Records()) != 0 || len(n.policies.pods) != 0 {
		t.Errorf("left: %v, %v", r.Store.Records(), n.policies.pods)
	}
}

// An ADD whose pod nobody knows fails after the wait, without an address, or starts if the settings say so; a DEL ends the wait.
func TestPoliciesThatAreNotKnown(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	n.policies = newEnforcer()
	n.policies.wait = 50 * time.Millisecond
	r := n.restart(nil)
	f := r.refused(t, addOf("a", n.newNetns("a")), types.ErrTryAgainLater)
	if f.GetMessage() != "the pod's network policies are not known: nobody knows pod-a" {
		t.Errorf("refused with %v", f)
	}
	if r.source.Cancels() != 0 {
		t.Error("an address was taken")
	}

	n.policies.wait = time.Minute
	r = n.restart(r)
	failed := make(chan error, 1)
	go func() {
		_, err := r.client.Add(within(t), addOf("a", "/run/netns/a"))
		failed <- err
	}()
	waitFor(t, func() bool { ex, _ := r.attachments.acquirer.why(keyFor("a")); return ex != nil })
	if ex, address := r.attachments.acquirer.why(keyFor("a")); address || ex.Reason != "policies-unknown" || ex.Message != "nobody knows pod-a" {
		t.Errorf("waits for %+v", ex)
	}
	mustDel(t, r, "a")
	wantFailure(t, <-failed, types.ErrTryAgainLater)
	close(n.policies.of(knownPod("a")))
	mustAdd(t, r, "a", "/run/netns/a")
	mustDel(t, r, "a")

	n.policies = newEnforcer()
	n.policies.wait, n.policies.startUnknown = 50*time.Millisecond, true
	n.addrs[0] = netip.MustParseAddr("10.0.0.6")
	r = n.restart(r)
	mustAdd(t, r, "a", "/run/netns/a")
	n.policies.want(t, "a", []string{"10.0.0.6"}, nil)
}

// An ADD waits until other nodes know the pod's addresses, for a short while.
func TestAddressesAreAnnounced(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	n.policies = newEnforcer(knownPod("a"), knownPod("b"))
	n.policies.answer = make(chan struct{})
	r := n.restart(nil)
	time.AfterFunc(50*time.Millisecond, func() { close(n.policies.answer) })
	began := time.Now()
	mustAdd(t, r, "a", n.newNetns("a"))
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("the ADD returned after %s, before other nodes know the address", took)
	}
	n.policies.answer = make(chan struct{}) // that never comes
	began = time.Now()
	mustAdd(t, r, "b", n.newNetns("b"))
	if took := time.Since(began); took < time.Second || took > 5*time.Second {
		t.Errorf("the ADD took %s", took)
	}
}

// Policies are enforced for the addresses by which a pod is known and those of which only its node knows, but not for those of
// further NICs, which may be another pod's in another network. Only the addresses of the sandbox's first interface are announced.
func TestAddressesOfPolicies(t *testing.T) {
	t.Run("node-local", func(t *testing.T) {
		n := newNodeLocal(t, "2001:db8::5")
		n.policies = newEnforcer(knownPod("a"))
		r := n.restart(nil)
		mustAdd(t, r, "a", n.newNetns("a"))
		n.policies.want(t, "a", []string{"2001:db8::5"}, []string{r.local(t, "a").String()})
	})
	t.Run("NICs", func(t *testing.T) {
		n := newPortNode(t, "10.0.0.5")
		n.policies = newEnforcer(knownPod("a"))
		r := n.startPorts([]attachment.NIC{testNIC("eth1", "p-1")})
		mustAdd(t, r, "a", n.newNetns("a"))
		n.policies.want(t, "a", []string{"10.0.0.5"}, nil)
		if in := n.policies.pods[keyFor("a").String()].Inside; in != nil {
			t.Errorf("a pod of the node is judged in %+v", in)
		}
	})
	t.Run("branch", func(t *testing.T) {
		n := newPortNode(t)
		n.policies = newEnforcer(knownPod("a"))
		r := n.startPorts([]attachment.NIC{testBranch("p-0")})
		mustAdd(t, r, "a", n.newNetns("a"))
		if in := n.policies.pods[keyFor("a").String()].Inside; in != nil {
			t.Errorf("a branch that the node routes is judged in %+v", in)
		}
	})
	t.Run("egress", func(t *testing.T) {
		n := newNode(t, "10.0.0.5")
		n.tunnels, n.policies = newTunnels(), newEnforcer(knownPod("a"))
		r := n.restart(nil)
		r.egress.says("pod-a", testEgress("nat"))
		mustAdd(t, r, "a", n.newNetns("a"))
		tunnels := func() (list []string) {
			n.policies.mu.Lock()
			defer n.policies.mu.Unlock()
			for _, to := range n.policies.pods[keyFor("a").String()].Tunnels {
				list = append(list, to.String())
			}
			return list
		}
		rec, _ := r.Store.Get(keyFor("a"))
		var want []string
		for _, g := range rec.Egress.Egresses[0].Gateways {
			want = append(want, netip.AddrPortFrom(g.Addresses[0], 5555).String())
		}
		if got := tunnels(); !slices.Equal(got, want) {
			t.Errorf("tunnels to %v, want %v", got, want)
		}
		// Old and new tunnels count while they change, also after a restart at that moment, and never for long.
		defer n.tick()()
		var during []string
		n.tunnels.set("Apply", errors.New("ENOBUFS"))
		n.tunnels.onEnter("Apply", func() {
			if during == nil {
				during = tunnels()
			}
		})
		moved := testEgress("nat")
		moved.Egresses[0].Gateways[1] = attachment.EgressGateway{ID: 3, UID: "new", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.3")}, Chosen: true}
		r.egress.says("pod-a", moved)
		waitFor(t, func() bool { return n.tunnels.count("Apply") > 1 })
		all := []string{"10.9.0.1:5555", "10.9.0.3:5555", "10.9.0.2:5555"}
		if !slices.Equal(during, all) {
			t.Errorf("tunnels to %v while they change, want %v", during, all)
		}
		r = n.restart(r)
		if got := tunnels(); !slices.Equal(got, all) {
			t.Errorf("tunnels to %v after a restart, want %v", got, all)
		}
		n.tunnels.set("Apply", nil)
		r.egress.says("pod-a", moved)
		waitFor(t, func() bool { return slices.Equal(tunnels(), all[:2]) })
		r.egress.says("pod-a", nil)
		waitFor(t, func() bool { return len(tunnels()) == 0 })
	})
	t.Run("first NIC", func(t *testing.T) {
		n := newPortNode(t)
		n.policies = newEnforcer(knownPod("a"))
		first := testNIC("eth0", "p-0")
		r := n.startPorts([]attachment.NIC{first, testNIC("eth1", "p-1")})
		mustAdd(t, r, "a", n.newNetns("a"))
		n.policies.want(t, "a", []string{"192.168.0.12"}, nil)
		rec, _ := r.Store.Get(keyFor("a"))
		if in := n.policies.pods[keyFor("a").String()].Inside; in == nil || in.Netns != "/run/netns/a" || in.ID != (rtnl.NetnsID{Dev: rec.Netns.Dev, Inode: rec.Netns.Inode}) || !slices.Equal(in.Links, []string{"eth0"}) || !in.Only {
			t.Errorf("a port of a switch is judged in %+v", in)
		}
		defer n.tick()()
		var during networkpolicy.Pod
		n.board.onEnter("Plug", func() {
			n.policies.mu.Lock()
			defer n.policies.mu.Unlock()
			during = n.policies.pods[keyFor("a").String()]
		})
		changed := testNIC("eth0", "p-0")
		changed.Addresses = []attachment.NICAddress{{CIDR: netip.MustParsePrefix("192.168.0.99/24")}}
		r.given(changed, testNIC("eth1", "p-1"))
		waitFor(t, func() bool {
			n.policies.mu.Lock()
			defer n.policies.mu.Unlock()
			now := n.policies.pods[keyFor("a").String()]
			return slices.Equal(textsOf(now.Addrs), []string{"192.168.0.99"}) && !now.Changes && during.Name != ""
		})
		if !slices.Equal(textsOf(during.Addrs), []string{"192.168.0.99"}) || !during.Changes {
			t.Errorf("policies are enforced for %+v when the NIC gets its new address, want the former one too", during)
		}
	})
	t.Run("two attachments", func(t *testing.T) {
		n := newNode(t, "10.0.0.5", "10.0.0.6")
		n.policies = newEnforcer(knownPod("a"))
		r := n.restart(nil)
		mustAdd(t, r, "a", n.newNetns("a"))
		n.clock.Advance(time.Second)
		second := addOf("a", "/run/netns/a")
		second.Attachment.IfName = "net1"
		_, err := r.client.Add(within(t), second)
		must(t, err)
		for range 2 {
			n.policies.want(t, "a", []string{"10.0.0.5"}, nil)
			key := keyFor("a")
			key.IfName = "net1"
			if p := n.policies.pods[key.String()]; len(p.Addrs) != 0 || !slices.Equal(textsOf(p.Local), []string{"10.0.0.6"}) {
				t.Errorf("policies of the second attachment: %+v", p)
			}
			r = n.restart(r)
		}
	})
}

// A sandbox outside Kubernetes has no policies; a pod without a UID is rejected.
func TestPoliciesNeedAUID(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	n.policies = newEnforcer()
	r := n.restart(nil)
	req := addOf("a", n.newNetns("a"))
	req.Pod.Uid = ""
	if f := r.refused(t, req, types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), "pod default/pod-a has no UID: --network-policies needs a container runtime that passes K8S_POD_UID") {
		t.Errorf("refused with %v", f)
	}
	req.Pod = nil
	_, err := r.client.Add(within(t), req)
	must(t, err)
	mustDel(t, r, "a")
	if got := n.policies.changed(); got != "restore 0" {
		t.Errorf("a sandbox outside Kubernetes had %s", got)
	}
}

// policyFailpoints is the prefix of the failpoints of network policies, which concern pods with a name only.
const policyFailpoints = "daemon.policies."

func TestEveryPolicyFailpointIsHit(t *testing.T) {
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, policyFailpoints) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "10.0.0.5")
			n.policies = newEnforcer(knownPod("a"))
			answer := make(chan struct{})
			close(answer)
			n.policies.answer = answer
			r := n.restart(nil)
			defer n.tick()()
			restore, err := failpoint.Set(name + "=error@1")
			must(t, err)
			defer restore()
			rec := attachment.Record{
				Key: keyFor("a"), Netns: attachment.Netns{Path: n.newNetns("a")}, Pod: attachment.Pod{Namespace: "default", Name: "pod-a", UID: "uid-a"},
			}
			if _, err := r.attachments.add(within(t), rec, attachment.PodOptions{}); !errors.Is(err, failpoint.ErrHit) {
				t.Errorf("ADD = %v, want failpoint.ErrHit", err)
			}
			if left := r.Store.Records(); len(left) != 0 {
				t.Errorf("records after the failed ADD = %+v, want none", left)
			}
		})
	}
}
