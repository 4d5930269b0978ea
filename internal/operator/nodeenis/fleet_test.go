package nodeenis

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/parts"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// Lifecycle with the real fleet, under the generated role: addresses are assigned, follow usage and are
// released by the handshake, and the object is deleted with its Node.
func TestWithFleet(t *testing.T) {
	harness.KubeClean(t)
	sim := cloudfake.New(cloudfake.Options{Latency: 5 * time.Millisecond})
	sim.State.AddSubnet("subnet-1", "zone-a", "10.0.0.0/16", nil)
	sim.State.SetFree("subnet-1", 1000)
	sim.State.AddInstance(instance, "m5.large", "subnet-1")
	f, err := fleet.New(fleet.Config{
		Cluster: "test", Cloud: pace.Cloud(sim, pace.Options{}),
		Timing: eni.Timing{ShrinkDelay: 500 * time.Millisecond, Settle: 2 * time.Second, ListingInterval: 2 * time.Second},
		Logger: sourcetest.Logger(t.Output()),
	})
	harness.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("fleet stopped with %v, want context.Canceled", err)
		}
	})
	op := start(t, Options{Fleet: f, Settle: time.Second})
	create(t, "node-1", nil)
	until(t, "node-1", "8 addresses", count(8))
	o := until(t, "node-1", "ready", controllers.If(func(o *v1alpha1.NodeNetwork) bool {
		return meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady) && o.Status.ENI.Available == 8 && o.Status.ENI.Count == 1
	}))
	// Four addresses in use: the node gets 12.
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used(keys(o.Spec.IPAM.Available)[:4]...), InstanceID: instance})
	until(t, "node-1", "12 addresses", count(12))
	// None in use: it is back to 8, by the handshake.
	report(t, "node-1", v1alpha1.IPAMStatus{InstanceID: instance})
	o = until(t, "node-1", "4 addresses being released", controllers.If(func(o *v1alpha1.NodeNetwork) bool { return len(o.Spec.IPAM.Releasing) == 4 }))
	report(t, "node-1", v1alpha1.IPAMStatus{InstanceID: instance, Released: o.Spec.IPAM.Releasing})
	until(t, "node-1", "8 addresses again", count(8))
	until(t, "node-1", "no addresses being released", releasing())
	// The ENI is detached by hand and the daemon reports the missing link: EC2 is queried immediately.
	o = until(t, "node-1", "8 addresses", count(8))
	address := keys(o.Spec.IPAM.Available)[0]
	id := o.Spec.IPAM.Available[address].Resource
	inUse := map[string]v1alpha1.UsedAddress{address: {UID: "uid", Resource: id}}
	report(t, "node-1", v1alpha1.IPAMStatus{Used: inUse, InstanceID: instance})
	for _, e := range sim.State.Truth() {
		if e.ID == id {
			harness.OK(t, sim.DetachENI(ctx, e.Attachment.ID))
		}
	}
	report(t, "node-1", v1alpha1.IPAMStatus{Used: inUse, InstanceID: instance, MissingLinks: []string{id}})
	until(t, "node-1", "missing link reported", degraded(v1alpha1.ReasonLinkMissing))
	await(t, "ENI of a running pod attached again", func() bool {
		return slices.ContainsFunc(sim.State.Truth(), func(e cloud.ENI) bool { return e.ID == id && e.Attachment != nil })
	})
	harness.Eventually(t, controllers.Limit, "totals", func() error {
		if totals := op.Totals(); totals.Nodes != 1 || totals.Available < 8 {
			return fmt.Errorf("totals = %+v, want 1 node with 8 addresses", totals)
		}
		return nil
	})
}

func count(n int) func(*v1alpha1.NodeNetwork) error {
	return func(o *v1alpha1.NodeNetwork) error {
		if have := len(o.Spec.IPAM.Available); have != n {
			return fmt.Errorf("%d addresses, want %d; conditions = %+v", have, n, o.Status.Conditions)
		}
		return nil
	}
}

// makeTemplate creates a template for Nodes whose label pool has this value.
func makeTemplate(t *testing.T, name, pool string, change func(*v1alpha1.NodeNetworkTemplateSpec)) *v1alpha1.NodeNetworkTemplate {
	t.Helper()
	o := controllers.Named[v1alpha1.NodeNetworkTemplate](name)
	o.Spec.NodeSelector.MatchLabels = map[string]v1alpha1.LabelValue{"pool": v1alpha1.LabelValue(pool)}
	change(&o.Spec)
	return controllers.Create(t, o)
}

// label sets the label pool of node-1's Node.
func label(t *testing.T, pool string) {
	t.Helper()
	controllers.Merge(t, bareNode("node-1"), `{"metadata":{"labels":{"pool":%q}}}`, pool)
}

// given waits until the fleet's settings for node-1 satisfy is.
func (s *script) given(t *testing.T, what string, is func(eni.Settings) bool) {
	t.Helper()
	harness.Eventually(t, controllers.Limit, what, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.settings["node-1"]; !is(got) {
			return fmt.Errorf("settings = %+v", got)
		}
		return nil
	})
}

// A template applies to Nodes with its labels as long as both match, and overrides the object's spec,
// which stays unchanged.
func TestTemplate(t *testing.T) {
	harness.KubeClean(t)
	create(t, "node-1", func(o *v1alpha1.NodeNetwork) {
		o.Spec.ENI.SubnetTags, o.Spec.ENI.PreAllocate = map[string]string{"for": "pods"}, new(int32(3))
	})
	s, n := play(t, Options{})
	own := func(got eni.Settings) bool {
		return got.SubnetTags["for"] == "pods" && len(got.SubnetIDs)+len(got.Groups) == 0 && !got.DrainOutdated
	}
	with := func(subnet string, drain bool) func(eni.Settings) bool {
		return func(got eni.Settings) bool {
			return slices.Equal(got.SubnetIDs, []string{subnet}) && len(got.SubnetTags) == 0 && slices.Equal(got.Groups, []string{"sg-0a"}) &&
				got.DrainOutdated == drain && got.Policy.PreAllocate == 3
		}
	}
	says := func(template, subnet string) func(*v1alpha1.NodeNetwork) error {
		return func(o *v1alpha1.NodeNetwork) error {
			e := o.Status.ENI
			if e.Template != template || (e.Settings == nil) != (template == "") || e.Settings != nil && (!slices.Equal(e.Settings.SubnetIDs, []string{subnet}) || *e.Settings.PreAllocate != 3) {
				return fmt.Errorf("status.eni has template %q and settings %+v, want %q with subnet %q", e.Template, e.Settings, template, subnet)
			}
			if o.Spec.ENI.SubnetTags["for"] != "pods" || len(o.Spec.ENI.SubnetIDs) > 0 {
				return fmt.Errorf("spec.eni was changed by the operator: %+v", o.Spec.ENI)
			}
			return nil
		}
	}
	publish(t, n, inventory([]string{"10.0.0.1"}))
	s.given(t, "settings of the object", own)

	first := makeTemplate(t, "first", "a", func(o *v1alpha1.NodeNetworkTemplateSpec) {
		o.ENI.SubnetIDs, o.ENI.SecurityGroups = []string{"subnet-0a"}, []string{"sg-0a"}
	})
	makeTemplate(t, "other", "b", func(o *v1alpha1.NodeNetworkTemplateSpec) {
		o.ENI.SubnetIDs, o.ENI.SecurityGroups, o.OutdatedENIs = []string{"subnet-0b"}, []string{"sg-0a"}, v1alpha1.DrainOutdated
	})
	label(t, "a")
	s.given(t, "settings of the matching template", with("subnet-0a", false))
	until(t, "node-1", "template in status", says("NodeNetworkTemplate/first", "subnet-0a"))

	first.Spec.ENI.SubnetIDs = []string{"subnet-0c"}
	harness.OK(t, harness.KubeClient(t).Update(t.Context(), first))
	s.given(t, "changed template", with("subnet-0c", false))
	until(t, "node-1", "changed template in status", says("NodeNetworkTemplate/first", "subnet-0c"))

	label(t, "b")
	s.given(t, "settings of the template for the new label", with("subnet-0b", true))
	until(t, "node-1", "new template in status", says("NodeNetworkTemplate/other", "subnet-0b"))

	before := n
	s.end() // another operator takes over
	s, n = play(t, Options{})
	if n == before {
		t.Fatal("play() returned the same node for a new operator")
	}
	s.given(t, "same settings with the next operator", with("subnet-0b", true))

	publish(t, n, inventory([]string{"10.0.0.1"}))
	label(t, "none")
	s.given(t, "settings of the object again", own)
	until(t, "node-1", "no template in status", says("", ""))
}

// Limits recorded before an instance was resized do not stop the fleet from querying EC2 for the new
// ones: without a template, there are no other settings to continue with.
func TestStaleLimitsDoNotBlock(t *testing.T) {
	harness.KubeClean(t)
	o := create(t, "node-1", func(o *v1alpha1.NodeNetwork) { o.Spec.ENI.FirstInterfaceIndex = new(int32(3)) })
	o.Status.ENI.Limits = &v1alpha1.ENILimits{ENIs: 3, AddressesPerENI: 10}
	harness.OK(t, harness.KubeClient(t).Status().Update(t.Context(), o))
	s, _ := play(t, Options{})
	s.given(t, "settings of the object", func(got eni.Settings) bool { return got.Policy.FirstInterfaceIndex == 3 })
}

// A template that a node cannot have is reported by name, and the settings stay in force, even after a
// change of operator.
func TestImpossibleTemplate(t *testing.T) {
	s, n := setUp(t, Options{})
	inv := inventory([]string{"10.0.0.1"})
	inv.InstanceType, inv.Limits = "m5.large", cloud.Limits{MaxENIs: 3, IPv4PerENI: 10}
	publish(t, n, inv)
	label(t, "a")
	o := makeTemplate(t, "beyond", "a", func(o *v1alpha1.NodeNetworkTemplateSpec) { o.ENI.FirstInterfaceIndex = new(int32(2)) })
	s.given(t, "allowed index", func(got eni.Settings) bool { return got.Policy.FirstInterfaceIndex == 2 })
	o.Spec.ENI.FirstInterfaceIndex = new(int32(3))
	harness.OK(t, harness.KubeClient(t).Update(t.Context(), o))
	until(t, "node-1", "invalid template reported", degraded(reasonInvalidSpec))
	if got := get(t, "node-1"); got.Status.ENI.Template != "NodeNetworkTemplate/beyond" || *got.Status.ENI.Settings.FirstInterfaceIndex != 2 {
		t.Errorf("status.eni = %+v, want the settings in force", got.Status.ENI)
	}
	for _, c := range get(t, "node-1").Status.Conditions {
		if c.Type == v1alpha1.ConditionDegraded && !strings.Contains(c.Message, "with NodeNetworkTemplate/beyond: spec.eni.firstInterfaceIndex is 3: expected at most 2") {
			t.Errorf("message of Degraded = %q, want the template and the field", c.Message)
		}
	}
	counts := func(got eni.Settings) bool { return got.Policy.FirstInterfaceIndex == 2 }
	s.given(t, "previous settings in force", counts)
	s.end()
	s, n = play(t, Options{})
	s.given(t, "previous settings in force with the next operator", counts)
	publish(t, n, inv)
	until(t, "node-1", "invalid template still reported", degraded(reasonInvalidSpec))
	if got := get(t, "node-1").Status.ENI; got.Template != "NodeNetworkTemplate/beyond" || *got.Settings.FirstInterfaceIndex != 2 {
		t.Errorf("status.eni = %+v, want the settings in force", got)
	}
	o.Spec.ENI.FirstInterfaceIndex = new(int32(1))
	harness.OK(t, harness.KubeClient(t).Update(t.Context(), o))
	s.given(t, "corrected template", func(got eni.Settings) bool { return got.Policy.FirstInterfaceIndex == 1 })
}

var (
	_ fleet.Observer = (*Metrics)(nil)
	_ pace.Observer  = (*Metrics)(nil)
)

func TestMetricsOfNodes(t *testing.T) {
	m := NewMetrics()
	full := errors.New("InsufficientFreeAddressesInSubnet")
	m.Acted("n", plan.Action{Kind: plan.Create, Subnet: "subnet-a"}, cloud.SubnetFull, full, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Create, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", plan.Action{Kind: plan.CreateTrunk, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Assign, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Assign, Subnet: "subnet-a"}, cloud.SubnetFull, full, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Observe}, cloud.Unknown, nil, time.Second)
	m.Listed(time.Second, nil)
	m.Listed(time.Second, full)
	m.Call("AssignPrivateIpAddresses", "OK", time.Second)
	m.Limited("AssignPrivateIpAddresses", 2*time.Second)
	m.DemandServed(3 * time.Second)
	m.Collected(eni.Collected{Known: true, Waiting: 1, Kept: 2, Refused: 3, Deleted: 4})
	m.Collected(eni.Collected{Deleted: 1}) // listing EC2 failed, so the other counts are unknown
	g := gauges(
		func() Totals {
			return Totals{Used: 1, Available: 2, Needed: 3, ENIs: 4, Nodes: 5, InDeficit: 6, AtCapacity: 7}
		},
		func() []cloud.Subnet { return []cloud.Subnet{{ID: "subnet-a", Zone: "z", Free: 8}} },
	)
	harness.CheckMetrics(t, append(m.Collectors(), g), Families, map[string]string{
		`berth_operator_eni_allocation_ops_total{subnet_id="subnet-a"}`:                                        "1",
		`berth_operator_eni_interface_creation_ops_total{status="success",subnet_id="subnet-a"}`:               "2",
		`berth_operator_eni_interface_creation_ops_total{status="subnet-full",subnet_id="subnet-a"}`:           "1",
		`berth_operator_eni_ips{type="used"}`:                                                                  "1",
		`berth_operator_eni_ips{type="available"}`:                                                             "2",
		`berth_operator_eni_ips{type="needed"}`:                                                                "3",
		`berth_operator_eni_available`:                                                                         "4",
		`berth_operator_eni_nodes{category="total"}`:                                                           "5",
		`berth_operator_eni_nodes{category="in-deficit"}`:                                                      "6",
		`berth_operator_eni_nodes{category="at-capacity"}`:                                                     "7",
		`berth_operator_eni_resync_total`:                                                                      "2",
		`berth_operator_subnet_free_addresses{subnet_id="subnet-a",zone="z"}`:                                  "8",
		`berth_operator_aws_api_duration_seconds_sum{operation="AssignPrivateIpAddresses",response_code="OK"}`: "1",
		`berth_operator_ec2_rate_limit_duration_seconds_sum{operation="AssignPrivateIpAddresses"}`:             "2",
		`berth_operator_demand_to_address_seconds_sum`:                                                         "3",
		`berth_operator_orphan_enis{state="waiting"}`:                                                          "1",
		`berth_operator_orphan_enis{state="kept"}`:                                                             "2",
		`berth_operator_orphan_enis{state="refused"}`:                                                          "3",
		`berth_operator_orphan_enis_deleted_total`:                                                             "5",
	})
}

// A timed part that is not listed would never be handled.
func TestEveryTimedPartIsAmongTheTimers(t *testing.T) {
	parts.Listed[state](t, 4, (&state{}).timers())
}

// The time of the next reconciliation, as computed by one that began at second 10.
func TestWake(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	suppressed := func(until ...int64) ownership {
		w := ownership{suppressed: map[netip.Prefix]time.Time{}}
		for i, s := range until {
			w.suppressed[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32)] = at(s)
		}
		return w
	}
	for _, c := range []struct {
		name  string
		state *state
		want  int64 // second; 0: only on a change
	}{
		{"nothing due", &state{}, 0},
		{"due before the reconciliation began", &state{liveness: liveness{deleteAt: at(10)}, eligibility: eligibility{askAt: at(9)}}, 0},
		{"proof to be requested again", &state{eligibility: eligibility{askAt: at(15)}}, 15},
		{"recreated object", &state{eligibility: eligibility{heldUntil: at(12)}}, 12},
		{"earliest of the suppressed addresses", &state{ownership: suppressed(9, 70, 40)}, 40},
		{"deletion of the object", &state{liveness: liveness{deleteAt: at(60)}}, 60},
		{"failed request", &state{writes: writes{retry: backoff{Backoff: retry.Backoff{Until: at(11)}}}}, 11},
		{"delayed status write", &state{writes: writes{newsAt: at(13)}}, 13},
		{"earliest of all parts", &state{writes: writes{newsAt: at(14)}, liveness: liveness{deleteAt: at(12)}, ownership: suppressed(13)}, 12},
	} {
		want := time.Time{}
		if c.want > 0 {
			want = at(c.want)
		}
		if got := c.state.wake(at(10)); !got.Equal(want) {
			t.Errorf("%s: wake() = %v, want %v", c.name, got, want)
		}
	}
}

// A part that became due after a reconciliation looked at it is reconciled again. Parts that were due
// before the reconciliation began have been handled.
func TestPartsDueDuringReconciliation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := alone(newScript())
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		if err := n.c.queue.Source().Start(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
		began := n.c.now()
		n.state.liveness.deleteAt = began.Add(time.Second)
		time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
		n.schedule(n.c.now())
		harness.OK(t, controllers.Same("queued reconciliations for a part due before", queue.Len(), 0))
		n.schedule(began)
		harness.OK(t, controllers.Same("queued reconciliations for a part that became due meanwhile", queue.Len(), 1))
	})
}
