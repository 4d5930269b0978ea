package nodeenis

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// offer returns an object with these available addresses by ENI.
func offer(byENI map[string][]string) *v1alpha1.NodeNetwork {
	o := &v1alpha1.NodeNetwork{}
	o.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{}
	for id, things := range byENI {
		for _, address := range things {
			o.Spec.IPAM.Available[address] = v1alpha1.AvailableAddress{Resource: id}
		}
	}
	return o
}

// The object's counts are in pods, each of which has all its addresses on one ENI.
func TestCountsAreInPods(t *testing.T) {
	for _, tt := range []struct {
		s    ipfamily.Set
		enis map[string][]string
		want int
	}{
		{ipfamily.OnlyIPv4, map[string][]string{"eni-1": {"10.0.0.7", "10.0.0.16/28", "2001:db8::7", "2001:db8::/80"}, "eni-2": {"10.0.0.8"}}, 18},
		{ipfamily.Dual, map[string][]string{"eni-1": {"10.0.0.7", "10.0.0.16/28", "2001:db8:0:1::/80"}, "eni-2": {"10.0.0.8"}}, 17},
		{ipfamily.Dual, map[string][]string{"eni-1": {"10.0.0.7", "10.0.0.8", "2001:db8::7"}, "eni-2": {"2001:db8::8"}}, 1},
		{ipfamily.OnlyIPv6, map[string][]string{"eni-1": {"10.0.0.7", "2001:db8::7"}, "eni-2": {"2001:db8::8", "2001:db8::9"}}, 3},
		{ipfamily.OnlyIPv6, map[string][]string{"eni-1": {"2001:db8::/80"}}, 1 << 16},
	} {
		a := amounts{}
		for p, id := range nodenetwork.Available(offer(tt.enis)) {
			a.add(id, p)
		}
		if got := a.pods(tt.s); got != tt.want {
			t.Errorf("pods(%s) of %v = %d, want %d", tt.s, tt.enis, got, tt.want)
		}
	}
}

func TestUseOfFamilies(t *testing.T) {
	s := &state{handshake: newHandshake(), fleet: fleetState{primaries: map[netip.Prefix]bool{}}}
	s.config.set, s.config.settings.Policy.Families = true, ipfamily.Dual
	s.obj = offer(map[string][]string{
		"eni-1": {"10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8:0:1::/80", "2001:db8:0:2::/80"},
		"eni-2": {"10.0.1.1", "2001:db8::1", "2001:db8::2", "2001:db8::3"},
		"eni-3": {"10.0.2.1"},
	})
	s.obj.Status.IPAM.Used = map[string]v1alpha1.UsedAddress{
		"10.0.0.1": {Resource: "eni-1"}, "2001:db8:0:1::9": {Resource: "eni-1"}, "10.0.0.2": {Resource: "eni-1", Cooling: true}, // one pod, and one address of an earlier pod
		"2001:db8::1": {Resource: "eni-9"}, "2001:db8::2": {}, // on eni-2, whatever the daemon reports
	}
	s.handshake.handed[netip.MustParsePrefix("10.0.0.3/32")] = true
	want := map[string]eni.ENIUsage{
		"eni-1": {Used: 2, Free: cloud.Amount{IPv6Prefixes: 1}}, // no IPv4 address left
		"eni-2": {Used: 2, Assignable: 1, Free: cloud.Amount{Addresses: 1, IPv6: 1}},
		"eni-3": {Free: cloud.Amount{Addresses: 1}},
	}
	if got := s.counter().byENI(); !maps.Equal(got, want) {
		t.Errorf("byENI() = %+v\nwant      %+v", got, want)
	}
	harness.OK(t, controllers.Same("dual-stack pods with free addresses", s.counter().free(), 1))
	s.config.settings.Policy.Families = ipfamily.OnlyIPv4
	harness.OK(t, controllers.Same("IPv4 pods with free addresses", s.counter().free(), 2))
}

// Candidates whose release does not reduce the number of possible pods are no loss.
func TestLossOfCandidates(t *testing.T) {
	inv := inventory([]string{"10.0.0.1", "10.0.0.2", "2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1::3"})
	inv.Families = ipfamily.Dual
	s := &state{handshake: newHandshake(), fleet: fleetState{inv: &inv}, obj: offer(nil)}
	s.config.set = true
	s.config.settings.Policy.Families, s.config.settings.Policy.WarmIP = ipfamily.Dual, 1
	for _, tt := range []struct {
		candidates   []string
		excess, loss int
	}{
		{nil, 1, 0}, {[]string{"2001:db8:0:1::1/128"}, 1, 0}, {[]string{"2001:db8:0:1::1/128", "2001:db8:0:1::2/128"}, 1, 1}, {[]string{"10.0.0.1/32", "10.0.0.2/32"}, 1, 2},
	} {
		clear(s.handshake.candidates)
		for _, c := range tt.candidates {
			s.handshake.candidates[netip.MustParsePrefix(c)] = true
		}
		if excess, loss := s.counter().excess(eni.Usage{}, s.config.settings.Policy); excess != tt.excess || loss != tt.loss {
			t.Errorf("excess() with candidates %v = %d, %d, want %d, %d", tt.candidates, excess, loss, tt.excess, tt.loss)
		}
	}
}

// Single IPv6 addresses assigned by a subnet are published only if pods get IPv6 addresses, or had some.
func TestSingleIPv6ForIPv4Pods(t *testing.T) {
	inv := inventory([]string{"10.0.0.1", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::/80"})
	for _, tt := range []struct {
		s    ipfamily.Set
		had  map[string][]string
		want []string
	}{
		{ipfamily.OnlyIPv4, nil, []string{"10.0.0.1", "2001:db8:0:1::/80"}},
		{ipfamily.OnlyIPv4, map[string][]string{"eni-1": {"2001:db8::2"}}, []string{"10.0.0.1", "2001:db8:0:1::/80", "2001:db8::2"}},
		{ipfamily.Dual, nil, []string{"10.0.0.1", "2001:db8:0:1::/80", "2001:db8::1", "2001:db8::2"}},
	} {
		inv.Families = tt.s
		f := fleetState{inv: &inv}
		var got []string
		for p := range f.unmarked(offer(tt.had)) {
			got = append(got, nodenetwork.Format(p))
		}
		if slices.Sort(got); !slices.Equal(got, tt.want) {
			t.Errorf("unmarked(%s, %v) = %v, want %v", tt.s, tt.had, got, tt.want)
		}
	}
}

// On a dual-stack node, each kind of address is released in its own amount, and the object has the IPv6
// CIDRs and limits that EC2 lists.
func TestDualStack(t *testing.T) {
	harness.KubeClean(t)
	create(t, "node-1", func(o *v1alpha1.NodeNetwork) { o.Spec.ENI.IPFamilies = "dual" })
	fl, n := play(t, Options{})
	inv := inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.0.16/28", "2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1:2::/80", "2001:db8:0:1:3::/80"})
	inv.Families, inv.Limits.IPv6PerENI = ipfamily.Dual, 10
	inv.ENIs[1].SubnetIPv6 = []netip.Prefix{netip.MustParsePrefix("2001:db8:0:1::/64")}
	publish(t, n, inv)
	n.Reconciled(eni.Status{Confirmed: true})
	o := until(t, "node-1", "counts in pods", controllers.If(func(o *v1alpha1.NodeNetwork) bool {
		return o.Status.ENI.Available == 18 && o.Status.ENI.Limits != nil && o.Status.ENI.Limits.IPv6AddressesPerENI == 10
	}))
	if got := o.Status.ENI.ENIs["eni-1"].SubnetIPv6CIDRs; len(got) != 1 || got[0] != "2001:db8:0:1::/64" {
		t.Errorf("subnetIPv6CIDRs = %v, want the subnet's CIDR", got)
	}
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.2", "2001:db8:0:1:3::7")})
	awaitUsage(t, n, func(u eni.Usage) bool { return u.ENIs["eni-1"].Used == 1 && u.ENIs["eni-1"].Assignable == 17 })
	if got := fl.Totals(); got.Used != 1 || got.Available != 18 {
		t.Errorf("Totals() = %+v, want 1 used and 18 available", got)
	}
	ask := func(want cloud.Amount) []netip.Prefix { return n.Withdraw("eni-1", want) }
	if out := ask(cloud.Amount{IPv6Prefixes: 2}); len(out) != 0 {
		t.Fatalf("Withdraw() = %v before the daemon confirmed anything", out)
	}
	ask(cloud.Amount{IPv6: 1})
	until(t, "node-1", "candidates", releasing("2001:db8:0:1:2::/80", "2001:db8:0:1::2"))
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.2", "2001:db8:0:1:3::7"), Released: []string{"2001:db8:0:1:2::/80", "2001:db8:0:1::2"}})
	await(t, "confirmed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return confirmed(n.state.obj, netip.MustParsePrefix("2001:db8:0:1:2::/80"))
	})
	if out := ask(cloud.Amount{IPv6Prefixes: 2}); len(out) != 1 || out[0] != netip.MustParsePrefix("2001:db8:0:1:2::/80") {
		t.Fatalf("Withdraw() = %v, want the confirmed prefix", out)
	}
	inv.Releasing = []eni.Release{{Prefix: netip.MustParsePrefix("2001:db8:0:1:2::/80"), ENI: "eni-1", Since: time.Now()}}
	publish(t, n, inv)
	harness.OK(t, unassigning("2001:db8:0:1:2::/80")(get(t, "node-1")))

	// The next operator continues with the same state.
	fl.end()
	fl, _ = play(t, Options{})
	seed := fl.seed()
	if seed.Families != ipfamily.Dual || seed.Limits.IPv6PerENI != 10 || len(seed.ENIs) != 2 || len(seed.ENIs[1].IPv6) != 2 || len(seed.ENIs[1].IPv6Prefixes) != 2 ||
		len(seed.ENIs[1].SubnetIPv6) != 1 || len(seed.Releasing) != 1 {
		t.Errorf("seed = %+v, want both families and the prefix being released", seed)
	}
}

// If the cache has all pods, as with VPC ports, changes of pods that do not wait for an address cause no
// work for their node.
func TestPodsThatDoNotWaitCauseNoWork(t *testing.T) {
	_, n := setUp(t, Options{})
	fl := newScript()
	h := queue.OnChange((&Controller{fleet: fl, nodes: map[string]*node{"node-1": n}}).podChanged)
	pod := func(phase corev1.PodPhase, ip, node string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase, PodIP: ip}}
	}
	waits, starts := pod(corev1.PodPending, "", "node-1"), pod(corev1.PodPending, "10.0.0.4", "node-1")
	runs, unbound := pod(corev1.PodRunning, "10.0.0.4", "node-1"), pod(corev1.PodPending, "", "")
	update := func(before, after *corev1.Pod) {
		h.Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, nil)
	}
	h.Create(t.Context(), event.CreateEvent{Object: runs}, nil)
	update(starts, runs)
	update(runs, runs)
	h.Delete(t.Context(), event.DeleteEvent{Object: runs}, nil)
	harness.OK(t, controllers.Same("calls of Kick for pods that do not wait", fl.called("Kick"), 0))
	h.Create(t.Context(), event.CreateEvent{Object: waits}, nil)
	update(unbound, waits)
	update(waits, starts)
	h.Delete(t.Context(), event.DeleteEvent{Object: waits}, nil)
	harness.OK(t, controllers.Same("calls of Kick for changes of waiting pods", fl.called("Kick"), 4))
}

// A pod whose first interface is one of its NICs does not wait for an address.
func TestPodsWithoutAnAddress(t *testing.T) {
	for nics, want := range map[string]bool{
		"": false, "[]": false, "[{}]": false, "[{name: eth1}]": false, "- [eth0": false, "[{name: eth00}]": false, "[{nic: eth0}]": false,
		"[{name: eth0}]": true, "[{}, {name: eth0, nic: db}]": true, "- {}\n- name: eth0\n": true,
	} {
		if got := hasFirst(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationNICs: nics}}}); got != want {
			t.Errorf("hasFirst(%q) = %v, want %v", nics, got, want)
		}
	}
}

// When the operator starts, nodes on which pods wait are reconciled before all others.
func TestNodesOfWaitingPodsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := priorityqueue.New[reconcile.Request]("test")
		defer q.ShutDown()
		c := &Controller{}
		harness.OK(t, c.queue.Source().Start(t.Context(), q))
		low := handler.LowPriority // of the objects that exist when a controller starts
		for _, name := range []string{"a", "b", "c"} {
			q.AddWithOpts(priorityqueue.AddOpts{Priority: &low}, queue.Request(name))
			o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if name == "b" {
				o.Status.IPAM.Waiting = 1
			}
			c.appeared(t.Context(), nil, o, q)
		}
		synctest.Wait()
		var order []string
		for range 3 {
			r, _ := q.Get()
			order = append(order, r.Name)
			q.Done(r)
		}
		if want := []string{"b", "a", "c"}; !slices.Equal(order, want) {
			t.Errorf("objects reconciled in the order %v, want %v", order, want)
		}
	})
}
