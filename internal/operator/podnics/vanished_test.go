package podnics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// The ports of PodNICs that vanish without the operator's consent are given back at once: no listing is due.
func TestPodNICsVanish(t *testing.T) {
	w := start(t, Options{Listing: time.Hour, Orphans: time.Hour, OrphanAge: time.Hour})
	strip := func(name string) {
		t.Helper()
		o := &v1alpha1.PodNIC{}
		harness.OK(t, w.client().Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, o))
		harness.OK(t, client.IgnoreNotFound(w.client().Delete(t.Context(), o.DeepCopy(), client.Preconditions{UID: &o.UID})))
		err := w.client().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":null}}`, o.UID)))
		if !apierrors.IsConflict(err) { // one of its name is there already
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
	w.awaitPorts(3, "all have ports")
	// As if the cache had lost it.
	stays := w.awaitObject("stays", "is known", in(v1alpha1.PhaseCreated))
	w.c.states.forget(client.ObjectKeyFromObject(stays))
	port, err := w.Get(t.Context(), stays.Status.PortID)
	harness.OK(t, err)
	harness.OK(t, w.c.collector.orphans(t.Context(), Opened{Provider: w.Provider}, map[types.UID][]vpcport.Port{stays.UID: {port}}, map[types.UID]time.Time{stays.UID: {}}, sightings{}, false))
	strip("goes")
	w.awaitPorts(2, "that of the PodNIC that vanished goes")
	strip("given")
	harness.Eventually(t, limit, "the user's port is given back", func() error {
		if got, err := w.Get(t.Context(), given.ID); err != nil || got.Device != "" || got.Owner != "" {
			return fmt.Errorf("is %+v, %w", got, err)
		}
		return nil
	})
	w.pod("web", "")
	w.schedule("web", "node-a")
	o := w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	strip(o.Name)
	w.awaitNIC("web", "eth0", "comes again with its pod", func(n *v1alpha1.PodNIC) error {
		if n.UID == o.UID {
			return errors.New("is the one before")
		}
		return boundAt("node-a")(n)
	})
	w.awaitPorts(3, "the port of before goes")
	harness.OK(t, w.client().Patch(t.Context(), stays, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))))
	harness.Eventually(t, limit, "all is forgotten", func() error {
		w.c.states.vanished.wake.Set()
		w.c.states.vanished.mu.Lock()
		defer w.c.states.vanished.mu.Unlock()
		if n := len(w.c.states.vanished.all); n > 0 {
			return fmt.Errorf("%d are remembered", n)
		}
		return nil
	})
	if _, err := w.Get(t.Context(), stays.Status.PortID); err != nil || w.Front.Count("Delete") != 2 {
		t.Errorf("%d ports were deleted; that of the PodNIC that is there: %v", w.Front.Count("Delete"), err)
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
		"never begun":               {nic{observed: nicplan.Restored(false, "")}, false},
		"not looked for yet":        {nic{observed: nicplan.Restored(true, "")}, true},
		"recorded":                  {nic{observed: nicplan.Restored(false, "p")}, true},
		"seen":                      {nic{observed: nicplan.Observed{Looked: true, Port: port}}, true},
		"a user's, marked":          {nic{given: true, observed: nicplan.Observed{Looked: true, Port: marked}}, true},
		"a user's, given back":      {nic{given: true, observed: nicplan.Observed{Kept: true, Looked: true, Recorded: "p", Port: port}}, false},
		"a user's, never taken":     {nic{given: true, observed: nicplan.Observed{Kept: true, Looked: true, Port: port}}, false},
		"a user's, of another NIC":  {nic{given: true, observed: nicplan.Observed{Kept: true, Looked: true, Port: other}}, false},
		"a user's, recorded":        {nic{given: true, observed: nicplan.Restored(true, "p")}, true},
		"one too many":              {nic{observed: nicplan.Observed{Kept: true, Looked: true, Extra: []string{"p"}}}, true},
		"a call is under way":       {nic{call: callState{inFlight: true}, observed: nicplan.Observed{Kept: true, Looked: true}}, true},
		"given back, and forgotten": {nic{observed: nicplan.Observed{Kept: true, Looked: true, Recorded: "p"}}, false},
	} {
		if got := tt.n.leaves(uid); got != tt.want {
			t.Errorf("%s: %v", name, got)
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
		"at once":               {false, 0, []types.UID{"cools", "vanished"}},
		"once it has cooled":    {false, time.Minute, []types.UID{"vanished"}},
		"and those seen for so": {true, time.Minute, []types.UID{"old", "vanished"}},
	} {
		got := dueOrphans(orphans, gone, seen, tt.collect, now, tt.cooling, 10*time.Minute)
		if due := slices.Sorted(maps.Keys(got)); !slices.Equal(due, tt.want) {
			t.Errorf("%s: %q, want %q", name, due, tt.want)
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

// PodNICs that vanished are looked for until a listing shows what they left, not only with the next regular one.
func TestVanishedWhileNothingLists(t *testing.T) {
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
			t.Errorf("asked %d times, listed %d times, looked for %v", u.asked, u.provider.listings, b.vanished.all)
		}
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// What a PodNIC leaves that vanishes during a call is looked for when the call has ended, and no longer than it may show.
func TestVanishedDuringACall(t *testing.T) {
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
		t.Fatalf("nothing is looked for: %+v", b.vanished.all)
	}
	clk.Advance(10 * time.Minute)
	if b.vanished.in("a", nil, clk.Now()); len(b.vanished.all) != 1 {
		t.Error("it is forgotten while the call is under way")
	}
	b.vanished.callEnded("u")
	b.vanished.callEnded("another")
	listed := map[types.UID][]vpcport.Port{"u": {{ID: "p"}}}
	if got := b.vanished.in("a", listed, clk.Now()); !woken() || got["u"] != clk.Now() || len(b.vanished.in("b", listed, clk.Now())) > 0 {
		t.Errorf("what the call made is not looked for: %v", got)
	}
	clk.Advance(59 * time.Second)
	if b.vanished.in("a", nil, clk.Now()); len(b.vanished.all) != 1 {
		t.Error("it is forgotten although a port may show yet")
	}
	clk.Advance(time.Second)
	if b.vanished.in("a", nil, clk.Now()); len(b.vanished.all) != 0 {
		t.Error("it is not forgotten")
	}

	b.with(o, true, func(*nic) {})
	b.forget(types.NamespacedName{Namespace: "default", Name: "db"})
	b.with(o, true, func(*nic) {}) // etcd was restored once more
	if len(b.vanished.all) != 0 {
		t.Error("a PodNIC that is there has vanished")
	}
}
