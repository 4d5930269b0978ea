//go:build guest && e2e

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// apart puts each gateway on a separate node.
func apart(s *v1alpha1.EgressSpec) {
	s.Template = &v1alpha1.EgressPodTemplate{Spec: &runtime.RawExtension{Raw: []byte(`{"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
		{"labelSelector": {"matchLabels": {"egress.berth.dev/name": "way"}}, "topologyKey": "kubernetes.io/hostname"}]}}}`)}}
}

// TestConnectionsMoveOffALostGatewayNode stops a gateway's node abruptly: nodes detect this by probing gateways, and
// new connections use the other gateway. Once Kubernetes detects the lost node, another gateway replaces the lost
// one.
func TestConnectionsMoveOffALostGatewayNode(t *testing.T) {
	s := newEgress(t, "node-gone", apart)
	by := s.gateways(2)
	lost := s.lab.Gateways(s.key)[0]
	var n *node.Node
	for _, other := range s.lab.Nodes() {
		if other.Name != lost.Pod.Node {
			n = other
		}
	}
	p := s.client(n, "client")
	s.reaches(p, by)
	flood := s.pour(p, 100*time.Millisecond, answerWithin)
	began := time.Now()
	harness.OK(t, s.lab.LoseNode(lost.Pod.Node))
	t.Cleanup(func() {
		s.lab.Kube.NodeLost(lost.Pod.Node)
		_, err := s.lab.AddNode(lost.Pod.Node)
		harness.OK(t, err)
	})
	harness.Eventually(t, harness.Patience, "ten new connections in a row get replies within 2 s", func() error {
		for i := range 10 {
			if _, err := seenAs(t.Context(), p, "tcp", outside[i%2], 2*time.Second); err != nil {
				return err
			}
		}
		return nil
	})
	t.Logf("node lost: all new connections work after %s", time.Since(began))
	s.lab.Kube.NodeLost(lost.Pod.Node)
	s.reaches(p, s.gateways(2))
	flood.end()
	if len(flood.leaked) > 0 {
		t.Errorf("%d connections bypassed the gateways, first with the source address %s", len(flood.leaked), flood.leaked[0])
	}
	t.Logf("%d new connections, %d of them without a reply within %s, longest gap between replies %s", flood.begun, len(flood.errs), answerWithin, flood.gap)
}

// The traffic of a rolling update.
const (
	long       = 200
	newASecond = 50
)

// TestRollingUpdateLosesNoConnection replaces all gateways under long and new connections: no new connection fails,
// and existing ones are served until they end.
func TestRollingUpdateLosesNoConnection(t *testing.T) {
	s := newEgress(t, "rolling")
	before := s.gateways(2)
	p := s.client(s.lab.Nodes()[0], "client")
	s.reaches(p, before)
	talks := s.talk(p, "tcp", long, 2*time.Second)
	flood := s.pour(p, time.Second/newASecond, answerWithin)
	talks.GoOn(t, long)
	began := time.Now()
	harness.OK(t, s.lab.Kube.EditEgress(harness.Deadline(t, harness.Patience), s.key, func(e *v1alpha1.Egress) {
		e.Spec.Template = &v1alpha1.EgressPodTemplate{Metadata: v1alpha1.EgressPodMetadata{Annotations: map[string]string{"example.com/rolled": "yes"}}}
	}))
	// New gateways take all new connections.
	harness.Eventually(t, harness.Patience, "new gateways take over", func() error {
		for i := range 10 {
			as, err := seenAs(t.Context(), p, "tcp", outside[i%2], answerWithin)
			if err != nil {
				return err
			}
			if _, old := before[as]; old {
				return fmt.Errorf("a new connection uses the old gateway %s", as)
			}
		}
		return nil
	})
	took := time.Since(began)
	talks.GoOn(t, long)
	if err := talks.End(); err != nil {
		t.Errorf("long connections: %v", err)
	}
	flood.end()
	flood.none(s)
	t.Logf("%d long connections lost nothing; %d new ones in %s, the slowest took %s; only new gateways after %s",
		long, flood.begun, time.Since(began), flood.worst, took)
	after := s.gateways(2)
	for a := range before {
		if _, ok := after[a]; ok {
			t.Errorf("address %s still belongs to a gateway", a)
		}
	}
}

// TestConnectionsOutliveAllPrograms kills the operator, the client's daemon, and the gateways' programs under
// traffic. The kernel keeps serving connections, datagrams and new connections without failures, and a new pod waits
// until the programs are back.
func TestConnectionsOutliveAllPrograms(t *testing.T) {
	s := newEgress(t, "away")
	n := s.lab.Nodes()[0]
	p := s.client(n, "before")
	s.reaches(p, s.gateways(2))
	tcp, udp := s.talk(p, "tcp", 8, 50*time.Millisecond), s.talk(p, "udp", 4, 50*time.Millisecond)
	flood := s.pour(p, 100*time.Millisecond, answerWithin)
	tcp.GoOn(t, 40)
	for _, o := range s.lab.Operators() {
		harness.OK(t, o.Kill())
	}
	harness.OK(t, n.Kill())
	back := func() {
		for _, o := range s.lab.Operators() {
			if !o.Running() {
				harness.OK(t, o.Start())
			}
		}
		if !n.Running() {
			harness.OK(t, n.Start())
		}
	}
	t.Cleanup(back)
	gateways := s.lab.Gateways(s.key)
	for _, g := range gateways {
		harness.OK(t, g.Kill())
	}
	tcp.GoOn(t, 100)
	for _, g := range gateways {
		harness.Eventually(t, harness.Patience, g.Name+" runs again", func() error { return harness.Equal("starts", g.Starts(), 2) })
	}
	tcp.GoOn(t, 100)
	udp.GoOn(t, 50)
	flood.poured(s, 10)

	type made struct {
		pod *node.Pod
		err error
	}
	pods := make(chan made, 1)
	go func() {
		pod, err := n.AddPod(t.Context(), "after", s.named())
		pods <- made{pod, err}
	}()
	tcp.GoOn(t, 40)
	began := time.Now()
	back()
	m := <-pods
	harness.OK(t, m.err)
	s.reaches(m.pod, nil)
	t.Logf("a pod created meanwhile reached the outside %s after the programs were back", time.Since(began))
	flood.end()
	flood.none(s)
	for of, talks := range map[string]*harness.Conversations{"connections": tcp, "datagrams": udp} {
		if err := talks.End(); err != nil {
			t.Errorf("%s were interrupted: %v", of, err)
		}
	}
	t.Logf("%d new connections, the slowest took %s", flood.begun, flood.worst)
}

// TestFullConnectionTrackingIsReported opens more connections than a gateway may track: its metrics and an Event of
// its pod report that; the gateway keeps running, and serves new connections again when there is room.
func TestFullConnectionTrackingIsReported(t *testing.T) {
	const limit, each = 5000, 2700
	s := newEgress(t, "full", replicas(1))
	g := s.lab.Gateways(s.key)[0]
	nodes := s.lab.Nodes()
	a, b := s.client(nodes[0], "one"), s.client(nodes[1], "two")
	s.reaches(a, nil)
	s.reaches(b, nil)
	setLimit(t, limit)
	begin(t, a, 0, each)
	begin(t, b, 0, each)
	text := s.metrics(g)
	count, refused := sample(t, text, "berth_egress_connections"), sample(t, text, "berth_egress_connections_refused_total")
	if got := sample(t, text, "berth_egress_connections_limit"); got != limit {
		t.Errorf("reported limit = %v, want %d", got, limit)
	}
	if count < limit*99/100 || refused == 0 {
		t.Errorf("%v tracked connections and %v refused packets, want about %d and more than 0", count, refused, limit)
	}
	more := each
	harness.Eventually(t, harness.Patience, "an Event of the gateway", func() error {
		// These are refused, too: the node compares the counter with its previous value.
		begin(t, a, more, more+each/10)
		begin(t, b, more, more+each/10)
		more += each / 10
		events := &eventsv1.EventList{}
		if err := s.lab.Kube.Client.List(t.Context(), events, client.InNamespace(s.key.Namespace)); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Reason == "ConnectionsFull" && e.Type == corev1.EventTypeWarning && e.Regarding.Name == g.Name && strings.Contains(e.Note, "of 5000 connections")
		}) {
			return fmt.Errorf("no such Event among %d", len(events.Items))
		}
		return nil
	})
	setLimit(t, 100000)
	s.reaches(a, nil)
	if g.Starts() != 1 {
		t.Errorf("berth-egress was started %d times, want once", g.Starts())
	}
	t.Logf("%v connections tracked, %v packets refused", count, refused)
}

// begin sends a datagram to each of a range of ports on the outside host, each of which starts a connection, as long
// as the pod itself may track more.
func begin(t *testing.T, p *node.Pod, from, to int) {
	t.Helper()
	c, err := ns.ListenPacket(p.Netns(), netip.AddrPortFrom(p.Addr(), 0))
	harness.OK(t, err)
	defer func() { _ = c.Close() }()
	for i := from; i < to; i++ {
		_, err := c.WriteToUDPAddrPort([]byte("hello"), netip.AddrPortFrom(site.OutsideHost, uint16(10000+i%50000)))
		if errors.Is(err, unix.EPERM) {
			return
		}
		harness.OK(t, err)
	}
}

// setLimit sets the limit of tracked connections of a namespace until the test ends.
func setLimit(t *testing.T, n int) {
	t.Helper()
	const file = "/proc/sys/net/netfilter/nf_conntrack_max"
	was, err := os.ReadFile(file)
	harness.OK(t, err)
	harness.OK(t, os.WriteFile(file, []byte(strconv.Itoa(n)), 0o644))
	t.Cleanup(func() { harness.OK(t, os.WriteFile(file, []byte(strings.TrimSpace(string(was))), 0o644)) })
}

// sample returns the value of a metric without labels.
func sample(t *testing.T, text, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("metric %s not found", name)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	harness.OK(t, err)
	return v
}

// TestNothingLeaksWithoutGateways scales an Egress to zero under traffic, and up again. Meanwhile no packet leaves
// with a pod's own address, and the condition Available is False.
func TestNothingLeaksWithoutGateways(t *testing.T) {
	s := newEgress(t, "gone")
	nodes := s.lab.Nodes()
	a, b := s.client(nodes[0], "one"), s.client(nodes[1], "other")
	s.reaches(a, nil)
	s.reaches(b, nil)
	floods := []*flood{s.pour(a, 200*time.Millisecond, time.Second), s.pour(b, 200*time.Millisecond, time.Second)}

	s.edit(replicas(0))
	harness.Eventually(t, harness.Patience, "the Egress is not available", func() error {
		e, err := s.lab.Kube.Egress(t.Context(), s.key)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionAvailable)
		if c == nil || c.Status != "False" {
			return fmt.Errorf("condition Available = %v", c)
		}
		return nil
	})
	for _, g := range s.lab.Gateways(s.key) {
		harness.OK(t, g.Kill()) // immediately, before its connections have ended
	}
	s.gateways(0)
	for _, p := range []*node.Pod{a, b} {
		harness.Eventually(t, harness.Patience, "destinations are unreachable from pod "+p.Name, func() error {
			for _, to := range outside {
				if as, err := seenAs(t.Context(), p, "tcp", to, time.Second); err == nil {
					return fmt.Errorf("reached with the source address %s", as)
				}
			}
			return nil
		})
	}
	for _, f := range floods {
		f.poured(s, 10)
	}
	began := time.Now()
	s.edit(replicas(2))
	by := s.gateways(2)
	s.reaches(a, by)
	s.reaches(b, by)
	t.Logf("connections work %s after the Egress was scaled up", time.Since(began))
	for _, f := range floods {
		f.end()
		if len(f.leaked) > 0 {
			t.Errorf("%d of %d connections bypassed the gateways, first with the source address %s", len(f.leaked), f.begun, f.leaked[0])
		}
	}
}

// TestReusedAddressIsNoClient removes a client during conversations, and immediately gives its address to another
// pod: gateways have forgotten the client, and the new pod is seen with its own address.
func TestReusedAddressIsNoClient(t *testing.T) {
	s := newEgress(t, "reused")
	n := s.lab.Nodes()[0]
	old := s.client(n, "old")
	s.reaches(old, nil)
	talk := s.talk(old, "udp", 4, 50*time.Millisecond)
	talk.GoOn(t, 40)
	harness.OK(t, n.DelPod(harness.Deadline(t, harness.Patience), old.Name))
	_ = talk.End() // ends with its pod

	successor := s.successor(n, old.Addr())
	as, err := seenAs(t.Context(), successor, "udp", site.OutsideHost, answerWithin)
	harness.OK(t, err)
	if as != successor.Addr() {
		t.Errorf("source address of the pod with a former client's address = %s, want its own", as)
	}
	for _, g := range s.lab.Gateways(s.key) {
		harness.Eventually(t, harness.Patience, g.Name+" forgets the deleted client", func() error { return forgotten(g, old.Addrs) })
	}
}

// successor adds pods that are not clients, until one of them has an address.
func (s *egress) successor(n *node.Node, a netip.Addr) *node.Pod {
	s.t.Helper()
	for i := range 40 {
		p, err := n.AddPod(harness.Deadline(s.t, harness.Patience), fmt.Sprintf("successor-%d", i), node.PodOptions{Namespace: s.clients()})
		harness.OK(s.t, err)
		if p.Addr() == a {
			return p
		}
		harness.OK(s.t, n.DelPod(harness.Deadline(s.t, harness.Patience), p.Name))
	}
	s.t.Fatalf("none of 40 pods got the address %s", a)
	return nil
}

// forgotten returns an error if a gateway tracks a connection from one of the addresses.
func forgotten(g *lab.Gateway, addrs []netip.Addr) error {
	return ns.Do(g.Pod.Netns(), func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, f := range flows {
				if from, ok := netip.AddrFromSlice(f.Forward.SrcIP); ok && slices.Contains(addrs, from.Unmap()) {
					return fmt.Errorf("the gateway still tracks %s", f)
				}
			}
		}
		return nil
	})
}
