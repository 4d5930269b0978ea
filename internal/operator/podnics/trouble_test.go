package podnics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func deletePodNIC(t *testing.T, w *world, name string) {
	t.Helper()
	harness.OK(t, w.client().Delete(t.Context(), &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}))
}

// A full subnet, an unknown group, an address in use and the gateway's address only affect the NICs that ask for them. Each NIC continues
// once its problem is solved.
func TestProblemsOfOneNIC(t *testing.T) {
	w := start(t, Options{})
	for i := range 5 {
		w.AddPort(vpcport.Port{NetworkID: "n-blue", Addresses: []vpcport.FixedIP{{SubnetID: "s-small", IP: nth(small.Gateway, i+1)}}})
	}
	w.pod("full", `[{subnet: small}]`)
	w.pod("group", `[{subnet: web, securityGroup: g-none}]`)
	w.pod("taken", `[{ip: 192.168.1.4}]`)
	w.pod("gateway", `[{ip: 192.168.0.1}]`)
	w.pod("nowhere", `[{subnet: nowhere}]`)
	for i := range 3 {
		w.pod(fmt.Sprintf("good-%d", i), "")
	}
	for i := range 3 {
		w.awaitNIC(fmt.Sprintf("good-%d", i), "eth0", "has a port", in(v1alpha1.PhaseCreated))
	}
	is := func(reason string, words ...string) func(*v1alpha1.PodNIC) error {
		return condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reason, words...)
	}
	w.awaitNIC("full", "eth0", "waits", is("SubnetFull", "s-small"))
	w.awaitNIC("group", "eth0", "waits", is("NotFound", "g-none"))
	w.awaitNIC("taken", "eth0", "waits", is("AddressTaken", "192.168.1.4"))
	w.awaitNIC("gateway", "eth0", "is rejected", is(reasonRefused, "is the gateway"))
	w.awaitNIC("nowhere", "eth0", "is rejected", is(reasonRefused, "no subnet"))
	w.awaitEvent("full", "SubnetFull", "eth0")
	w.awaitEvent("gateway", reasonRefused, "metadata.annotations[berth.dev/nics][0].ip: 192.168.0.1 is the gateway")
	if err := in(v1alpha1.PhaseFailed)(w.nicsOf("group")["eth0"]); err != nil {
		t.Error(err)
	}
	for _, p := range w.All() {
		if p.Device == "" {
			w.Remove(p.ID)
		}
	}
	w.awaitNIC("full", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.awaitNIC("taken", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.AddGroup("g-none")
	w.deletePod("group")
	w.pod("group2", `[{subnet: web, securityGroup: g-none}]`)
	w.awaitNIC("group2", "eth0", "has a port", in(v1alpha1.PhaseCreated))
}

// Binding to a host without an agent is retried, and succeeds once the agent runs.
func TestBindingFails(t *testing.T) {
	w := start(t, Options{})
	w.RemoveHost("node-a")
	w.pod("web", "")
	w.schedule("web", "node-a")
	w.awaitNIC("web", "eth0", "fails to bind", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonBinding, "node-a"))
	w.awaitEvent("web", reasonBinding, "is its agent running there")
	w.AddHost("node-a", ovn)
	w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	if n := w.Front.Count("Update"); n > 12 {
		t.Errorf("%d Update calls, want at most 12", n)
	}
}

// A port deleted by another client is recreated with its addresses and its MAC address. A port that another client unbinds or gives other
// groups is restored.
func TestPortChangedByAnotherClient(t *testing.T) {
	w := start(t, Options{})
	lower := w.AddPort(vpcport.Port{NetworkID: "n-blue", Addresses: []vpcport.FixedIP{{SubnetID: "s-web", IP: nth(web.Gateway, 1)}}})
	o := w.bound("web", `[{subnet: web, securityGroup: g-1}]`, "node-a")
	w.says(o, v1alpha1.NodePlugged)
	w.Touch(o.Status.PortID, func(p *vpcport.Port) {
		p.Host, p.Binding, p.Groups = "node-b", vpcport.Binding{Result: vpcport.Bound, Plug: ovn}, []string{"g-2"}
	})
	harness.Eventually(t, limit, "host and groups restored", func() error {
		if p := w.All()[1]; p.Host != "node-a" || !slices.Equal(p.Groups, []string{"g-1"}) {
			return fmt.Errorf("port = %+v", p)
		}
		return nil
	})
	w.awaitNIC("web", "eth0", "is bound again", boundAt("node-a"))
	w.Touch(o.Status.PortID, func(p *vpcport.Port) { p.Device = "" })
	harness.Eventually(t, limit, "device restored", func() error {
		if p := w.All(); len(p) != 2 || p[1].ID != o.Status.PortID || p[1].Device != vpcport.Device(cluster, string(o.UID)) {
			return fmt.Errorf("ports = %+v", p)
		}
		return nil
	})
	w.Remove(lower.ID) // its address would be the next free one
	w.Remove(o.Status.PortID)
	next := w.awaitNIC("web", "eth0", "is bound again", anotherPort(o.Status.PortID, boundAt("node-a")))
	if next.Status.MAC != o.Status.MAC || next.Status.Addresses[0] != o.Status.Addresses[0] || !next.Status.Made {
		t.Errorf("status changed from %+v to %+v, want the same MAC and IP addresses", o.Status, next.Status)
	}
}

// If a user deletes a PodNIC while its pod is running, the port is released once the node has unplugged it, and the PodNIC is recreated.
func TestPodNICDeletedByHand(t *testing.T) {
	w := start(t, Options{})
	o := w.bound("web", "", "node-a")
	w.says(o, v1alpha1.NodePlugged)
	deletePodNIC(t, w, o.Name)
	w.awaitObject(o.Name, "waits", in(v1alpha1.PhaseReleasing))
	w.says(o, v1alpha1.NodeUnplugged)
	w.awaitNIC("web", "eth0", "is recreated", another(o, boundAt("node-a")))
	w.awaitPorts(1, "one port")
}

// The same holds for the default PodNIC of a pod in its namespace's VPC, even when the namespace no longer has a VPC. A pod that never
// had a PodNIC gets none.
func TestDefaultPodNICDeletedByHand(t *testing.T) {
	w := start(t, Options{})
	w.plain("before", "node-a")
	w.finish("before", corev1.PodRunning)
	w.nameVPC("a")
	w.plain("web", "node-a")
	o := w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.finish("web", corev1.PodRunning)
	again := func(when string) {
		deletePodNIC(t, w, o.Name)
		o = w.awaitNIC("web", "eth0", "is recreated, "+when, another(o, boundAt("node-a")))
	}
	again("its pod runs")
	w.end()
	w.run(Options{})
	again("with another operator")
	w.nameVPC("")
	again("its namespace has no VPC")
	if !o.Status.DefaultRoute {
		t.Errorf("status = %+v, want the default route", o.Status)
	}
	harness.OK(t, controllers.Same("NICs of the older pod", len(w.nicsOf("before")), 0))
	w.awaitPorts(1, "one port")
}

// A node that died with a port plugged holds the port for the grace period. A node that is gone or out of service does not hold it.
func TestDeadNodesHoldTheirPorts(t *testing.T) {
	w := start(t, Options{UnplugGrace: time.Hour})
	plugged := func(pod, node string) *v1alpha1.PodNIC {
		w.pod(pod, "")
		w.schedule(pod, node)
		o := w.awaitNIC(pod, "eth0", "is bound", boundAt(node))
		w.says(o, v1alpha1.NodePlugged)
		return o
	}
	gone, out := plugged("gone", "node-a"), plugged("out", "node-b")
	w.deletePod("gone")
	w.deletePod("out")
	w.awaitObject(gone.Name, "waits", in(v1alpha1.PhaseReleasing))
	w.awaitObject(out.Name, "waits", in(v1alpha1.PhaseReleasing))
	harness.OK(t, w.client().Delete(t.Context(), controllers.Named[corev1.Node]("node-a")))
	w.awaitGone(gone.Name)
	controllers.Merge(t, controllers.Named[corev1.Node]("node-b"), `{"spec":{"taints":[{"key":%q,"effect":"NoExecute"}]}}`, corev1.TaintNodeOutOfService)
	w.awaitGone(out.Name)
	w.awaitPorts(0, "no ports left")
}

// Lost replies and failed calls still lead to exactly one port.
func TestFaults(t *testing.T) {
	w := start(t, Options{Listing: time.Hour})
	for _, class := range []vpcport.Class{vpcport.Transient, vpcport.Throttled, vpcport.Stale, vpcport.Conflict} {
		w.Front.Inject(portfake.Fault{Times: 1, Err: portfake.Err(class)})
	}
	w.Front.Inject(portfake.Fault{Op: "Create", Times: 1, Err: portfake.Err(vpcport.Transient), After: true})
	w.pod("web", "")
	w.schedule("web", "node-a")
	controllers.AwaitValue(t, "injected faults hit", func() bool { return w.Front.Count("Ports", "Create", "Update") >= 2 }, true)
	w.Front.ClearFaults()
	w.respec(func(*v1alpha1.VPCSpec) {})
	w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.awaitPorts(1, "one port")
}

// hung is a provider that does not answer listings.
type hung struct {
	vpcport.Provider
	asked, ended chan struct{} // closed when the first listing begins and ends
	once         [2]sync.Once
}

func (h *hung) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	h.once[0].Do(func() { close(h.asked) })
	<-ctx.Done()
	h.once[1].Do(func() { close(h.ended) })
	return nil, ctx.Err()
}

// A VPC whose provider does not answer does not delay the sweep of another one.
func TestSweepOfOneVPCHangs(t *testing.T) {
	w := start(t, Options{})
	h := &hung{Provider: newProvider(portfake.Options{}), asked: make(chan struct{}), ended: make(chan struct{})}
	harness.OK(t, w.client().Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: specA()}))
	w.nets.set("b", Opened{Provider: h, Network: blue, Spec: specA()})
	<-h.asked
	w.AddPort(vpcport.Port{NetworkID: "n-blue", Device: vpcport.Device(cluster, "uid-1"), Owner: vpcport.Owner, MAC: vpcport.DerivedMAC(cluster, "uid-1", 0)})
	w.awaitPorts(0, "orphaned port deleted")
	select {
	case <-h.ended:
		t.Error("the other VPC was delayed until the hung listing ended")
	default:
	}
}

// Orphaned ports are looked for less often than ports are listed.
func TestOrphansAreLookedForLessOften(t *testing.T) {
	w := start(t, Options{Orphans: time.Hour})
	orphan := w.AddPort(vpcport.Port{NetworkID: "n-blue", Device: vpcport.Device(cluster, "uid-1"), Owner: vpcport.Owner, MAC: vpcport.DerivedMAC(cluster, "uid-1", 0)})
	o := w.bound("web", "", "node-a")
	for range 3 { // each is noticed by a listing while OrphanAge passes
		w.Remove(o.Status.PortID)
		before := o.Status.PortID
		o = w.awaitNIC("web", "eth0", "is bound again", anotherPort(before, boundAt("node-a")))
	}
	if _, err := w.Get(t.Context(), orphan.ID); err != nil {
		t.Errorf("get orphaned port: %v, want it to exist", err)
	}
}

// An orphaned port is deleted after some time. A user's port only loses Berth's marks, whatever its name.
func TestSweep(t *testing.T) {
	w := start(t, Options{})
	port := func(of, uid, name string) vpcport.Port {
		return w.AddPort(vpcport.Port{NetworkID: "n-blue", Device: vpcport.Device(of, uid), Owner: vpcport.Owner, Name: name})
	}
	made := w.AddPort(vpcport.Port{NetworkID: "n-blue", Device: vpcport.Device(cluster, "uid-1"), Owner: vpcport.Owner, MAC: vpcport.DerivedMAC(cluster, "uid-1", 1)})
	named := port(cluster, "uid-2", vpcport.PortName("uid-2", "x", "y"))
	stripped := w.AddPort(vpcport.Port{NetworkID: "n-blue", Owner: vpcport.Owner, Name: vpcport.PortName("uid-8", "x", "y"), MAC: vpcport.DerivedMAC(cluster, "uid-8", 0)})
	users := []vpcport.Port{
		port(cluster, "uid-3", "mine"),
		port(cluster, "uid-4", "berth/shop/web"),
		port(cluster, "uid-5", vpcport.PortName("uid-2", "x", "y")), // named like an earlier port of Berth
		port(cluster, "uid-6", "berth/uid-66/x/y"),
	}
	others := []vpcport.Port{
		port("other", "uid-1", vpcport.PortName("uid-1", "x", "y")),
		w.AddPort(vpcport.Port{NetworkID: "n-blue", Owner: vpcport.Owner, Name: vpcport.PortName("uid-8", "x", "y"), MAC: vpcport.DerivedMAC("other", "uid-8", 0)}),
	}
	for _, u := range users {
		harness.Eventually(t, limit, u.Name+" returned", func() error {
			if got, err := w.Get(t.Context(), u.ID); err != nil || got.Device != "" || got.Owner != "" {
				return fmt.Errorf("port = %+v, error %w", got, err)
			}
			return nil
		})
	}
	w.awaitPorts(len(users)+len(others), "orphaned ports deleted")
	for _, other := range others {
		if got, err := w.Get(t.Context(), other.ID); err != nil || got.Device != other.Device || got.Owner != other.Owner {
			t.Errorf("port of another cluster = %+v, %v, want it unchanged", got, err)
		}
	}
	for _, p := range []vpcport.Port{made, named, stripped} {
		if _, err := w.Get(t.Context(), p.ID); vpcport.ClassOf(err) != vpcport.PortGone {
			t.Errorf("get port %s, created by Berth: %v, want it deleted", p.ID, err)
		}
	}
	taken := stripped // since it was listed
	taken.Device = "6b1f3c9e-0000-4000-8000-000000000000"
	taken = w.AddPort(taken)
	harness.OK(t, w.c.collector.remove(t.Context(), w.Provider, "uid-8", vpcport.Port{ID: taken.ID, Owner: taken.Owner, Name: taken.Name, MAC: taken.MAC}))
	if _, err := w.Get(t.Context(), taken.ID); err != nil {
		t.Errorf("get port that another client has taken: %v, want it to exist", err)
	}
}

// A NIC reconciled during a call is reconciled again when its node must be named: the controller's queue drops the later of two times.
func TestReconciledDuringACall(t *testing.T) {
	now := time.Unix(1000, 0)
	c := &nicReconciler{o: Options{Clock: clock.NewFake(now)}}
	o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}}
	got, err := c.during(t.Context(), o, nic{call: callState{inFlight: true, asked: now.Add(-slow / 4)}})
	if want := slow * 3 / 4; err != nil || got.RequeueAfter != want {
		t.Errorf("during() = requeue after %v, %v, want %v", got.RequeueAfter, err, want)
	}
	if got, err := c.during(t.Context(), o, nic{call: callState{inFlight: true, asked: now}, replaced: "7"}); err != nil || got.RequeueAfter != 0 {
		t.Errorf("during() with a stale cache = requeue after %v, %v, want none", got.RequeueAfter, err)
	}
}

// Ports of PodNICs that vanish without the operator are released soon, before the next regular listing.
func TestPodNICsVanish(t *testing.T) {
	w := start(t, Options{Listing: time.Hour, Orphans: time.Hour, OrphanAge: time.Hour})
	strip := func(name string) {
		t.Helper()
		o := controllers.Get[v1alpha1.PodNIC](t, client.ObjectKey{Namespace: "default", Name: name})
		harness.OK(t, client.IgnoreNotFound(w.client().Delete(t.Context(), o.DeepCopy(), client.Preconditions{UID: &o.UID})))
		err := w.client().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":null}}`, o.UID)))
		if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) { // it has been recreated already
			harness.OK(t, client.IgnoreNotFound(err))
		}
	}
	given := w.AddPort(vpcport.Port{NetworkID: "n-blue", Name: "mine", Tags: []string{vpcport.NamespaceTag(cluster, "default")}, Addresses: []vpcport.FixedIP{{SubnetID: "s-web", IP: web.Gateway.Next()}}})
	w.podnic("given", v1alpha1.PodNICSpec{PortID: given.ID})
	w.podnic("stays", v1alpha1.PodNICSpec{})
	w.podnic("goes", v1alpha1.PodNICSpec{})
	for _, name := range []string{"given", "stays", "goes"} {
		w.awaitObject(name, "has a port", controllers.If(func(o *v1alpha1.PodNIC) bool { return o.Status.PortID != "" }))
	}
	w.awaitPorts(3, "all PodNICs have ports")
	// As if the cache had lost the PodNIC.
	stays := w.awaitObject("stays", "is known", in(v1alpha1.PhaseCreated))
	w.c.states.forget(client.ObjectKeyFromObject(stays))
	port, err := w.Get(t.Context(), stays.Status.PortID)
	harness.OK(t, err)
	harness.OK(t, w.c.collector.orphans(t.Context(), Opened{Provider: w.Provider}, map[types.UID][]vpcport.Port{stays.UID: {port}}, map[types.UID]time.Time{stays.UID: {}}, sightings{}, false))
	strip("goes")
	w.awaitPorts(2, "port of the vanished PodNIC deleted")
	strip("given")
	harness.Eventually(t, limit, "user's port returned", func() error {
		if got, err := w.Get(t.Context(), given.ID); err != nil || got.Device != "" || got.Owner != "" {
			return fmt.Errorf("port = %+v, error %w", got, err)
		}
		return nil
	})
	o := w.bound("web", "", "node-a")
	strip(o.Name)
	w.awaitNIC("web", "eth0", "is recreated for its pod", another(o, boundAt("node-a")))
	w.awaitPorts(3, "previous port deleted")
	controllers.Merge(t, stays, `{"metadata":{"annotations":{"a":"b"}}}`)
	harness.Eventually(t, limit, "vanished PodNICs forgotten", func() error {
		w.c.states.vanished.wake.Set()
		w.c.states.vanished.mu.Lock()
		defer w.c.states.vanished.mu.Unlock()
		if n := len(w.c.states.vanished.all); n > 0 {
			return fmt.Errorf("%d vanished PodNICs are still tracked", n)
		}
		return nil
	})
	if _, err := w.Get(t.Context(), stays.Status.PortID); err != nil || w.Front.Count("Delete") != 2 {
		t.Errorf("%d ports were deleted, want 2; port of the existing PodNIC: %v", w.Front.Count("Delete"), err)
	}
}

func TestLeaves(t *testing.T) {
	const uid = "u"
	port, marked := &vpcport.Port{ID: "p"}, &vpcport.Port{ID: "p", Device: vpcport.Device(cluster, uid), Owner: vpcport.Owner}
	other := &vpcport.Port{ID: "p", Device: vpcport.Device(cluster, "v"), Owner: vpcport.Owner}
	for name, tt := range map[string]struct {
		n    nic
		want bool
	}{
		"never started":              {nic{observed: nicplan.Restored(false, "")}, false},
		"not looked for yet":         {nic{observed: nicplan.Restored(true, "")}, true},
		"recorded":                   {nic{observed: nicplan.Restored(false, "p")}, true},
		"seen":                       {nic{observed: nicplan.Observed{Looked: true, Port: port}}, true},
		"user's port, marked":        {nic{given: true, observed: nicplan.Observed{Looked: true, Port: marked}}, true},
		"user's port, returned":      {nic{given: true, observed: nicplan.Observed{Kept: true, Looked: true, Recorded: "p", Port: port}}, false},
		"user's port, never taken":   {nic{given: true, observed: nicplan.Observed{Kept: true, Looked: true, Port: port}}, false},
		"user's port of another NIC": {nic{given: true, observed: nicplan.Observed{Kept: true, Looked: true, Port: other}}, false},
		"user's port, recorded":      {nic{given: true, observed: nicplan.Restored(true, "p")}, true},
		"additional port":            {nic{observed: nicplan.Observed{Kept: true, Looked: true, Extra: []string{"p"}}}, true},
		"call in flight":             {nic{call: callState{inFlight: true}, observed: nicplan.Observed{Kept: true, Looked: true}}, true},
		"released":                   {nic{observed: nicplan.Observed{Kept: true, Looked: true, Recorded: "p"}}, false},
	} {
		if got := tt.n.leaves(uid); got != tt.want {
			t.Errorf("%s: leaves() = %v", name, got)
		}
	}
}

func TestDueOrphans(t *testing.T) {
	now := time.Unix(10_000, 0)
	orphans, seen := map[types.UID][]vpcport.Port{}, sightings{}
	for id, since := range map[string]time.Duration{"new": 0, "old": time.Hour, "vanished": 0, "cools": 0} {
		orphans[types.UID(id)], seen[id] = []vpcport.Port{{ID: id}}, now.Add(-since)
	}
	gone := map[types.UID]time.Time{"vanished": now.Add(-time.Minute), "cools": now.Add(-time.Second), "no port": now.Add(-time.Hour)}
	for name, tt := range map[string]struct {
		collect bool
		cooling time.Duration
		want    []types.UID
	}{
		"vanished, without cooling":  {false, 0, []types.UID{"cools", "vanished"}},
		"vanished, cooled down":      {false, time.Minute, []types.UID{"vanished"}},
		"vanished and seen for long": {true, time.Minute, []types.UID{"old", "vanished"}},
	} {
		got := dueOrphans(orphans, gone, seen, tt.collect, now, tt.cooling, 10*time.Minute)
		if due := slices.Sorted(maps.Keys(got)); !slices.Equal(due, tt.want) {
			t.Errorf("%s: dueOrphans() = %q, want %q", name, due, tt.want)
		}
	}
}

// unlisted is a cache that fails once, and networks whose VPC has a provider that does not answer.
type unlisted struct {
	client.Client
	asked    int
	provider away
}

func (u *unlisted) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if u.asked++; u.asked == 1 {
		return errors.New("the cache is not filled")
	}
	list.(*v1alpha1.VPCList).Items = []v1alpha1.VPC{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	return nil
}

func (u *unlisted) Of(string) (Opened, error) { return Opened{Provider: &u.provider}, nil }
func (u *unlisted) Changed(func(string))      {}

type away struct {
	vpcport.Provider
	listings int
}

func (a *away) Ports(context.Context, vpcport.Filter) ([]vpcport.Port, error) {
	a.listings++
	return nil, errors.New("away")
}

// Ports of vanished PodNICs are looked for until a listing shows them, not only with the next regular listing.
func TestVanishedBetweenListings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, b := &unlisted{}, newNICStates(clock.Real{}, time.Minute, nil)
		c := &collector{
			o:   Options{Clock: clock.Real{}, Listing: time.Hour, Networks: u, Metrics: NewMetrics(), Logger: slog.New(slog.DiscardHandler)},
			api: &kubeAPI{client: u}, states: b,
		}
		b.vanished.add("u", "a", false)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.run(ctx) }()
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		synctest.Wait()
		if len(b.vanished.all) != 1 || u.asked < 3 || u.provider.listings < 2 || u.provider.listings > 5 {
			t.Errorf("VPCs listed %d times and ports %d times; tracked PodNICs %v", u.asked, u.provider.listings, b.vanished.all)
		}
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// If a PodNIC vanishes during a call, its port is looked for once the call has ended, for as long as it may take to appear.
func TestPodNICVanishesDuringACall(t *testing.T) {
	clk := clock.NewFake(time.Unix(10_000, 0))
	b := newNICStates(clk, time.Minute, nil)
	o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "u"}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
	b.with(o, true, func(n *nic) { n.call.inFlight, n.observed.Looked = true, true })
	woken := func() bool {
		select {
		case <-b.vanished.wake:
			return true
		default:
			return false
		}
	}
	b.forget(types.NamespacedName{Namespace: "default", Name: "db"})
	if !woken() || !slices.Equal(b.vanished.vpcs([]string{"a", "b"}), []string{"a"}) {
		t.Fatalf("vanished PodNIC is not looked for: %+v", b.vanished.all)
	}
	clk.Advance(10 * time.Minute)
	if b.vanished.in("a", nil, clk.Now()); len(b.vanished.all) != 1 {
		t.Error("vanished PodNIC was dropped while its call was in flight")
	}
	b.vanished.callEnded("u")
	b.vanished.callEnded("another")
	listed := map[types.UID][]vpcport.Port{"u": {{ID: "p"}}}
	if got := b.vanished.in("a", listed, clk.Now()); !woken() || got["u"] != clk.Now() || len(b.vanished.in("b", listed, clk.Now())) > 0 {
		t.Errorf("port created by the call is not looked for: %v", got)
	}
	clk.Advance(59 * time.Second)
	if b.vanished.in("a", nil, clk.Now()); len(b.vanished.all) != 1 {
		t.Error("vanished PodNIC was dropped although a port may still appear")
	}
	clk.Advance(time.Second)
	if b.vanished.in("a", nil, clk.Now()); len(b.vanished.all) != 0 {
		t.Error("vanished PodNIC was not dropped after the settle time")
	}

	b.with(o, true, func(*nic) {})
	b.forget(types.NamespacedName{Namespace: "default", Name: "db"})
	b.with(o, true, func(*nic) {}) // etcd was restored again
	harness.OK(t, controllers.Same("vanished PodNICs", len(b.vanished.all), 0))
}

// Each problem of a pod is reported once. A recreated pod with the same name is a different pod.
func TestEventsAreRecordedOnce(t *testing.T) {
	said, web := newPodEvents(nil), types.NamespacedName{Namespace: "default", Name: "web"}
	for i, tt := range []struct {
		uid       types.UID
		nic, text string
		news      bool
	}{
		{"1", "eth0", "", false}, {"1", "eth0", "full", true}, {"1", "eth0", "full", false}, {"1", "eth1", "full", true},
		{"1", "eth0", "", true}, {"1", "eth0", "full", true}, {"2", "eth0", "full", true}, {"2", "eth1", "", false},
	} {
		if got := said.isNews(web, tt.uid, tt.nic, tt.text); got != tt.news {
			t.Errorf("step %d: isNews() = %v with %+v", i, got, tt)
		}
	}
}

// Messages are truncated between characters, so that the API server stores them unchanged.
func TestShortened(t *testing.T) {
	for text, want := range map[string]string{"": "", "full": "full", "voll für heute": "voll f", "\xffull": "ull"} {
		if got := vpcport.Cut(text, 7); got != want {
			t.Errorf("Cut(%q) = %q, want %q", text, got, want)
		}
	}
	st := v1alpha1.PodNICStatus{}
	setCondition(&st, metav1.Condition{Type: v1alpha1.ConditionPortReady, Message: "x" + strings.Repeat("ü", maxMessage)}, metav1.Now())
	if m := st.Conditions[0].Message; !utf8.ValidString(m) || len(m) != maxMessage-1 {
		t.Errorf("message has %d bytes and ends in %q", len(m), m[len(m)-4:])
	}
}

// No state is kept of pods that are gone or have ended, including pods that got no NIC.
func TestNothingIsKeptOfPods(t *testing.T) {
	w := start(t, Options{})
	for _, name := range []string{"gone", "ended"} {
		w.pod(name, `[{subnett: a}]`)
		w.schedule(name, "node-a")
		w.awaitEvent(name, "NICsRefused", "unknown")
	}
	w.pod("served", `[{subnet: web, securityGroup: g-none}]`)
	w.awaitNIC("served", "eth0", "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "NotFound"))
	w.deletePod("gone")
	w.deletePod("served")
	w.finish("ended", corev1.PodFailed)
	harness.Eventually(t, limit, "all pods forgotten", poll.True(func() bool {
		w.c.nics.events.mu.Lock()
		defer w.c.nics.events.mu.Unlock()
		return len(w.c.nics.events.last) == 0
	}))
}

func TestPolicyProblems(t *testing.T) {
	at := time.Unix(1000, 0)
	const missed, overlap = "NICPolicyMissed", "NICPolicyOverlap"
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		host        bool
		made        time.Duration // creation time, relative to the oldest policy
		none        bool          // whether there is no policy
		want, says  string
	}{
		{name: "no policies", none: true},
		{name: "selected", annotations: map[string]string{v1alpha1.AnnotationNICPolicy: "NICPolicy/a", v1alpha1.AnnotationVPC: "v", v1alpha1.AnnotationNICs: "[{}]"}},
		{name: "no policy selects it", annotations: map[string]string{v1alpha1.AnnotationNICPolicy: ""}},
		{name: "older than the policy", made: -time.Second},
		{name: "missed", made: time.Second, want: missed, says: "recreate the pod"},
		{name: "missed in the same second", want: missed},
		{name: "own VPC annotation", annotations: map[string]string{v1alpha1.AnnotationVPC: ""}},
		{name: "own NICs annotation", annotations: map[string]string{v1alpha1.AnnotationNICs: "[{}]"}},
		{name: "static pod", annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}},
		{name: "host network", host: true},
		{
			name: "overlapping policies", annotations: map[string]string{v1alpha1.AnnotationNICPolicy: "NICPolicy/a", v1alpha1.AnnotationNICPolicyOverlap: "NICPolicy/b,NICPolicy/c"},
			want: overlap, says: "the oldest counts, NICPolicy/a; not counted: NICPolicy/b, NICPolicy/c",
		},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tt.annotations, CreationTimestamp: metav1.NewTime(at.Add(tt.made))}}
		p.Spec.HostNetwork = tt.host
		reason, text := policyTrouble(p, at.Add(300*time.Millisecond), !tt.none)
		if reason != tt.want || !strings.Contains(text, tt.says) {
			t.Errorf("%s: policyTrouble() = %q, %q, want %q and text containing %q", tt.name, reason, text, tt.want, tt.says)
		}
	}
}
