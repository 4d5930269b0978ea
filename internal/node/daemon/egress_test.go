package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	dto "github.com/prometheus/client_model/go"

	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/egresspart"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/source"
)

// newEgressNode returns a node whose pods may have egress.
func newEgressNode(t *testing.T, addrs ...string) *node {
	n := newNode(t, addrs...)
	n.tunnels = newTunnels()
	return n
}

func checkOf(container string) *rpc.CheckRequest {
	return &rpc.CheckRequest{Attachment: addOf(container, "").GetAttachment(), Netns: "/run/netns/" + container}
}

// ADD sets up a client, a repeated ADD and CHECK succeed, and DEL clears it. Other pods are not
// affected.
func TestPodWithEgress(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat", "partner"))
	mustAdd(t, r, "a", n.newNetns("a"))
	n.tunnels.want(t, "internet/nat", "internet/partner")
	if reported := n.tunnels.reported[keyFor("a")]; len(reported.addrs) != 1 || reported.addrs[0] != n.addrs[0] {
		t.Errorf("reported to the operator: %v, want address %s", reported, n.addrs[0])
	}
	mustAdd(t, r, "b", n.newNetns("b"))
	if rec, _ := r.Store.Get(keyFor("b")); rec.Egress != nil {
		t.Errorf("pod without Egresses has egress %+v", rec.Egress)
	}
	mustDel(t, r, "b")
	n.tunnels.want(t, "internet/nat", "internet/partner")

	_, err := r.client.Check(within(t), checkOf("a"))
	must(t, err)
	n.tunnels.lose()
	_, err = r.client.Check(within(t), checkOf("a"))
	if f := wantFailure(t, err, cnierror.CodeMismatch); !strings.Contains(f.GetDetails(), "egress: the namespace has") {
		t.Errorf("CHECK = %v, want details with the difference", f)
	}
	mustAdd(t, r, "a", "/run/netns/a")
	n.tunnels.want(t, "internet/nat", "internet/partner")
	view := r.inspector.podView(within(t), "default", "pod-a")
	if got := view.Attachments[0].Egress; got == nil || len(got.Egresses) != 2 || got.Egresses[1].Name != "partner" || len(got.Egresses[1].Gateways) != 2 {
		t.Errorf("egress in /ip-manager/pod = %+v", got)
	}

	mustDelAll(t, r, "a")
	n.tunnels.want(t)
	if len(n.tunnels.reported) != 0 {
		t.Errorf("reported to the operator: %v, want nothing", n.tunnels.reported)
	}
	if _, ok := r.source.Holder(n.addrs[0]); ok {
		t.Error("the address of the failed ADD is still held")
	}
}

// An ADD waits for the operator, and reports the reason. A DEL ends the wait.
func TestAddWaitsForEgressClient(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5")
	n.warmWait = 50 * time.Millisecond
	r := n.restart(nil)
	r.egress.change(func() { r.egress.open = false })
	f := r.refused(t, addOf("a", n.newNetns("a")), types.ErrTryAgainLater)
	if !strings.Contains(f.GetMessage(), "no egress for the pod: no EgressClient shows yet") {
		t.Errorf("ADD = %v, want error about the missing EgressClient", f)
	}
	if r.source.Snapshot().Count[source.Used] != 0 || len(r.Store.Records()) != 0 {
		t.Error("the failed ADD left an address or a record")
	}
	n.warmWait = time.Minute
	r = n.restart(r)
	r.egress.change(func() { r.egress.open = false })
	added := make(chan error, 1)
	go func() { _, err := r.client.Add(within(t), addOf("a", "/run/netns/a")); added <- err }()
	waitFor(t, func() bool { return r.egress.Why(keyFor("a")) != nil })
	if w := r.inspector.podView(within(t), "default", "pod-a").Waiting; len(w) != 1 || w[0].Reason != "egress-unknown" {
		t.Errorf("waiting ADDs = %+v, want one with reason egress-unknown", w)
	}
	kind, cause, _ := r.front.whyWaits(keyFor("a"))
	if kind != podevents.WaitsForNetwork || cause != "egress-unknown" {
		t.Errorf("event: kind %v, cause %s, want a wait for the network with cause egress-unknown", kind, cause)
	}
	mustDel(t, r, "a")
	wantFailure(t, <-added, types.ErrTryAgainLater)

	go func() { _, err := r.client.Add(within(t), addOf("a", "/run/netns/a")); added <- err }()
	waitFor(t, func() bool { return r.egress.Why(keyFor("a")) != nil })
	r.egress.says("pod-a", testEgress("nat"))
	must(t, <-added)
	n.tunnels.want(t, "internet/nat")
}

// An ADD completes when the gateways serve the pod, or without them after a timeout. A DEL ends the
// wait, and gateways then drop the pod.
func TestAddWaitsForGateways(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	n.tunnels.serves, n.gatewayWait = make(chan struct{}), time.Minute
	r := n.restart(nil)
	waits := func(times int) {
		t.Helper()
		waitFor(t, func() bool { n.tunnels.mu.Lock(); defer n.tunnels.mu.Unlock(); return n.tunnels.waited == times })
	}
	for _, pod := range []string{"a", "b", "c"} {
		r.egress.says("pod-"+pod, testEgress("nat"))
		n.newNetns(pod)
	}
	added := make(chan error, 1)
	add := func(pod string) {
		go func() { _, err := r.client.Add(within(t), addOf(pod, "/run/netns/"+pod)); added <- err }()
	}
	add("a")
	waits(1)
	if reported := n.tunnels.reported[keyFor("a")]; reported.state != "Coming" || len(reported.addrs) != 1 {
		t.Errorf("reported to the operator: %+v, want state Coming with one address", reported)
	}
	mustDel(t, r, "a")
	wantFailure(t, <-added, types.ErrTryAgainLater)
	if len(n.tunnels.reported) != 0 || len(r.Store.Records()) != 0 {
		t.Errorf("after DEL: reported %v and %d records, want none", n.tunnels.reported, len(r.Store.Records()))
	}

	add("b")
	waits(2)
	close(n.tunnels.serves)
	must(t, <-added)
	n.tunnels.want(t, "internet/nat")
	if reported := n.tunnels.reported[keyFor("b")]; reported.state != "SetUp" {
		t.Errorf("reported to the operator: %+v, want state SetUp", reported)
	}

	n.tunnels.serves, n.gatewayWait = make(chan struct{}), 20*time.Millisecond
	r = n.restart(r)
	r.egress.says("pod-c", testEgress("nat"))
	mustAdd(t, r, "c", "/run/netns/c")
	waits(3)

	n.gatewayWait = 0
	r = n.restart(r)
	r.egress.says("pod-a", testEgress("nat"))
	mustAdd(t, r, "a", "/run/netns/a")
	waits(3)
}

// A part that reads a prefix of annotations gets exactly the annotations with that prefix.
func TestAnnotationsByPrefix(t *testing.T) {
	req := addOf("a", "")
	req.Annotations = &rpc.Annotations{All: map[string]string{"egress.berth.dev/internet": "nat", "egress.berth.dev/other": "b", "berth.dev/pool": "p", "berth.dev/x": "y"}}
	options := optionsOf(req, []string{"egress.berth.dev/", "berth.dev/pool"})
	if got := fmt.Sprint(options.Annotations); got != "map[berth.dev/pool:p egress.berth.dev/internet:nat egress.berth.dev/other:b]" {
		t.Errorf("annotations = %s", got)
	}
	n := newEgressNode(t, "10.0.0.5")
	r := n.restart(nil)
	req = addOf("a", n.newNetns("a"))
	req.Annotations = &rpc.Annotations{All: map[string]string{"egress.berth.dev/internet": ""}}
	if f := r.refused(t, req, types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), "annotation egress.berth.dev/internet is empty") {
		t.Errorf("ADD = %v, want error about the empty annotation", f)
	}
}

// On a kernel without Foo-over-UDP a client's ADD fails and leaves nothing behind. Other pods run, and a pod
// that becomes a client later keeps running unchanged until the kernel supports it.
func TestKernelWithoutFoU(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5", "10.0.0.6")
	no := fmt.Errorf("%w: module fou is missing", tunnel.ErrNoFoU)
	n.tunnels.set("Supported", no)
	n.tunnels.set("Apply", no)
	r := n.restart(nil)
	waitFor(t, func() bool { _, ok := r.conditions.get(egresspart.ConditionEgress); return ok })
	r.conditions.want(t, egresspart.ConditionEgress, false, "NoFoU: "+tunnel.ErrNoFoU.Error())
	r.egress.says("pod-a", testEgress("nat"))
	_, err := r.attachPod(t, "a", n.newNetns("a"))
	if f := cnierror.Of(err); f.Reason != "no-fou" || f.Code != types.ErrTryAgainLater || !strings.Contains(f.Error(), "internet/nat") || !strings.Contains(f.Error(), "module fou") {
		t.Errorf("ADD = code %d, reason %s: %v", f.Code, f.Reason, f)
	}
	if len(r.Store.Records()) != 0 {
		t.Error("the failed ADD left a record")
	}
	mustAdd(t, r, "b", n.newNetns("b"))
	n.tunnels.want(t)
	r.egress.says("pod-b", testEgress("nat"))
	state := func() string {
		n.tunnels.mu.Lock()
		defer n.tunnels.mu.Unlock()
		return n.tunnels.reported[keyFor("b")].state
	}
	waitFor(t, func() bool { return state() == "Failed" })
	_, err = r.client.Check(within(t), checkOf("b"))
	must(t, err)
	r.conditions.want(t, ConditionSupply, true, "")

	n.tunnels.set("Supported", nil)
	n.tunnels.set("Apply", nil)
	waitFor(t, func() bool { n.clock.Advance(time.Minute); return n.tunnels.agree("internet/nat") == nil })
	waitFor(t, func() bool {
		n.clock.Advance(time.Minute)
		c, _ := r.conditions.get(egresspart.ConditionEgress)
		return c.Healthy
	})
}

// attachPod runs an ADD of a pod without the socket.
func (r *running) attachPod(t *testing.T, container, netns string) (attachment.Record, error) {
	t.Helper()
	want, err := wantedBy(addOf(container, netns))
	must(t, err)
	return r.attachments.add(within(t), want, attachment.PodOptions{})
}

// Links and routes that other software removes from a pod's namespace are restored at the next interval
// and at startup.
func TestEgressIsRepaired(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	r := n.restart(nil)
	for _, pod := range []string{"a", "b", "c"} {
		r.egress.says("pod-"+pod, testEgress("nat"))
		mustAdd(t, r, pod, n.newNetns(pod))
	}
	applied := n.tunnels.count("Apply")
	n.tunnels.lose()
	waitFor(t, func() bool { n.clock.Advance(time.Minute); return n.tunnels.agree("internet/nat") == nil })
	if got := n.tunnels.count("Apply") - applied; got != 3 {
		t.Errorf("Apply was called %d times, want once for each of three pods", got)
	}
	r.stop()
	n.tunnels.lose()
	r = n.restart(nil)
	n.tunnels.settles(t, "internet/nat")

	// An attachment whose namespace is gone is not repaired, nor is one whose path leads to another
	// namespace.
	n.removeNetns("/run/netns/a")
	n.newNetns("b")
	applied = n.tunnels.count("Apply")
	cleared := n.tunnels.count("Clear")
	n.tunnels.lose()
	waitFor(t, func() bool { n.clock.Advance(time.Second); return n.tunnels.count("Apply") > applied })
	mustDelAll(t, r, "a")
	mustDelAll(t, r, "b")
	if a, c := n.tunnels.count("Apply")-applied, n.tunnels.count("Clear")-cleared; a != 1 || c != 0 {
		t.Errorf("Apply was called %d times and Clear %d times, want 1 and 0", a, c)
	}
	n.tunnels.want(t, "internet/nat")
}

// A pod is removed even if its egress cannot be cleared.
func TestPodIsRemovedIfEgressCannotBeCleared(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5")
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat"))
	mustAdd(t, r, "a", n.newNetns("a"))
	n.tunnels.set("Clear", errors.New("busy"))
	mustDelAll(t, r, "a")
	if len(r.Store.Records()) != 0 || len(n.tunnels.reported) != 0 {
		t.Errorf("records %v, reported %v; want none", r.Store.Records(), n.tunnels.reported)
	}
}

// DEL does not wait for the kernel to remove the egress; a new ADD of the container does.
func TestDelRepliesBeforeEgressIsCleared(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat"))
	netns := n.newNetns("a")
	mustAdd(t, r, "a", netns)
	block, entered := make(chan struct{}), make(chan struct{})
	n.tunnels.onEnter("Clear", func() { close(entered); <-block })
	mustDel(t, r, "a")
	r.addAfterRemoval(t, addOf("a", netns), "a", entered, block)
	n.tunnels.want(t, "internet/nat")
}

// mustDelAll is mustDel, and waits until the reaper has removed what lingers.
func mustDelAll(t *testing.T, r *running, container string) {
	t.Helper()
	mustDel(t, r, container)
	must(t, r.reaper.await(within(t), hostLinkName(keyFor(container)), attachment.Netns{}))
}

// Running pods are updated concurrently; one that blocks or fails does not delay the others.
func TestEgressOfRunningPodsIsUpdated(t *testing.T) {
	var addrs []string
	for i := range 40 {
		addrs = append(addrs, fmt.Sprintf("10.0.0.%d", 5+i))
	}
	n := newEgressNode(t, addrs...)
	r := n.restart(nil)
	var pods []string
	for i := range addrs {
		pods = append(pods, fmt.Sprint("p", i))
		mustAdd(t, r, pods[i], n.newNetns(pods[i]))
	}
	block := make(chan struct{})
	var first sync.Once
	n.tunnels.onEnter("Apply", func() {
		blocks := false
		first.Do(func() { blocks = true })
		if blocks {
			<-block
		}
	})
	r.egress.change(func() {
		for _, pod := range pods {
			r.egress.wants["pod-"+pod] = testEgress("nat")
		}
	})
	r.egress.news.Set()
	count := func() int {
		n.tunnels.mu.Lock()
		defer n.tunnels.mu.Unlock()
		return len(n.tunnels.has)
	}
	waitFor(t, func() bool { return count() == len(pods)-1 })
	close(block)
	n.tunnels.settles(t, "internet/nat")
	for _, wants := range [][]string{{"internet/nat", "internet/partner"}, {"internet/partner"}, nil} {
		r.egress.change(func() {
			for _, pod := range pods {
				r.egress.wants["pod-"+pod] = testEgress(cutAll(wants)...)
			}
		})
		r.egress.news.Set()
		n.tunnels.settles(t, wants...)
	}
	if rec, _ := r.Store.Get(keyFor(pods[0])); rec.Egress != nil {
		t.Errorf("former client still has egress %+v", rec.Egress)
	}
}

func cutAll(names []string) (cut []string) {
	for _, name := range names {
		cut = append(cut, strings.TrimPrefix(name, "internet/"))
	}
	return cut
}

// A failed change is retried after a backoff, or immediately if the desired state changes.
func TestFailedEgressChangeIsRetried(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5")
	r := n.restart(nil)
	mustAdd(t, r, "a", n.newNetns("a"))
	n.tunnels.set("Apply", errors.New("no buffer space"))
	r.egress.says("pod-a", testEgress("nat"))
	waitFor(t, func() bool { n.clock.Advance(100 * time.Millisecond); return n.tunnels.count("Apply") > 4 })
	if rec, _ := r.Store.Get(keyFor("a")); rec.Egress == nil || rec.Egress.State != attachment.EgressChanging {
		t.Errorf("recorded egress = %+v, want state changing", rec.Egress)
	}
	for _, m := range r.Source.Snapshot().Detail.Metrics() {
		if !strings.Contains(m.Desc().String(), `"berth_egress_clients"`) {
			continue
		}
		var got dto.Metric
		must(t, m.Write(&got))
		if state := got.GetLabel()[0].GetValue(); (got.GetGauge().GetValue() == 1) != (state == "changing") {
			t.Errorf("gauge of %s clients = %v", state, got.GetGauge().GetValue())
		}
	}
	n.tunnels.set("Apply", nil)
	r.egress.says("pod-a", testEgress("partner"))
	n.tunnels.settles(t, "internet/partner")
}

// Egress is updated when the pod's interfaces change.
func TestEgressFollowsNICs(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5")
	n.board = newSwitchboard()
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat"))
	r.nics.bind("pod-a", testNIC("eth1", "p-1"))
	mustAdd(t, r, "a", n.newNetns("a"))
	others := func() []netip.Addr {
		n.tunnels.mu.Lock()
		defer n.tunnels.mu.Unlock()
		for _, s := range n.tunnels.has {
			return s.others
		}
		return nil
	}
	if got := others(); len(got) != 1 {
		t.Errorf("further addresses of the pod = %v, want one", got)
	}
	defer n.tick()()
	other := testNIC("eth2", "p-2")
	other.Addresses = []attachment.NICAddress{{CIDR: netip.MustParsePrefix("192.168.7.7/24")}}
	r.given(testNIC("eth1", "p-1"), other)
	waitFor(t, func() bool { return len(others()) == 2 })
	n.tunnels.settles(t, "internet/nat")
}

// Gateways learn of a pod while it waits for the links of its NICs.
func TestPodIsAnnouncedBeforeNICsAreReady(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5")
	n.board = newSwitchboard()
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat"))
	r.nics.bind("pod-a", testNIC("eth1", "p-1"))
	r.nics.delay(true)
	added := make(chan error, 1)
	ns := n.newNetns("a")
	go func() { _, err := r.client.Add(within(t), addOf("a", ns)); added <- err }()
	waitFor(t, func() bool {
		n.tunnels.mu.Lock()
		defer n.tunnels.mu.Unlock()
		return n.tunnels.reported[keyFor("a")].state == "Coming"
	})
	r.nics.delay(false)
	must(t, <-added)
	n.tunnels.want(t, "internet/nat")
}

// A daemon is killed at each step of a change. Its successor restores the recorded state and continues.
func TestCrashesDuringEgressChanges(t *testing.T) {
	was, other := testEgress("nat"), testEgress("partner")
	for k, c := range []struct {
		point string
		then  *attachment.Egress // desired egress after the crash
		after []string
	}{
		{"daemon.egress.recorded", other, []string{"internet/partner"}},
		{"daemon.egress.applied", other, []string{"internet/partner"}},
		{"daemon.egress.changed", other, []string{"internet/partner"}},
		{"daemon.egress.recorded", nil, nil},
		{"daemon.egress.changed", nil, nil},
	} {
		t.Run(fmt.Sprint(k), func(t *testing.T) { // a short name, because it becomes part of a socket path
			n := newEgressNode(t, "10.0.0.5")
			r := n.restart(nil)
			r.egress.says("pod-a", was)
			mustAdd(t, r, "a", n.newNetns("a"))
			r.stop()
			n.crash(t, c.point, nil, func(r *running, rec attachment.Record) error {
				r.egress.says("pod-a", c.then)
				return r.changeEgress(context.Background(), rec.Key)
			})
			r = n.restart(nil) // the operator has not reported yet
			defer n.tick()()
			n.tunnels.settles(t, c.after...)
			r.egress.says("pod-a", was)
			mustAdd(t, r, "a", "/run/netns/a")
			n.tunnels.settles(t, "internet/nat")
			mustDelAll(t, r, "a")
			n.tunnels.want(t)
		})
	}
}
