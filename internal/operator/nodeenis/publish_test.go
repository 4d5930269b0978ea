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
	o := get(t, "node-1") // stored when Publish returns
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
		t.Errorf("Totals() = %+v, want %+v", got, want)
	}
	// Only the daemon's report is new to the fleet, and nobody else wrote.
	if k, d, s := fl.called("Kick"), fl.called("Invalidate"), fl.called("Set"); k != 1 || d != 0 || s != 1 {
		t.Errorf("%d calls of Kick, %d of Invalidate and %d of Set, want 1, 0 and 1", k, d, s)
	}
	// Published content is not written again.
	harness.Eventually(t, controllers.Limit, "no write without a change", func() error { // apart from delayed status writes
		o := get(t, "node-1")
		publish(t, n, inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.1.16/28"}))
		if now := get(t, "node-1"); now.ResourceVersion != o.ResourceVersion {
			return fmt.Errorf("resource version changed from %s to %s", o.ResourceVersion, now.ResourceVersion)
		}
		return nil
	})
}

// The daemon never sees an available address whose ENI is not in the status.
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
				t.Errorf("version %d of the object has address %s of %s without that ENI", states, a, at.Resource)
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
		t.Errorf("watch showed %d versions of the object, want at least 7", states)
	}
}

// With a second writer of the object that writes all the time, inventories still get published.
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
		await(t, "concurrent writes", func() bool { return writes.Load() > int32(i) })
		harness.Eventually(t, controllers.Limit, "published", func() error { return n.Publish(t.Context(), inventory(list)) })
		harness.OK(t, available(list...)(get(t, "node-1")))
	}
	cancel()
	<-ended
	harness.OK(t, controllers.Same("calls of Invalidate although nobody else wrote spec.ipam", fl.called("Invalidate"), 0))
}

// While the API server is unavailable, Publish fails immediately after the first attempt. When the API
// server is back, the newest inventory is written without another call.
func TestAPIServerAway(t *testing.T) {
	fl, n := setUp(t, Options{})
	publish(t, n, inventory([]string{"10.0.0.1"}))
	back := harness.WithoutAPIServer(t)
	for i := range 20 {
		if err := n.Publish(t.Context(), inventory([]string{"10.0.0.1", fmt.Sprintf("10.0.1.%d", i)})); err == nil {
			t.Fatal("Publish() succeeded without an API server")
		}
	}
	n.Reconciled(eni.Status{Confirmed: true})
	back()
	until(t, "node-1", "newest inventory published", available("10.0.0.1", "10.0.1.19"))
	harness.OK(t, controllers.Same("calls of Invalidate because of own writes", fl.called("Invalidate"), 0))
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.1")})
	awaitUsage(t, n, func(u eni.Usage) bool { return u.ENIs["eni-1"].Used == 1 }) // the watch works again
}

// Manual edits of the published fields are corrected as soon as EC2 has been listed.
func TestManualEditsAreCorrected(t *testing.T) {
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
			n.Reconciled(eni.Status{Confirmed: true}) // a pass before EC2 was listed
			if now := get(t, "node-1"); !sameIPAM(now.Spec.IPAM, o.Spec.IPAM) {
				t.Error("spec.ipam was written before EC2 was listed")
			}
			publish(t, n, right)
			n.Reconciled(eni.Status{Confirmed: true})
			until(t, "node-1", "corrected", available("10.0.0.1", "10.0.0.2", "10.0.0.3"))
			n.Reconciled(eni.Status{Confirmed: true})
			until(t, "node-1", "no addresses being released", releasing())
		})
	}
}

// An address that another operator took away is published again only if EC2 still lists it after the
// settle time.
func TestTakenAwayAddressStaysAway(t *testing.T) {
	const settle = 5 * time.Second
	now := clock.NewFake(time.Now()) // so that a stall does not make the listing old
	fl, n := setUp(t, Options{Settle: settle, Clock: now})
	all := inventory([]string{"10.0.0.1", "10.0.0.2"})
	publish(t, n, all)
	_, other := play(t, Options{})
	publish(t, other, inventory([]string{"10.0.0.1"}))
	await(t, "doubt", func() bool { return fl.called("Invalidate") > 0 })
	publish(t, n, all) // from a stale listing
	harness.OK(t, available("10.0.0.1")(get(t, "node-1")))
	harness.OK(t, controllers.Same("calls of Invalidate before the settle time is over", fl.called("Invalidate"), 1))
	now.Advance(settle)
	fl.awaitCalls(t, "Invalidate", 2)
	publish(t, n, all)
	harness.OK(t, available("10.0.0.1", "10.0.0.2")(get(t, "node-1")))
}

// A new operator seeds the fleet with the published inventory.
func TestNewOperatorSeedsTheFleet(t *testing.T) {
	first, n := setUp(t, Options{})
	inv, began := inventory([]string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.32/28"}), time.Now()
	publish(t, n, inv)
	first.end()
	second, _ := play(t, Options{})
	got := second.seed()
	if got.InstanceID != instance || len(got.ENIs) != 3 || got.Limits != (cloud.Limits{MaxENIs: 3, IPv4PerENI: 10, Prefixes: true}) {
		t.Fatalf("seed = %+v, want 3 ENIs with the limits", got)
	}
	for i := range inv.ENIs {
		if !got.ENIs[i].Equal(inv.ENIs[i]) {
			t.Errorf("ENI in the seed = %+v, want %+v", got.ENIs[i], inv.ENIs[i])
		}
	}
	// Stored with a resolution of one second.
	if got.At.Before(began.Add(-time.Second)) || got.At.After(time.Now()) {
		t.Errorf("seed.At = %v, want the time of the write", got.At)
	}
}

// The trunk's state is published in the object, and stays there until the next operator knows it.
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
	until(t, "node-1", "status.eni.trunk with the reason", says(&v1alpha1.TrunkENI{Reason: "NoRoom", Message: "all places are taken"}))
	there := &eni.Trunk{ID: "eni-0c", MAC: mac.Addr{2, 0, 0, 0, 0, 12}, DeviceIndex: 3}
	report(n, there)
	want := &v1alpha1.TrunkENI{ID: "eni-0c", MAC: "02:00:00:00:00:0c", DeviceIndex: 3}
	until(t, "node-1", "status.eni.trunk with the ENI", says(want))
	if _, ok := get(t, "node-1").Status.ENI.ENIs["eni-0c"]; ok {
		t.Error("trunk is listed in status.eni.enis, whose addresses pods may get")
	}

	s.end() // another operator takes over
	_, n = play(t, Options{})
	publish(t, n, inventory([]string{"10.0.0.1"}, []string{"10.0.0.2"})) // writes status.eni
	if err := says(want)(get(t, "node-1")); err != nil {
		t.Errorf("trunk before the new operator knows it: %v", err)
	}
	report(n, nil)
	until(t, "node-1", "no status.eni.trunk", says(nil))
}

// Foreign writes to the operator's fields are reported on the Node, by one Event however often they
// happen. The operator's own writes are not reported.
func TestForeignWritesAreReported(t *testing.T) {
	fl, n := setUp(t, Options{})
	create(t, "node-2", nil)
	other := fl.node(t, "node-2")
	harness.Eventually(t, controllers.Limit, "Node in the cache", func() error { // an earlier Event would be recorded for another Node
		return fl.client.Get(t.Context(), client.ObjectKey{Name: "node-1"}, &corev1.Node{})
	})
	right := inventory([]string{"10.0.0.1", "10.0.0.2"})
	for i := range 3 {
		publish(t, n, right)
		publish(t, other, inventory([]string{fmt.Sprintf("10.0.1.%d", i)}))
		patch(t, fmt.Sprintf(`{"spec":{"ipam":{"available":{"10.0.0.%d":{"resource":"eni-1"}}}}}`, 10+i))
		fl.awaitCalls(t, "Invalidate", i+1)
	}
	harness.Eventually(t, controllers.Limit, "one Event with a count", func() error {
		list := &eventsv1.EventList{}
		harness.OK(t, harness.KubeClient(t).List(t.Context(), list))
		for _, e := range list.Items {
			if e.Reason == "NetworkOverwritten" && (e.Series == nil || !strings.Contains(e.Note, "spec.ipam")) {
				return fmt.Errorf("Event %q has series %v", e.Note, e.Series)
			}
		}
		return sameList("events", eventsOf(t, "node-1"), []string{"Warning NetworkOverwritten"})
	})
	harness.OK(t, sameList("events", eventsOf(t, "node-2"), nil))
}

// late holds back a write of spec.ipam, reports a broken connection to the sender, and delivers the write
// right before the next one.
type late struct {
	mu   sync.Mutex // guards the fields below
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

// A write whose reply was lost, and that reaches the API server late, is recognized as the operator's own.
func TestLateWriteIsRecognized(t *testing.T) {
	l := &late{}
	fl, n := setUp(t, Options{}, harness.Through(l.do))
	publish(t, n, inventory([]string{"10.0.0.1"}))
	l.mu.Lock()
	l.arm = true
	l.mu.Unlock()
	// This fails, unless the broken write was the controller's, which had already started to publish the same.
	_ = n.Publish(t.Context(), inventory([]string{"10.0.0.1", "10.0.0.2"}))
	harness.Eventually(t, controllers.Limit, "published", func() error {
		return n.Publish(t.Context(), inventory([]string{"10.0.0.1", "10.0.0.3"}))
	})
	harness.OK(t, available("10.0.0.1", "10.0.0.3")(get(t, "node-1")))
	l.mu.Lock()
	if l.arm || l.held != nil {
		t.Errorf("write still to be broken = %t, still to be delivered = %t, want neither", l.arm, l.held != nil)
	}
	l.mu.Unlock()
	harness.OK(t, controllers.Same("calls of Invalidate because of own writes", fl.called("Invalidate"), 0))
	harness.OK(t, sameList("events", eventsOf(t, "node-1"), nil))
}

// A stale operator does not republish an address that another one took away.
func TestStaleWriter(t *testing.T) {
	older, stale := setUp(t, Options{Settle: time.Hour}) // longer than the test
	all := inventory([]string{"10.0.0.1", "10.0.0.2"})
	publish(t, stale, all)
	older.end() // it gets no more events but still writes

	_, fresh := play(t, Options{Settle: time.Second})
	publish(t, fresh, inventory([]string{"10.0.0.1"}))
	for range 3 {
		harness.Eventually(t, controllers.Limit, "stale write attempted", func() error {
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
	harness.OK(t, controllers.Same("calls of Invalidate of the old fleet", older.called("Invalidate"), 1))
}

// dropped removes one available address from an object.
func dropped(o *v1alpha1.NodeNetwork, address string) *v1alpha1.NodeNetwork {
	delete(o.Spec.IPAM.Available, address)
	return o
}
