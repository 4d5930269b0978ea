package podnics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// respec reopens VPC a with a changed spec.
func (w *world) respec(edit func(*v1alpha1.VPCSpec)) {
	spec := specA()
	edit(&spec)
	w.nets.set("a", Opened{Provider: w.Provider, Network: blue, Spec: spec})
}

// tenant returns a client with only the roles of an editor of namespace default, and with admission that rejects nothing, as the
// webhook may be unavailable.
func (w *world) tenant() client.Client {
	w.t.Helper()
	v := controllers.Named[v1alpha1.VPC]("a")
	everything := `{"spec":{"namespaceLimits":[{"namespaces":{"selector":{}},"securityGroups":["*"]}]}}`
	harness.OK(w.t, w.client().Patch(w.t.Context(), v, client.RawPatch(types.MergePatchType, []byte(everything))))
	for _, role := range []string{"system:aggregate-to-view", "system:aggregate-to-edit", "berth-podnics-view", "berth-podnics-edit"} {
		b := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tenant:" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant"}},
		}
		harness.OK(w.t, client.IgnoreAlreadyExists(w.client().Create(w.t.Context(), b)))
	}
	cfg, err := harness.ControlPlane.ConfigFor("tenant")
	harness.OK(w.t, err)
	c := harness.KubeClientFor(w.t, cfg)
	probe := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"}, Spec: v1alpha1.PodNICSpec{VPC: "a", SecurityGroups: []string{"any"}}}
	harness.Eventually(w.t, limit, "roles in effect", func() error {
		return errors.Join(c.Create(w.t.Context(), probe, client.DryRunAll), c.Create(w.t.Context(), newPod("probe", ""), client.DryRunAll))
	})
	return c
}

// PodNICs created while no webhook checks them get no ports with a group, in a subnet, or of another owner that the VPC does not
// allow the namespace, and existing ports get no such groups. Later permissions take effect; a withdrawn permission changes nothing.
func TestNICsBeyondTheirNamespace(t *testing.T) {
	w := start(t, Options{})
	w.AddGroup("g-bank")
	theirs := w.AddPort(vpcport.Port{NetworkID: "n-blue", Name: "bank", Tags: []string{vpcport.NamespaceTag(cluster, "bank"), vpcport.NamespaceTag("other", "default")}})
	tenant := w.tenant()
	for name, spec := range map[string]v1alpha1.PodNICSpec{
		"group": {SecurityGroups: []string{"g-1", "g-bank"}}, "port": {PortID: theirs.ID}, "mine": {SecurityGroups: []string{"g-1"}},
	} {
		spec.VPC = "a"
		harness.OK(t, tenant.Create(t.Context(), &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: spec}))
	}
	harness.OK(t, tenant.Create(t.Context(), newPod("web", `[{securityGroup: g-bank}, {portID: `+theirs.ID+`}]`)))
	refused := func(name, reason string, words ...string) {
		t.Helper()
		w.awaitObject(name, "is rejected", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reason, words...))
	}
	refused("group", reasonRefused, "spec.securityGroups[1]: g-bank is not for namespace default in VPC a, expected one of g-1, g-2, g-3, g-none")
	refused("port", "NotFound", "port "+theirs.ID+" does not have the tag berth:test:default")
	w.awaitEvent("web", reasonRefused, "[0].securityGroups[0]: g-bank is not for namespace default")
	w.awaitEvent("web", "NotFound", "does not have the tag")
	mine := w.awaitObject("mine", "has a port", in(v1alpha1.PhaseCreated)).DeepCopy()
	harness.OK(t, tenant.Patch(t.Context(), mine, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"securityGroups":["g-bank"]}}`))))
	w.awaitObject("mine", "reports the forbidden group", condition(v1alpha1.ConditionAllowed, metav1.ConditionFalse, reasonNotAllowed, "stays as it is", "g-bank is not for namespace default"))
	for _, p := range w.All() {
		if p.ID == theirs.ID && (p.Device != "" || p.Host != "") || p.ID != theirs.ID && (p.ID != mine.Status.PortID || strings.Join(p.Groups, " ") != "g-1") {
			t.Errorf("unexpected port %+v", p)
		}
	}
	w.respec(func(s *v1alpha1.VPCSpec) { s.NamespaceLimits[0].SecurityGroups = []string{"g-bank", "g-1"} })
	w.awaitObject("group", "has a port", in(v1alpha1.PhaseCreated))
	o := w.awaitObject("mine", "is allowed", func(o *v1alpha1.PodNIC) error {
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAllowed); c != nil {
			return fmt.Errorf("condition Allowed = %+v, want none", c)
		}
		return nil
	})
	before := o.Status.PortID
	w.respec(func(s *v1alpha1.VPCSpec) { s.NamespaceLimits = nil })
	w.awaitObject("mine", "reports the withdrawn permission", condition(v1alpha1.ConditionAllowed, metav1.ConditionFalse, reasonNotAllowed, "expected none"))
	w.Remove(before)
	refused("mine", reasonRefused, "g-bank is not for namespace default")
}

// Of 260 PodNICs created at the same time, no more than the limit get a port, even with changes of operator in between. A released
// place goes to the next PodNIC, and a higher limit takes effect immediately.
func TestPlacesOfANamespace(t *testing.T) {
	w := start(t, Options{}, portfake.Options{Latency: 20 * time.Millisecond})
	const all, most = 260, 40
	limitTo := func(n int32) { w.respec(func(s *v1alpha1.VPCSpec) { s.MaxNICsPerNamespace = &n }) }
	limitTo(most)
	tenant := w.tenant()
	var making sync.WaitGroup
	for k := range 10 {
		making.Go(func() {
			for i := k; i < all; i += 10 {
				o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("c-", i)}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
				if i%3 == 0 {
					o.Finalizers = []string{v1alpha1.FinalizerPort} // as if an operator had requested its port
				}
				if err := tenant.Create(context.WithoutCancel(t.Context()), o); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		harness.Eventually(t, limit, "some ports created", func() error {
			if n := len(w.All()); n < 5 {
				return fmt.Errorf("got %d ports, want at least 5", n)
			}
			return nil
		})
		w.end()
		w.run(Options{})
	}
	making.Wait()
	w.awaitPorts(most, "as many ports as allowed")
	waits := condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reasonLimit, "namespace default may have 40 NICs with a port in VPC a (spec.maxNICsPerNamespace of the VPC)")
	holders := func() (out []string) {
		list := &v1alpha1.PodNICList{}
		harness.OK(t, w.client().List(t.Context(), list, client.InNamespace("default")))
		for i := range list.Items {
			if list.Items[i].Status.PortID != "" {
				out = append(out, list.Items[i].Name)
			}
		}
		return out
	}
	harness.Eventually(t, limit, "other PodNICs report the limit", func() error {
		list := &v1alpha1.PodNICList{}
		harness.OK(t, w.client().List(t.Context(), list, client.InNamespace("default")))
		refused := 0
		for i := range list.Items {
			if waits(&list.Items[i]) == nil {
				refused++
			}
		}
		if has := len(holders()); refused != all-most || has != most {
			return fmt.Errorf("%d of %d PodNICs are refused, and %d have a port", refused, len(list.Items), has)
		}
		return nil
	})
	w.awaitPorts(most, "still as many ports as allowed")
	gone := holders()[0]
	deletePodNIC(t, w, gone)
	w.awaitGone(gone)
	harness.Eventually(t, limit, "released place reused", func() error {
		if n := len(holders()); n != most {
			return fmt.Errorf("%d PodNICs have a port", n)
		}
		return nil
	})
	limitTo(most + 2)
	w.awaitPorts(most+2, "as many ports as the new limit")
}

// A branch that names no subnet may be in any subnet allowed for its namespace, and the pool has none in other subnets for it.
func TestSubnetsOfANamespace(t *testing.T) {
	s := &observation{o: &v1alpha1.PodNIC{}, opened: Opened{
		Provider: portfake.New(portfake.Options{Traits: vpcport.Traits{NeedsHost: true}}), Network: blue, Spec: v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2},
	}}
	for _, tt := range []struct{ limits, asked, want []string }{
		{nil, nil, nil},
		{[]string{"small", "gone"}, nil, []string{"s-small"}},
		{[]string{"small", "web"}, []string{"web"}, nil},
	} {
		s.limits.Subnets, s.o.Spec.Addresses = tt.limits, nil
		for _, name := range tt.asked {
			s.o.Spec.Addresses = append(s.o.Spec.Addresses, v1alpha1.NICAddress{Subnet: name})
		}
		s.desire(cluster, nic{})
		s.desired.Port.Host = "i-1"
		kind, ok := warm.KindOf("a", vpcport.NewPort{Host: "i-1", Addresses: s.desired.Port.Addresses, Subnets: s.desired.Port.Subnets})
		if !slices.Equal(s.desired.Port.Subnets, tt.want) || !ok || len(tt.asked) == 0 && kind.Subnets != strings.Join(tt.want, " ") {
			t.Errorf("NIC asking for %v with limits %v: subnets %v, kind %+v", tt.asked, tt.limits, s.desired.Port.Subnets, kind)
		}
	}
}

// A NIC that may have requested a port counts until it is known that no port was created. A NIC with a port always has a place.
func TestRoom(t *testing.T) {
	now := time.Now()
	have := func(recorded string, unclear, looked bool) nicplan.Observed {
		return nicplan.Observed{Kept: true, Recorded: recorded, Unclear: unclear, Looked: looked}
	}
	for name, tt := range map[string]struct {
		nic    nic
		taking bool
		age    time.Duration // since this process became leader
		want   bool
	}{
		"no port":                     {nic{}, false, 0, false},
		"port recorded":               {nic{observed: have("p", false, true)}, false, time.Hour, true},
		"requesting":                  {nic{}, true, time.Hour, true},
		"not looked at":               {nic{observed: have("", true, false)}, false, time.Hour, true},
		"looked too early":            {nic{observed: have("", true, true)}, false, time.Second, true},
		"looked long after the start": {nic{observed: have("", true, true)}, false, time.Hour, false},
		"unclear call just now":       {nic{observed: have("", true, true), history: portHistory{unclear: now.Add(-time.Second)}}, false, time.Hour, true},
		"user's port, not looked at":  {nic{given: true, observed: have("", true, false)}, false, time.Hour, true},
		"user's port, looked at":      {nic{given: true, observed: have("", true, true)}, false, time.Second, false},
	} {
		q := newQuotas(clock.Real{}, time.Minute, nil)
		q.begin(now.Add(-tt.age))
		n := tt.nic
		n.vpc, n.key.Namespace = "a", "default"
		q.update("other", &n)
		if tt.taking {
			q.enter("other", 1)
		}
		q.update("new", &nic{vpc: "a", key: types.NamespacedName{Namespace: "default", Name: "new"}})
		if got := !q.enter("new", 1); got != tt.want {
			t.Errorf("%s: holds a place = %v", name, got)
		}
	}
}

// A free place goes to a NIC that takes it, however many NICs before it have ended or are refused. NICs that find no place wake
// nobody.
func TestPlacesArePassedOn(t *testing.T) {
	var woken []types.NamespacedName
	b := newNICStates(clock.Real{}, time.Minute, func(key types.NamespacedName) { woken = append(woken, key) })
	const waiting = 3*wakes + 1
	for i := range waiting + 1 {
		o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
		b.with(o, false, func(*nic) {})
		if got := b.quotas.enter(o.UID, 1); got != (i == 0) {
			t.Fatalf("enter() of NIC %d = %v", i, got)
		}
	}
	b.forget(types.NamespacedName{Namespace: "default", Name: "0"})
	harness.OK(t, controllers.Same("woken NICs", len(woken), wakes))
	for i := 0; i < len(woken); i++ {
		if i%2 == 0 {
			b.forget(woken[i]) // it has ended
		} else {
			b.quotas.passOn(b.uids[woken[i]]) // it is refused
			b.quotas.passOn(b.uids[woken[i]])
		}
	}
	harness.OK(t, controllers.Same("woken NICs", len(woken), waiting))
	var left []types.UID
	for uid := range b.nics {
		left = append(left, uid)
	}
	woken = nil
	for i, uid := range left {
		if got := b.quotas.enter(uid, 2); got != (i < 2) {
			t.Errorf("enter() of waiting NIC %d = %v", i, got)
		}
		b.quotas.passOn(uid)
	}
	harness.OK(t, controllers.Same("NICs woken without a free place", len(woken), 0))
	// A higher limit is noticed by the first NIC that asks.
	if b.quotas.enter(left[2], 5); len(woken) != 2 {
		t.Errorf("%d NICs woken for 2 places", len(woken))
	}
	for _, key := range slices.Clone(woken) { // other NICs were faster
		if b.quotas.enter(b.uids[key], 3) {
			t.Errorf("NIC %s got a place although none is free", key)
		}
		b.quotas.passOn(b.uids[key])
	}
	harness.OK(t, controllers.Same("NICs woken for two places", len(woken), 2))
}

// A waiting NIC that got a place through a higher limit is not woken for another one.
func TestPlaceByAHigherLimit(t *testing.T) {
	var woken []string
	q := newQuotas(clock.Real{}, time.Minute, func(key types.NamespacedName) { woken = append(woken, key.Name) })
	for i, name := range []types.UID{"first", "second"} {
		q.update(name, &nic{vpc: "a", key: types.NamespacedName{Name: string(name)}})
		if q.enter(name, 1) != (i == 0) {
			t.Errorf("enter() of the %s NIC is wrong with a limit of 1", name)
		}
	}
	if !q.enter("second", 3) || len(woken) > 0 {
		t.Errorf("woken NICs = %v, want the second to have a place and none woken", woken)
	}
}

// A port that an unclear call made after all, as a listing shows, has its place from then on, and not from when its NIC
// is reconciled.
func TestPlaceOfLatePort(t *testing.T) {
	s := newNICStates(clock.Real{}, time.Nanosecond, nil)
	of := func(name string) *v1alpha1.PodNIC {
		return &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
	}
	s.with(of("late"), true, func(n *nic) { n.observed.Looked = true })
	s.with(of("new"), false, func(*nic) {})
	harness.OK(t, controllers.Same("drifted NICs", len(s.compare("a", map[types.UID][]vpcport.Port{"late": {{ID: "p"}}}, time.Now())), 1))
	if s.quotas.enter("new", 1) {
		t.Error("another NIC got the place of the late port")
	}
}

// A listed PodNIC may already be gone, or have been recreated, when it is added.
func TestListedPodNICs(t *testing.T) {
	b := newNICStates(clock.Real{}, time.Minute, nil)
	of := func(name string, uid types.UID, port string) *v1alpha1.PodNIC {
		o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
		o.Status.PortID = port
		return o
	}
	b.with(of("db", "new", ""), true, func(*nic) {})
	old, known, gone := b.addListed(of("db", "old", "p"), true), b.addListed(of("db", "new", ""), true), b.addListed(of("gone", "gone", "q"), true)
	if !b.has("new") || b.has("old") || !b.has("gone") || old || known || !gone {
		t.Errorf("known NICs %v; addListed() of the old, known and deleted PodNIC = %v, %v, %v, want false twice and then true", b.uids, old, known, gone)
	}
}
