package podnics

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/test/harness"
)

// A pod waits for its NIC from when it gets a node until that node has plugged the NIC's current port.
func TestWaits(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u"}, Spec: corev1.PodSpec{NodeName: "node-a"}}
	unscheduled := pod.DeepCopy()
	unscheduled.Spec.NodeName = ""
	of := func(phase v1alpha1.PodNICPhase, node, uid string, says *v1alpha1.PodNICNode) *v1alpha1.PodNIC {
		return &v1alpha1.PodNIC{Status: v1alpha1.PodNICStatus{Phase: phase, NodeName: node, Pod: &v1alpha1.PodReference{Name: "web", UID: uid}, PortID: "p-2", Node: says}}
	}
	in := func(port string) *v1alpha1.PodNICNode {
		return &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: port}
	}
	going := of(v1alpha1.PhaseActive, "node-a", "u", in("p-2"))
	going.DeletionTimestamp = &metav1.Time{}
	for name, tt := range map[string]struct {
		o    *v1alpha1.PodNIC
		pod  *corev1.Pod
		want progress
	}{
		"no pod":                         {of(v1alpha1.PhaseCreated, "", "", nil), nil, unneeded},
		"no node":                        {of(v1alpha1.PhaseCreated, "", "u", nil), unscheduled, unneeded},
		"being deleted":                  {going, pod, unneeded},
		"released":                       {of(v1alpha1.PhaseReleasing, "node-a", "u", nil), pod, unneeded},
		"no port":                        {of(v1alpha1.PhasePending, "node-a", "u", nil), pod, unbound},
		"no report yet":                  {&v1alpha1.PodNIC{}, pod, unbound},
		"needs a change by a user":       {of(v1alpha1.PhaseFailed, "node-a", "u", nil), pod, unbound},
		"bound to another host":          {of(v1alpha1.PhaseBound, "node-b", "u", nil), pod, unbound},
		"bound for the previous pod":     {of(v1alpha1.PhaseActive, "node-a", "v", in("p-2")), pod, unbound},
		"not plugged":                    {of(v1alpha1.PhaseBound, "node-a", "u", nil), pod, unplugged},
		"report about the previous port": {of(v1alpha1.PhaseBound, "node-a", "u", in("p-1")), pod, unplugged},
		"plugging failed":                {of(v1alpha1.PhaseBound, "node-a", "u", &v1alpha1.PodNICNode{State: v1alpha1.NodeFailed, PortID: "p-2"}), pod, unplugged},
		"plugged":                        {of(v1alpha1.PhaseBound, "node-a", "u", in("p-2")), pod, inPlace},
		"plugged and active":             {of(v1alpha1.PhaseActive, "node-a", "u", in("p-2")), pod, inPlace},
	} {
		if got := progressOf(tt.o, tt.pod); got != tt.want {
			t.Errorf("%s: progressOf() = %d, want %d", name, got, tt.want)
		}
	}

	began := time.Unix(1000, 0)
	w, at := waits{}, began
	for i, step := range []struct {
		to   progress
		want waits
		done bool
	}{
		{inPlace, waits{}, false}, // plugged when the operator started
		{unbound, waits{bound: began.Add(time.Second)}, false},
		{unbound, waits{bound: began.Add(time.Second)}, false},
		{unplugged, waits{plugged: began.Add(3 * time.Second)}, false},
		{unplugged, waits{plugged: began.Add(3 * time.Second)}, false},
		{inPlace, waits{}, true},
		{inPlace, waits{}, false},
		{unplugged, waits{plugged: began.Add(7 * time.Second)}, false},
		{unneeded, waits{}, false},
	} {
		if done := w.at(step.to, at); done != step.done || w != step.want {
			t.Errorf("step %d: at() = %t with state %+v, want %t, %+v", i, done, w, step.done, step.want)
		}
		at = at.Add(time.Second)
	}
}

// A NIC is counted by what blocks it, and not counted if nothing does.
func TestTally(t *testing.T) {
	nic := func(vpc, node string, phase v1alpha1.PodNICPhase, ready, bound string) v1alpha1.PodNIC {
		o := v1alpha1.PodNIC{Spec: v1alpha1.PodNICSpec{VPC: vpc}, Status: v1alpha1.PodNICStatus{Phase: phase, NodeName: node}}
		for kind, reason := range map[string]string{v1alpha1.ConditionPortReady: ready, v1alpha1.ConditionBound: bound} {
			status := metav1.ConditionFalse
			if reason == reasonReady || reason == reasonBound {
				status = metav1.ConditionTrue
			}
			if reason != "" {
				o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason})
			}
		}
		return o
	}
	got := tallyOf([]v1alpha1.PodNIC{
		nic("a", "", "", "", ""),
		nic("a", "", v1alpha1.PhaseCreated, reasonReady, reasonUnscheduled),
		nic("a", "", v1alpha1.PhaseCreated, reasonReady, reasonNoPod),
		nic("a", "node-a", v1alpha1.PhaseActive, reasonReady, reasonBound),
		nic("a", "node-a", v1alpha1.PhasePending, "SubnetFull", ""),
		nic("a", "node-a", v1alpha1.PhaseCreated, reasonReady, reasonBinding),
		nic("b", "node-a", v1alpha1.PhaseCreated, reasonReady, reasonBinding),
		nic("b", "node-b", v1alpha1.PhaseFailed, "Forbidden", reasonBinding),
	})
	want := tally{
		map[[2]string]int{{"a", "Pending"}: 2, {"a", "Created"}: 3, {"a", "Active"}: 1, {"b", "Created"}: 1, {"b", "Failed"}: 1},
		map[[2]string]int{{"a", "SubnetFull"}: 1, {"a", "BindingFailed"}: 1, {"b", "BindingFailed"}: 1, {"b", "Forbidden"}: 1},
		map[[2]string]int{{"node-a"}: 2},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(tally{})); diff != "" {
		t.Errorf("tally() (-want +got):\n%s", diff)
	}
}

// Listings are counted, and the series of a deleted VPC are removed.
func TestListedPorts(t *testing.T) {
	m, known := NewMetrics(), newNICStates(clock.Real{}, time.Second, nil)
	known.nics["u-1"], known.created["u-2"] = &nic{}, true
	s := known.strays(map[types.UID][]vpcport.Port{"u-1": {{ID: "p-1"}, {ID: "p-2"}}, "u-2": {{ID: "p-3"}}, "u-3": {{ID: "p-4"}, {ID: "p-5"}}})
	if s != (strays{orphans: 2, doubles: 1}) {
		t.Errorf("strays = %+v, want two orphans and one double", s)
	}
	m.keepOnly([]string{"blue", "gone"})
	for _, vpc := range []string{"blue", "gone"} {
		m.strays(vpc, s)
		m.listed(vpc, nil)
		m.observe(m.bound, vpc, time.Second)
		m.observe(m.plugged, vpc, 2*time.Second)
	}
	m.listed("blue", &vpcport.Error{Class: vpcport.Transient})
	m.keepOnly([]string{"blue"})
	m.listed("gone", nil) // that was in flight
	m.strays("gone", s)
	m.keepOnly([]string{"blue"})
	harness.CheckMetrics(t, m.Collectors(), []metric.Family{famSteps, famBound, famPlugged, famListed, famAstray, famSwept}, map[string]string{
		`berth_operator_stray_ports{kind="orphan",vpc="blue"}`:                              "2",
		`berth_operator_stray_ports{kind="double",vpc="blue"}`:                              "1",
		`berth_operator_port_listings_total{result="success",vpc="blue"}`:                   "1",
		`berth_operator_port_listings_total{result="error",vpc="blue"}`:                     "1",
		`berth_operator_port_plugged_seconds_sum{vpc="blue"}`:                               "2",
		`berth_operator_stray_ports{kind="orphan",vpc="gone"}`:                              "",
		`berth_operator_port_listings_total{result="success",vpc="gone"}`:                   "",
		`berth_operator_port_bound_seconds_count{vpc="gone"}`:                               "",
		`berth_operator_port_steps_total{kind="create",result="ok"}`:                        "0",
		`berth_operator_port_steps_total{kind="` + nicplan.Rest.String() + `",result="ok"}`: "",
	})
}

// The metrics count waiting pods, and match the documented ones.
func TestMetrics(t *testing.T) {
	w := start(t, Options{OrphanAge: time.Hour})
	w.RemoveHost("node-b")
	w.AddPort(vpcport.Port{NetworkID: blue.ID, Device: vpcport.Device(cluster, "0b5e8d1e-0000-4000-8000-000000000001"), Owner: vpcport.Owner})
	for pod, node := range map[string]string{"runs": "node-a", "waits": "node-b"} {
		w.pod(pod, `[{subnet: web}]`)
		w.schedule(pod, node)
	}
	o := w.awaitNIC("runs", "eth0", "is bound", boundAt("node-a"))
	w.awaitNIC("waits", "eth0", "cannot be bound", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonBinding))
	w.Plug(o.Status.PortID, "node-a")
	w.says(o, v1alpha1.NodePlugged)
	w.awaitNIC("runs", "eth0", "is active", in(v1alpha1.PhaseActive))
	harness.Eventually(t, limit, "only the second pod is waiting, and the stray port is counted", func() error {
		l := w.c.states.longestWaits()["a"]
		if orphans := gathered(t, w.c.metrics.stray)[strayOrphan]; l.bound == 0 || l.plugged != 0 || orphans != 1 {
			return fmt.Errorf("waiting times = %+v, %v stray ports", l, orphans)
		}
		cached, err := objects.List[v1alpha1.PodNICList](t.Context(), w.c.api.client)
		if err == nil && !slices.ContainsFunc(cached.Items, func(n v1alpha1.PodNIC) bool { return n.Status.Phase == v1alpha1.PhaseActive }) {
			err = errors.New("the operator's cache has no active PodNIC yet")
		}
		return err
	})
	harness.CheckMetrics(t, append(w.c.metrics.Collectors(), w.c.Gauges()), Families, map[string]string{
		`berth_operator_podnics{phase="Active",vpc="a"}`:                    "1",
		`berth_operator_podnics{phase="Created",vpc="a"}`:                   "1",
		`berth_operator_podnics_blocked{reason="BindingFailed",vpc="a"}`:    "1",
		`berth_operator_podnics_unbindable{node="node-b"}`:                  "1",
		`berth_operator_podnic_longest_wait_seconds{for="plugged",vpc="a"}`: "0",
		`berth_operator_port_bound_seconds_count{vpc="a"}`:                  "1",
		`berth_operator_port_plugged_seconds_count{vpc="a"}`:                "1",
		`berth_operator_stray_ports{kind="orphan",vpc="a"}`:                 "1",
		`berth_operator_stray_ports{kind="double",vpc="a"}`:                 "0",
	})
}

// gathered returns the values of gauges of one VPC by kind.
func gathered(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	r, out := prometheus.NewRegistry(), map[string]float64{}
	harness.OK(t, r.Register(c))
	families, err := r.Gather()
	harness.OK(t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			out[m.Label[0].GetValue()] = m.Gauge.GetValue()
		}
	}
	return out
}
