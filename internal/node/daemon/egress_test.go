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

// A client is set up at its ADD, repeated, checked, and cleared at its DEL. Nothing is done for other
// pods.
func TestPodWithEgress(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat", "partner"))
	mustAdd(t, r, "a", n.newNetns("a"))
	n.tunnels.want(t, "internet/nat", "internet/partner")
	if reported := n.tunnels.reported[keyFor("a")]; len(reported.addrs) != 1 || reported.addrs[0] != n.addrs[0] {
		t.Errorf("the operator heard of %v", reported)
	}
	mustAdd(t, r, "b", n.newNetns("b"))
	if rec, _ := r.Store.Get(keyFor("b")); rec.Egress != nil {
		t.Errorf("a pod that is no client has %+v", rec.Egress)
	}
	mustDel(t, r, "b")
	n.tunnels.want(t, "internet/nat", "internet/partner")

	_, err := r.client.Check(within(t), checkOf("a"))
	must(t, err)
	n.tunnels.lose()
	_, err = r.client.Check(within(t), checkOf("a"))
	if f := wantFailure(t, err, cnierror.CodeMismatch); !strings.Contains(f.GetDetails(), "egress: the namespace has") {
		t.Errorf("CHECK says %v", f)
	}
	mustAdd(t, r, "a", "/run/netns/a")
	n.tunnels.want(t, "internet/nat", "internet/partner")
	view := r.inspector.podView(within(t), "default", "pod-a")
	if got := view.Attachments[0].Egress; got == nil || len(got.Egresses) != 2 || got.Egresses[1].Name != "partner" || len(got.Egresses[1].Gateways) != 2 {
		t.Errorf("/ip-manager/pod has %+v", got)
	}

	mustDel(t, r, "a")
	n.tunnels.want(t)
	if len(n.tunnels.reported) != 0 {
		t.Errorf("the operator heard %v", n.tunnels.reported)
	}
	if _, ok := r.source.Holder(n.addrs[0]); ok {
		t.Error("its address is held")
	}
}

// An ADD waits for the operator, and reports for what. A DEL ends the wait.
func TestADDWaitsForItsEgressClient(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5")
	n.warmWait = 50 * time.Millisecond
	r := n.restart(nil)
	r.egress.change(func() { r.egress.open = false })
	f := r.refused(t, addOf("a", n.newNetns("a")), types.ErrTryAgainLater)
	if !strings.Contains(f.GetMessage(), "no egress for the pod: no EgressClient says yet") {
		t.Errorf("the ADD says %v", f)
	}
	if r.source.Snapshot().Count[source.Used] != 0 || len(r.Store.Records()) != 0 {
		t.Error("the ADD left something")
	}
	n.warmWait = time.Minute
	r = n.restart(r)
	r.egress.change(func() { r.egress.open = false })
	added := make(chan error, 1)
	go func() { _, err := r.client.Add(within(t), addOf("a", "/run/netns/a")); added <- err }()
	waitFor(t, func() bool { return r.egress.Why(keyFor("a")) != nil })
	if w := r.inspector.podView(within(t), "default", "pod-a").Waiting; len(w) != 1 || w[0].Reason != "egress-unknown" {
		t.Errorf("waiting are %+v", w)
	}
	kind, cause, _ := r.front.whyWaits(keyFor("a"))
	if kind != podevents.WaitsForNetwork || cause != "egress-unknown" {
		t.Errorf("its pod waits for %v, %s", kind, cause)
	}
	mustDel(t, r, "a")
	wantFailure(t, <-added, types.ErrTryAgainLater)

	go func() { _, err := r.client.Add(within(t), addOf("a", "/run/netns/a")); added <- err }()
	waitFor(t, func() bool { return r.egress.Why(keyFor("a")) != nil })
	r.egress.says("pod-a", testEgress("nat"))
	must(t, <-added)
	n.tunnels.want(t, "internet/nat")
}

// An ADD goes on when the gateways serve the pod, or without them after a timeout. A DEL ends the
// wait, and gateways then drop the pod.
func TestADDWaitsForGateways(t *testing.T) {
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
		t.Errorf("the operator heard %+v", reported)
	}
	mustDel(t, r, "a")
	wantFailure(t, <-added, types.ErrTryAgainLater)
	if len(n.tunnels.reported) != 0 || len(r.Store.Records()) != 0 {
		t.Errorf("after the DEL the operator knows of %v, and there are %d records", n.tunnels.reported, len(r.Store.Records()))
	}

	add("b")
	waits(2)
	close(n.tunnels.serves)
	must(t, <-added)
	n.tunnels.want(t, "internet/nat")
	if reported := n.tunnels.reported[keyFor("b")]; reported.state != "SetUp" {
		t.Errorf("the operator heard %+v", reported)
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

// Parts that read a prefix of annotations get all with that prefix, and no others.
func TestAnnotationsByPrefix(t *testing.T) {
	req := addOf("a", "")
	req.Annotations = &rpc.Annotations{All: map[string]string{"egress.berth.dev/internet": "nat", "egress.berth.dev/other": "b", "berth.dev/pool": "p", "berth.dev/x": "y"}}
	options := optionsOf(req, []string{"egress.berth.dev/", "berth.dev/pool"})
	if got := fmt.Sprint(options.Annotations); got != "map[berth.dev/pool:p egress.berth.dev/internet:nat egress.berth.dev/other:b]" {
		t.Errorf("options are %s", got)
	}
	n := newEgressNode(t, "10.0.0.5")
	r := n.restart(nil)
	req = addOf("a", n.newNetns("a"))
	req.Annotations = &rpc.Annotations{All: map[string]string{"egress.berth.dev/internet": ""}}
	if f := r.refused(t, req, types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), "annotation egress.berth.dev/internet is empty") {
		t.Errorf("the ADD says %v", f)
	}
}

// On a kernel without Foo-over-UDP a client's ADD fails and leaves nothing. Other pods run, and a pod
// that becomes a client later runs on unchanged until the kernel supports it.
func TestKernelWithoutFoU(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5", "10.0.0.6")
	no := fmt.Errorf("%w: module fou is not there", tunnel.ErrNoFoU)
	n.tunnels.set("Supported", no)
	n.tunnels.set("Apply", no)
	r := n.restart(nil)
	waitFor(t, func() bool { _, ok := r.conditions.get(egresspart.ConditionEgress); return ok })
	r.conditions.want(t, egresspart.ConditionEgress, false, "NoFoU: "+tunnel.ErrNoFoU.Error())
	r.egress.says("pod-a", testEgress("nat"))
	_, err := r.attachPod(t, "a", n.newNetns("a"))
	if f := cnierror.Of(err); f.Reason != "no-fou" || f.Code != types.ErrTryAgainLater || !strings.Contains(f.Error(), "internet/nat") || !strings.Contains(f.Error(), "module fou") {
		t.Errorf("the ADD says %d %s %v", f.Code, f.Reason, f)
	}
	if len(r.Store.Records()) != 0 {
		t.Error("the ADD left a record")
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

// attachPod is an ADD of a pod without the socket.
func (r *running) attachPod(t *testing.T, container, netns string) (attachment.Record, error) {
	t.Helper()
	want, err := wantedBy(addOf(container, netns))
	must(t, err)
	return r.attachments.add(within(t), want, attachment.PodOptions{})
}

// Links and routes that other software removes in a pod's namespace are back at the next interval,
// and after a start.
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
		t.Errorf("three pods were set up %d times", got)
	}
	r.stop()
	n.tunnels.lose()
	r = n.restart(nil)
	n.tunnels.settles(t, "internet/nat")

	// One whose namespace is gone is nobody's to repair, and one of another path's is not
	// looked at.
	n.removeNetns("/run/netns/a")
	n.newNetns("b")
	applied = n.tunnels.count("Apply")
	cleared := n.tunnels.count("Clear")
	n.tunnels.lose()
	waitFor(t, func() bool { n.clock.Advance(time.Second); return n.tunnels.count("Apply") > applied })
	mustDel(t, r, "a")
	mustDel(t, r, "b")
	if a, c := n.tunnels.count("Apply")-applied, n.tunnels.count("Clear")-cleared; a != 1 || c != 0 {
		t.Errorf("set up %d pods, cleared %d", a, c)
	}
	n.tunnels.want(t, "internet/nat")
}

// A pod whose egress cannot be cleared is removed anyway.
func TestEgressThatCannotBeCleared(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5")
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat"))
	mustAdd(t, r, "a", n.newNetns("a"))
	n.tunnels.set("Clear", errors.New("busy"))
	mustDel(t, r, "a")
	if len(r.Store.Records()) != 0 || len(n.tunnels.reported) != 0 {
		t.Errorf("left %v, reported %v", r.Store.Records(), n.tunnels.reported)
	}
}

// Running pods follow the operator concurrently; one that blocks or fails delays no other.
func TestEgressOfRunningPods(t *testing.T) {
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
		t.Errorf("a pod that is no client any more has %+v", rec.Egress)
	}
}

func cutAll(names []string) (cut []string) {
	for _, name := range names {
		cut = append(cut, strings.TrimPrefix(name, "internet/"))
	}
	return cut
}

// A failed change is retried, and at once if something else is desired.
func TestEgressThatCannotBeSetUp(t *testing.T) {
	n := newEgressNode(t, "10.0.0.5")
	r := n.restart(nil)
	mustAdd(t, r, "a", n.newNetns("a"))
	n.tunnels.set("Apply", errors.New("no buffer space"))
	r.egress.says("pod-a", testEgress("nat"))
	waitFor(t, func() bool { n.clock.Advance(100 * time.Millisecond); return n.tunnels.count("Apply") > 4 })
	if rec, _ := r.Store.Get(keyFor("a")); rec.Egress == nil || rec.Egress.State != attachment.EgressChanging {
		t.Errorf("recorded is %+v", rec.Egress)
	}
	for _, m := range r.Source.Snapshot().Detail.Metrics() {
		if !strings.Contains(m.Desc().String(), `"berth_egress_clients"`) {
			continue
		}
		var got dto.Metric
		must(t, m.Write(&got))
		if state := got.GetLabel()[0].GetValue(); (got.GetGauge().GetValue() == 1) != (state == "changing") {
			t.Errorf("counted %v clients that are %s", got.GetGauge().GetValue(), state)
		}
	}
	n.tunnels.set("Apply", nil)
	r.egress.says("pod-a", testEgress("partner"))
	n.tunnels.settles(t, "internet/partner")
}

// Egress follows changes of the pod's interfaces.
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
		t.Errorf("its further addresses are %v", got)
	}
	defer n.tick()()
	other := testNIC("eth2", "p-2")
	other.Addresses = []attachment.NICAddress{{CIDR: netip.MustParsePrefix("192.168.7.7/24")}}
	r.given(testNIC("eth1", "p-1"), other)
	waitFor(t, func() bool { return len(others()) == 2 })
	n.tunnels.settles(t, "internet/nat")
}

// Gateways hear of a pod while it waits for the links of its NICs.
func TestPodIsAnnouncedBeforeItsNICsAreReady(t *testing.T) {
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

// A daemon is killed at each step of a change. The next one has set up what the record says, and goes on.
func TestCrashesOfEgressChanges(t *testing.T) {
	was, other := testEgress("nat"), testEgress("partner")
	for k, c := range []struct {
		point string
		then  *attachment.Egress // what the operator says by the crash
		after []string
	}{
		{"daemon.egress.recorded", other, []string{"internet/partner"}},
		{"daemon.egress.applied", other, []string{"internet/partner"}},
		{"daemon.egress.changed", other, []string{"internet/partner"}},
		{"daemon.egress.recorded", nil, nil},
		{"daemon.egress.changed", nil, nil},
	} {
		t.Run(fmt.Sprint(k), func(t *testing.T) { // a short name, as it becomes part of a socket's path
			n := newEgressNode(t, "10.0.0.5")
			r := n.restart(nil)
			r.egress.says("pod-a", was)
			mustAdd(t, r, "a", n.newNetns("a"))
			r.stop()
			n.crash(t, c.point, nil, func(r *running, rec attachment.Record) error {
				r.egress.says("pod-a", c.then)
				return r.changeEgress(context.Background(), rec.Key)
			})
			r = n.restart(nil) // which has not heard from the operator yet
			defer n.tick()()
			n.tunnels.settles(t, c.after...)
			r.egress.says("pod-a", was)
			mustAdd(t, r, "a", "/run/netns/a")
			n.tunnels.settles(t, "internet/nat")
			mustDel(t, r, "a")
			n.tunnels.want(t)
		})
	}
}
