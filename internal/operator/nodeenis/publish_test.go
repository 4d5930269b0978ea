package nodeenis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestPublish(t *testing.T) {
	fl, n := setUp(t, Options{})
	publish(t, n, inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.1.16/28"}))
	o := get(t, "node-1") // durable on return
	harness.OK(t, available("10.0.0.1", "10.0.0.2", "10.0.1.16/28")(o))
	harness.OK(t, sameList("ENIs", keys(o.Status.ENI.ENIs), []string{"eni-0", "eni-1"}))
	n.Reconciled(eni.Status{Confirmed: true, Available: 18, Needed: 3})
	until(t, "node-1", "counts", controllers.If(func(o *v1alpha1.NodeNetwork) bool {
		e := o.Status.ENI
		return e.Available == 18 && e.Needed == 3 && e.Count == 1 && e.Limits != nil && e.Limits.ENIs == 3
	}))
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.1", "10.0.1.17"), Waiting: 5})
	awaitUsage(t, n, func(u eni.Usage) bool {
		return u.Waiting == 5 && u.ENIs["eni-1"] == eni.ENIUsage{Used: 2, Assignable: 16, Free: cloud.Amount{Addresses: 1}} && fl.called("Kick") > 0
	})
	if got, want := fl.Totals(), (Totals{Used: 2, Available: 18, Needed: 3, ENIs: 1, Nodes: 1, InDeficit: 1}); got != want {
		t.Errorf("totals: %+v, want %+v", got, want)
	}
	// Only the daemon's report was news to the fleet, and nobody else wrote.
	if k, d, s := fl.called("Kick"), fl.called("Invalidate"), fl.called("Set"); k != 1 || d != 0 || s != 1 {
		t.Errorf("%d kicks, %d invalidations, %d settings; want 1, 0, 1", k, d, s)
	}
	// What is published already is not written again.
	harness.Eventually(t, controllers.Limit, "not written again without a change", func() error { // but for what waited
		o := get(t, "node-1")
		publish(t, n, inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.1.16/28"}))
		if now := get(t, "node-1"); now.ResourceVersion != o.ResourceVersion {
			return fmt.Errorf("%s, then %s", o.ResourceVersion, now.ResourceVersion)
		}
		return nil
	})
}

// The daemon never sees an available address whose ENI it does not know.
func TestOrderOfWrites(t *testing.T) {
	_, n := setUp(t, Options{})
	watcher, err := client.NewWithWatch(harness.ControlPlane.Config(), client.Options{Scheme: harness.KubeClient(t).Scheme()})
	harness.OK(t, err)
	w, err := watcher.Watch(t.Context(), &v1alpha1.NodeNetworkList{})
	harness.OK(t, err)
	publish(t, n, inventory([]string{"10.0.0.1"}))
	publish(t, n, inventory(nil, []string{"10.0.0.2"}))
	swapped := inventory([]string{"10.0.0.3"})
	swapped.ENIs[1].ID = "eni-9"
	publish(t, n, swapped)
	last, states := get(t, "node-1").ResourceVersion, 0
	for e := range w.ResultChan() {
		o := e.Object.(*v1alpha1.NodeNetwork)
		states++
		for a, at := range o.Spec.IPAM.Available {
			if _, ok := o.Status.ENI.ENIs[at.Resource]; !ok {
				t.Errorf("state %d has %s of %s without that ENI", states, a, at.Resource)
			}
		}
		if o.ResourceVersion == last {
			break
		}
	}
	w.Stop()
	o := get(t, "node-1")
	harness.OK(t, available("10.0.0.3")(o))
	harness.OK(t, sameList("ENIs", keys(o.Status.ENI.ENIs), []string{"eni-0", "eni-9"}))
	if states < 7 {
		t.Errorf("saw %d states only", states)
	}
}

// Two writers of the same object, and a daemon that reports all the time: what
// is published arrives.
func TestConflictStorm(t *testing.T) {
	fl, n := setUp(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var writes atomic.Int32
	c := harness.KubeClient(t)
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; writes.Add(1) {
			body := fmt.Appendf(nil, `{"status":{"ipam":{"waiting":%d}}}`, writes.Load()%100)
			o := controllers.Named[v1alpha1.NodeNetwork]("node-1")
			if err := c.Status().Patch(ctx, o, client.RawPatch("application/merge-patch+json", body)); err != nil && ctx.Err() == nil {
				t.Error(err)
				break
			}
		}
	}()
	list := []string{}
	for i := range 20 {
		list = append(list, fmt.Sprintf("10.0.0.%d", i+1))
		await(t, "a storm", func() bool { return writes.Load() > int32(i) })
		harness.Eventually(t, controllers.Limit, "published", func() error { return n.Publish(t.Context(), inventory(list)) })
		harness.OK(t, available(list...)(get(t, "node-1")))
	}
	cancel()
	<-ended
	harness.OK(t, controllers.Same("invalidations, though nobody wrote what the operator publishes", fl.called("Invalidate"), 0))
}

// While the API server is away Publish fails at once but for the first time,
// and once it is back the newest inventory is written without anybody asking.
func TestAPIServerAway(t *testing.T) {
	fl, n := setUp(t, Options{})
	publish(t, n, inventory([]string{"10.0.0.1"}))
	back := harness.WithoutAPIServer(t)
	for i := range 20 {
		if err := n.Publish(t.Context(), inventory([]string{"10.0.0.1", fmt.Sprintf("10.0.1.%d", i)})); err == nil {
			t.Fatal("published without an API server")
		}
	}
	n.Reconciled(eni.Status{Confirmed: true})
	back()
	until(t, "node-1", "the newest inventory", available("10.0.0.1", "10.0.1.19"))
	harness.OK(t, controllers.Same("invalidations about its own writes", fl.called("Invalidate"), 0))
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.1")})
	awaitUsage(t, n, func(u eni.Usage) bool { return u.ENIs["eni-1"].Used == 1 }) // the watch is back
}

// Whatever a person writes where the operator publishes is put right, as soon
// as the cloud was looked at, and spoils no other node.
func TestHandEdits(t *testing.T) {
	right := inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"})
	for name, edit := range map[string]string{
		"emptied":        `{"spec":{"ipam":{"available":null}}}`,
		"one-gone":       `{"spec":{"ipam":{"available":{"10.0.0.2":null}}}}`,
		"garbage":        `{"spec":{"ipam":{"releasing":["10.9.9.9","10.0.0.0/8","10.0.0.2"]}}}`,
		"unknown-subnet": `{"spec":{"ipam":{"available":{"172.16.0.1":{"resource":"eni-77"}}}}}`,
		"moved":          `{"spec":{"ipam":{"available":{"10.0.0.1":{"resource":"eni-0"}}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			fl, n := setUp(t, Options{})
			publish(t, n, right)
			o := patch(t, edit)
			fl.awaitCalls(t, "Invalidate", 1)
			n.Reconciled(eni.Status{Confirmed: true}) // a pass before the cloud was observed
			if now := get(t, "node-1"); !sameIPAM(now.Spec.IPAM, o.Spec.IPAM) {
				t.Error("written before the cloud was looked at")
			}
			publish(t, n, right)
			n.Reconciled(eni.Status{Confirmed: true})
			until(t, "node-1", "right again", available("10.0.0.1", "10.0.0.2", "10.0.0.3"))
			n.Reconciled(eni.Status{Confirmed: true})
			until(t, "node-1", "nothing on its way back", releasing())
		})
	}
}

// What another took away is published again only when the cloud still lists it
// long after.
func TestTakenAwayStaysAway(t *testing.T) {
	const settle = 5 * time.Second
	now := clock.NewFake(time.Now()) // so that the listing is not an old one because of a stall
	fl, n := setUp(t, Options{Settle: settle, Clock: now})
	all := inventory([]string{"10.0.0.1", "10.0.0.2"})
	publish(t, n, all)
	_, other := play(t, Options{})
	publish(t, other, inventory([]string{"10.0.0.1"}))
	await(t, "doubt", func() bool { return fl.called("Invalidate") > 0 })
	publish(t, n, all) // by a listing that is old
	harness.OK(t, available("10.0.0.1")(get(t, "node-1")))
	harness.OK(t, controllers.Same("invalidations before it is time", fl.called("Invalidate"), 1))
	now.Advance(settle)
	fl.awaitCalls(t, "Invalidate", 2)
	publish(t, n, all)
	harness.OK(t, available("10.0.0.1", "10.0.0.2")(get(t, "node-1")))
}

// A new operator seeds the fleet with what the last one published.
func TestSeed(t *testing.T) {
	first, n := setUp(t, Options{})
	inv, began := inventory([]string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.32/28"}), time.Now()
	publish(t, n, inv)
	first.end()
	second, _ := play(t, Options{})
	got := second.seed()
	if got.InstanceID != instance || len(got.ENIs) != 3 || got.Limits != (cloud.Limits{MaxENIs: 3, IPv4PerENI: 10, Prefixes: true}) {
		t.Fatalf("seed: %+v", got)
	}
	for i := range inv.ENIs {
		if !got.ENIs[i].Equal(inv.ENIs[i]) {
			t.Errorf("seed has %+v, want %+v", got.ENIs[i], inv.ENIs[i])
		}
	}
	// Kept to the second.
	if got.At.Before(began.Add(-time.Second)) || got.At.After(time.Now()) {
		t.Errorf("seed is of %v, want when it was written", got.At)
	}
}

// How it stands with the trunk is in the object, and stays there while the next operator
// does not know it yet.
func TestTrunkStatus(t *testing.T) {
	s, n := setUp(t, Options{})
	publish(t, n, inventory([]string{"10.0.0.1"}))
	says := func(want *v1alpha1.TrunkENI) func(*v1alpha1.NodeNetwork) error {
		return func(o *v1alpha1.NodeNetwork) error {
			if d := cmp.Diff(want, o.Status.ENI.Trunk); d != "" {
				return errors.New(d)
			}
			return nil
		}
	}
	report := func(n *node, t *eni.Trunk) {
		n.Reconciled(eni.Status{Confirmed: true, Trunk: t})
	}
	report(n, &eni.Trunk{Reason: "NoRoom", Message: "all places are taken"})
	until(t, "node-1", "why there is none", says(&v1alpha1.TrunkENI{Reason: "NoRoom", Message: "all places are taken"}))
	there := &eni.Trunk{ID: "eni-0c", MAC: mac.Addr{2, 0, 0, 0, 0, 12}, DeviceIndex: 3}
	report(n, there)
	want := &v1alpha1.TrunkENI{ID: "eni-0c", MAC: "02:00:00:00:00:0c", DeviceIndex: 3}
	until(t, "node-1", "that it is there", says(want))
	if _, ok := get(t, "node-1").Status.ENI.ENIs["eni-0c"]; ok {
		t.Error("it is among the ENIs that pods may have addresses of")
	}

	s.end() // another operator goes on
	_, n = play(t, Options{})
	publish(t, n, inventory([]string{"10.0.0.1"}, []string{"10.0.0.2"})) // which is a write of status.eni
	if err := says(want)(get(t, "node-1")); err != nil {
		t.Errorf("before it knows: %v", err)
	}
	report(n, nil)
	until(t, "node-1", "that there is none", says(nil))
}

// Whoever writes where the operator publishes is reported on the Node, by one
// event however often it happens. The operator's own writes are not.
func TestForeignWritesAreTold(t *testing.T) {
	fl, n := setUp(t, Options{})
	create(t, "node-2", nil)
	other := fl.node(t, "node-2")
	harness.Eventually(t, controllers.Limit, "the Node is seen", func() error { // an event before that is of another Node
		return fl.client.Get(t.Context(), client.ObjectKey{Name: "node-1"}, &corev1.Node{})
	})
	right := inventory([]string{"10.0.0.1", "10.0.0.2"})
	for i := range 3 {
		publish(t, n, right)
		publish(t, other, inventory([]string{fmt.Sprintf("10.0.1.%d", i)}))
		patch(t, fmt.Sprintf(`{"spec":{"ipam":{"available":{"10.0.0.%d":{"resource":"eni-1"}}}}}`, 10+i))
		fl.awaitCalls(t, "Invalidate", i+1)
	}
	harness.Eventually(t, controllers.Limit, "one event, counted", func() error {
		list := &eventsv1.EventList{}
		harness.OK(t, harness.KubeClient(t).List(t.Context(), list))
		for _, e := range list.Items {
			if e.Reason == "NetworkOverwritten" && (e.Series == nil || !strings.Contains(e.Note, "spec.ipam")) {
				return fmt.Errorf("%q, series %v", e.Note, e.Series)
			}
		}
		return sameList("events", eventsOf(t, "node-1"), []string{"Warning NetworkOverwritten"})
	})
	harness.OK(t, sameList("events", eventsOf(t, "node-2"), nil))
}

// late holds a write of spec.ipam back, whose sender hears that the connection
// broke, and delivers it right before the next one.
type late struct {
	mu   sync.Mutex // guards both
	arm  bool
	held *http.Request
}

func (l *late) do(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/nodenetworks/node-1") {
		return next.RoundTrip(r)
	}
	if l.arm {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		l.arm, l.held = false, r.Clone(context.Background())
		l.held.Body = io.NopCloser(bytes.NewReader(body))
		return nil, errors.New("connection lost")
	}
	if l.held != nil {
		resp, err := next.RoundTrip(l.held)
		if err != nil {
			return nil, err
		}
		resp.Body.Close()
		l.held = nil
	}
	return next.RoundTrip(r)
}

// A write whose answer was lost, and that the API server takes after all, is
// nobody else's.
func TestLateWriteIsTheOperatorsOwn(t *testing.T) {
	l := &late{}
	fl, n := setUp(t, Options{}, harness.Through(l.do))
	publish(t, n, inventory([]string{"10.0.0.1"}))
	l.mu.Lock()
	l.arm = true
	l.mu.Unlock()
	// This fails, unless the write that broke was the controller's, by which it
	// had started to publish the same.
	_ = n.Publish(t.Context(), inventory([]string{"10.0.0.1", "10.0.0.2"}))
	harness.Eventually(t, controllers.Limit, "published", func() error {
		return n.Publish(t.Context(), inventory([]string{"10.0.0.1", "10.0.0.3"}))
	})
	harness.OK(t, available("10.0.0.1", "10.0.0.3")(get(t, "node-1")))
	l.mu.Lock()
	if l.arm || l.held != nil {
		t.Errorf("no write broke, or it was not delivered: %t, %t", l.arm, l.held != nil)
	}
	l.mu.Unlock()
	harness.OK(t, controllers.Same("invalidations about its own write", fl.called("Invalidate"), 0))
	harness.OK(t, sameList("events", eventsOf(t, "node-1"), nil))
}

// An operator that is behind does not bring back what another took away.
func TestStaleWriter(t *testing.T) {
	older, stale := setUp(t, Options{Settle: time.Hour}) // the test is over by then
	all := inventory([]string{"10.0.0.1", "10.0.0.2"})
	publish(t, stale, all)
	older.end() // it learns nothing any more, and its writes still go out

	_, fresh := play(t, Options{Settle: time.Second})
	publish(t, fresh, inventory([]string{"10.0.0.1"}))
	for range 3 {
		harness.Eventually(t, controllers.Limit, "published or not", func() error {
			err := stale.Publish(t.Context(), inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}))
			if slow(err) {
				return err
			}
			if !errors.Is(err, errForeign) && err != nil {
				t.Fatal(err)
			}
			return nil
		})
		harness.OK(t, available("10.0.0.1")(dropped(get(t, "node-1"), "10.0.0.3")))
	}
	harness.OK(t, controllers.Same("invalidations of the old fleet", older.called("Invalidate"), 1))
}

// dropped is an object without one available address.
func dropped(o *v1alpha1.NodeNetwork, address string) *v1alpha1.NodeNetwork {
	delete(o.Spec.IPAM.Available, address)
	return o
}
