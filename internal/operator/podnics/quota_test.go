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

// respec opens VPC a with a changed spec.
func (w *world) respec(edit func(*v1alpha1.VPCSpec)) {
	spec := specA()
	edit(&spec)
	w.nets.set("a", Opened{Provider: w.Provider, Network: blue, Spec: spec})
}

// tenant is a client with the roles of somebody who edits the namespace default, and nothing else, and with an admission
// that refuses nothing, as it may be away.
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
	harness.Eventually(w.t, limit, "the roles hold", func() error {
		return errors.Join(c.Create(w.t.Context(), probe, client.DryRunAll), c.Create(w.t.Context(), newPod("probe", ""), client.DryRunAll))
	})
	return c
}

// What a person makes while no admission looks: no port of a group, a subnet or somebody else's that the VPC does not
// give the namespace, and no other groups for a port that there is. What the VPC gives later comes; what it takes back stays.
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
		w.awaitObject(name, "is refused", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reason, words...))
	}
	refused("group", reasonRefused, "spec.securityGroups[1]: g-bank is not for namespace default in VPC a, expected one of g-1, g-2, g-3, g-none")
	refused("port", "NotFound", "port "+theirs.ID+" does not have the tag berth:test:default")
	w.awaitEvent("web", reasonRefused, "[0].securityGroups[0]: g-bank is not for namespace default")
	w.awaitEvent("web", "NotFound", "does not have the tag")
	mine := w.awaitObject("mine", "has a port", in(v1alpha1.PhaseCreated)).DeepCopy()
	harness.OK(t, tenant.Patch(t.Context(), mine, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"securityGroups":["g-bank"]}}`))))
	w.awaitObject("mine", "is reported", condition(v1alpha1.ConditionAllowed, metav1.ConditionFalse, reasonNotAllowed, "stays as it is", "g-bank is not for namespace default"))
	for _, p := range w.All() {
		if p.ID == theirs.ID && (p.Device != "" || p.Host != "") || p.ID != theirs.ID && (p.ID != mine.Status.PortID || strings.Join(p.Groups, " ") != "g-1") {
			t.Errorf("there is %+v", p)
		}
	}
	w.respec(func(s *v1alpha1.VPCSpec) { s.NamespaceLimits[0].SecurityGroups = []string{"g-bank", "g-1"} })
	w.awaitObject("group", "has a port", in(v1alpha1.PhaseCreated))
	o := w.awaitObject("mine", "has its groups", func(o *v1alpha1.PodNIC) error {
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAllowed); c != nil {
			return fmt.Errorf("says %+v", c)
		}
		return nil
	})
	before := o.Status.PortID
	w.respec(func(s *v1alpha1.VPCSpec) { s.NamespaceLimits = nil })
	w.awaitObject("mine", "is reported again", condition(v1alpha1.ConditionAllowed, metav1.ConditionFalse, reasonNotAllowed, "expected none"))
	w.Remove(before)
	refused("mine", reasonRefused, "g-bank is not for namespace default")
}

// Of 260 PodNICs that a person makes at once no more than the limit get a port, also while one operator follows on
// another in their midst; one that is given back is the next one's, and a higher limit is at once for those that wait.
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
					o.Finalizers = []string{v1alpha1.FinalizerPort} // as if an operator had asked for its port
				}
				if err := tenant.Create(context.WithoutCancel(t.Context()), o); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		harness.Eventually(t, limit, "a few ports", func() error {
			if n := len(w.All()); n < 5 {
				return fmt.Errorf("%d ports", n)
			}
			return nil
		})
		w.end()
		w.run(Options{})
	}
	making.Wait()
	w.awaitPorts(most, "as many as may be")
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
	harness.Eventually(t, limit, "the rest is reported", func() error {
		list := &v1alpha1.PodNICList{}
		harness.OK(t, w.client().List(t.Context(), list, client.InNamespace("default")))
		refused := 0
		for i := range list.Items {
			if waits(&list.Items[i]) == nil {
				refused++
			}
		}
		if has := len(holders()); refused != all-most || has != most {
			return fmt.Errorf("%d of %d are refused, and %d have a port", refused, len(list.Items), has)
		}
		return nil
	})
	w.awaitPorts(most, "still as many as may be")
	gone := holders()[0]
	deletePodNIC(t, w, gone)
	w.awaitGone(gone)
	harness.Eventually(t, limit, "the next has its place", func() error {
		if n := len(holders()); n != most {
			return fmt.Errorf("%d have a port", n)
		}
		return nil
	})
	limitTo(most + 2)
	w.awaitPorts(most+2, "as many as may be now")
}

// A branch that names no subnet is to be in one of those that its namespace may have, and the pool has no other for it.
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
			t.Errorf("%v of %v: among %v, kind %+v", tt.asked, tt.limits, s.desired.Port.Subnets, kind)
		}
	}
}

// Who may have asked for a port counts until it is known that nobody did, and who has one is never without a place.
func TestRoom(t *testing.T) {
	now := time.Now()
	have := func(recorded string, unclear, looked bool) nicplan.Observed {
		return nicplan.Observed{Kept: true, Recorded: recorded, Unclear: unclear, Looked: looked}
	}
	for name, tt := range map[string]struct {
		nic    nic
		taking bool
		age    time.Duration // since this process began
		want   bool
	}{
		"has nothing":                {nic{}, false, 0, false},
		"its port is recorded":       {nic{observed: have("p", false, true)}, false, time.Hour, true},
		"asks":                       {nic{}, true, time.Hour, true},
		"not looked at":              {nic{observed: have("", true, false)}, false, time.Hour, true},
		"looked at early":            {nic{observed: have("", true, true)}, false, time.Second, true},
		"looked at, and long ago":    {nic{observed: have("", true, true)}, false, time.Hour, false},
		"asked for in vain just now": {nic{observed: have("", true, true), history: portHistory{unclear: now.Add(-time.Second)}}, false, time.Hour, true},
		"a user's, not looked at":    {nic{given: true, observed: have("", true, false)}, false, time.Hour, true},
		"a user's, looked at":        {nic{given: true, observed: have("", true, true)}, false, time.Second, false},
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
			t.Errorf("%s: holds a place: %v", name, got)
		}
	}
}

// A place that is free goes to one that takes it, however many before it are over or refused; and those that
// find none wake nobody.
func TestPlacesArePassedOn(t *testing.T) {
	var woken []types.NamespacedName
	b := newNICStates(clock.Real{}, time.Minute, func(key types.NamespacedName) { woken = append(woken, key) })
	const waiting = 3*wakes + 1
	for i := range waiting + 1 {
		o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
		b.with(o, false, func(*nic) {})
		if got := b.quotas.enter(o.UID, 1); got != (i == 0) {
			t.Fatalf("NIC %d has a place: %v", i, got)
		}
	}
	b.forget(types.NamespacedName{Namespace: "default", Name: "0"})
	harness.OK(t, controllers.Same("NICs that are woken", len(woken), wakes))
	for i := 0; i < len(woken); i++ {
		if i%2 == 0 {
			b.forget(woken[i]) // it is over
		} else {
			b.quotas.passOn(b.uids[woken[i]]) // it is refused
			b.quotas.passOn(b.uids[woken[i]])
		}
	}
	harness.OK(t, controllers.Same("NICs that are woken", len(woken), waiting))
	var left []types.UID
	for uid := range b.nics {
		left = append(left, uid)
	}
	woken = nil
	for i, uid := range left {
		if got := b.quotas.enter(uid, 2); got != (i < 2) {
			t.Errorf("the NIC that asks as number %d has a place: %v", i, got)
		}
		b.quotas.passOn(uid)
	}
	harness.OK(t, controllers.Same("NICs that are woken for no place", len(woken), 0))
	// A higher limit is seen by the first that asks.
	if b.quotas.enter(left[2], 5); len(woken) != 2 {
		t.Errorf("%d are woken for 2 places", len(woken))
	}
	for _, key := range slices.Clone(woken) { // others were faster
		if b.quotas.enter(b.uids[key], 3) {
			t.Errorf("%s has a place of none", key)
		}
		b.quotas.passOn(b.uids[key])
	}
	harness.OK(t, controllers.Same("NICs that are woken for two places", len(woken), 2))
}

// A NIC that waited and has a place by a higher limit is not woken for another.
func TestPlaceByAHigherLimit(t *testing.T) {
	var woken []string
	q := newQuotas(clock.Real{}, time.Minute, func(key types.NamespacedName) { woken = append(woken, key.Name) })
	for i, name := range []types.UID{"first", "second"} {
		q.update(name, &nic{vpc: "a", key: types.NamespacedName{Name: string(name)}})
		if q.enter(name, 1) != (i == 0) {
			t.Errorf("the %s NIC has the other's place", name)
		}
	}
	if !q.enter("second", 3) || len(woken) > 0 {
		t.Errorf("woken %v", woken)
	}
}

// A port that an unclear call made after all, as a listing shows, has its place from then on, and not from when its NIC
// is reconciled.
func TestPlaceOfAPortThatAppears(t *testing.T) {
	s := newNICStates(clock.Real{}, time.Nanosecond, nil)
	of := func(name string) *v1alpha1.PodNIC {
		return &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
	}
	s.with(of("late"), true, func(n *nic) { n.observed.Looked = true })
	s.with(of("new"), false, func(*nic) {})
	harness.OK(t, controllers.Same("NICs other than known", len(s.compare("a", map[types.UID][]vpcport.Port{"late": {{ID: "p"}}}, time.Now())), 1))
	if s.quotas.enter("new", 1) {
		t.Error("another NIC got its place")
	}
}

// A PodNIC that a listing has may be gone, or have another after it, by the time that it is noted.
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
		t.Errorf("known %v; added %v, %v, %v", b.uids, old, known, gone)
	}
}
