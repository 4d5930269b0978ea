package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// withSnapshot is a source with a given snapshot.
type withSnapshot struct {
	source.Source
	snap source.Snapshot
}

func (s withSnapshot) Snapshot() source.Snapshot { return s.snap }

// only is a Detail of one source.
type only struct{ block introspect.Block }

func (o only) Describe(doc *introspect.Document) { doc.Blocks = append(doc.Blocks, o.block) }

func (o only) Metrics() []prometheus.Metric {
	return []prometheus.Metric{metric.New("berth_only", "gauge", "help").Value(7)}
}

// A source's own report is in the document, the metrics and the conditions; the daemon need not know
// it.
func TestSourceDescribesItself(t *testing.T) {
	d := newNode(t, "10.0.0.5").assemble()
	now := d.Clock.Now()
	at := func(a string, state source.State, o introspect.Origin) source.AddressInfo {
		return source.AddressInfo{Addr: netip.MustParseAddr(a), Origin: o, State: state, Since: now}
	}
	web, def := introspect.Origin{Pool: "web", Block: "web-0"}, introspect.Origin{Pool: "default", Block: "default-7"}
	block := introspect.Block{Name: "web-0", Pool: "web", Capacity: 4096, Used: 1, Free: 4095}
	d.inspector.node.IPAM, d.IPAM = "pool", "pool"
	d.Source = withSnapshot{d.Source, source.Snapshot{
		Groups: []source.Group{{Name: "web-0", Capacity: 4096}, {Name: "default-7", Capacity: 4}},
		Addresses: []source.AddressInfo{
			at("10.2.0.0", source.Used, def), at("10.2.0.1", source.Cooling, def), at("10.2.0.2", source.Withdrawn, def),
			at("10.3.0.0", source.Used, web), at("10.3.0.9", source.Warm, web), at("10.9.0.2", source.Cooling, introspect.Origin{}),
		},
		Count:      map[source.State]int{source.Used: 3, source.Warm: 4095, source.Cooling: 2, source.Withdrawn: 2},
		Waiting:    1,
		Conditions: []source.Condition{{Type: "BlocksRouted", Reason: "NotRouted", Message: "block web-0: file exists"}},
		Detail:     only{block},
	}}
	d.supply.source, d.attachments.source = d.Source, d.Source
	d.supply.look(false)
	doc := d.inspector.document()
	same := func(what string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	same("totals", doc.Totals, introspect.Totals{Allocated: 3, Available: 4095, Cooling: 2, Withdrawn: 2, Capacity: 4100, Waiting: 1})
	same("ENIs", doc.ENIs, []introspect.ENI{})
	same("pools", doc.Pools, []introspect.Pool{})
	same("blocks", doc.Blocks, []introspect.Block{block})
	same("available", doc.Available, []introspect.Available{{Address: netip.MustParseAddr("10.3.0.9"), Origin: web}})
	left := d.Source.CoolingPeriod()
	cooling := func(a string, o introspect.Origin) introspect.Cooling {
		return introspect.Cooling{Address: netip.MustParseAddr(a), Origin: o,
			Since: now.UTC(), Until: now.Add(left).UTC(), RemainingSeconds: left.Round(time.Millisecond).Seconds()}
	}
	same("cooling", doc.Cooling, []introspect.Cooling{cooling("10.2.0.1", def), cooling("10.9.0.2", introspect.Origin{})})
	d.conditions.want(t, "BlocksRouted", false, "NotRouted: block web-0: file exists")
	families, err := d.Metrics.Registry.Gather()
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "berth_only" })
	if err != nil || i < 0 || families[i].Metric[0].Gauge.GetValue() != 7 {
		t.Errorf("the source's own metric is not there: %v", err)
	}
}

// askPod requests a pod's document as berthctl does.
func askPod(t *testing.T, f *Front, query string) introspect.Pod {
	t.Helper()
	code, body := get(f.introspectionHandler(), "localhost:6666", introspect.PodPath+"?"+query)
	var view introspect.Pod
	if err := json.Unmarshal([]byte(body), &view); err != nil || code != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", query, code, err, body)
	}
	return view
}

// record writes the record of a ready attachment.
func (r *running) record(t *testing.T, container string, n *node) attachment.Record {
	t.Helper()
	r.attached(t, container, n.newNetns(container))
	rec, _ := r.Store.Get(keyFor(container))
	rec.Pod = attachment.Pod{Namespace: "shop", Name: "web-0"}
	must(t, r.Store.Put(rec))
	return rec
}

func TestPodView(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	d := n.assemble()
	f := frontOf(d)
	rec := d.record(t, "a", n)
	rec.Lease.IPv6 = netip.MustParseAddr("2001:db8::5")
	must(t, d.Store.Put(rec))
	n.kernel.all.Edit(func(_ map[string]datapath.Pod, routes map[netip.Addr]string) { routes[rec.Lease.IPv6] = rec.HostLink })
	d.attached(t, "other", n.newNetns("other"))
	records := func() []attachment.Record {
		return slices.SortedFunc(slices.Values(d.Store.Records()), func(a, b attachment.Record) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	}
	before := records()
	good := askPod(t, f, "namespace=shop&name=web-0")
	if len(good.Attachments) != 1 || len(good.Waiting) != 0 {
		t.Fatalf("%+v", good)
	}
	a := good.Attachments[0]
	if a.ContainerID != "a" || a.Address != rec.Lease.IPv4 || a.IPv6 != rec.Lease.IPv6 || a.State != "ready" || !a.Checked || a.Fault != "" ||
		a.HostLink != rec.HostLink || !reflect.DeepEqual(a.Rules, []string{"rules of uplink 0 for [10.0.0.5 2001:db8::5]"}) {
		t.Errorf("%+v", a)
	}
	if v := askPod(t, f, "namespace=shop&name=web-1"); v.Attachments == nil || len(v.Attachments)+len(v.Waiting) != 0 {
		t.Errorf("a pod that is not here: %+v", v)
	}
	n.kernel.dropRoute(rec.Lease.IPv4)
	if a := askPod(t, f, "namespace=shop&name=web-0").Attachments[0]; !a.Checked || !strings.Contains(a.Fault, "no route to "+rec.Lease.IPv4.String()) {
		t.Errorf("without its route: %+v", a)
	}
	if !reflect.DeepEqual(before, records()) {
		t.Error("a question changed records")
	}
	rec.State = attachment.Releasing
	must(t, d.Store.Put(rec))
	if a := askPod(t, f, "namespace=shop&name=web-0").Attachments[0]; a.Checked || a.State != "releasing" {
		t.Errorf("half removed: %+v", a)
	}
}

func TestPodViewIsBounded(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	d := n.assemble()
	f := frontOf(d)
	d.record(t, "a", n)
	for query, want := range map[string]string{
		"namespace=shop":                                   "name is empty",
		"name=" + strings.Repeat("x", 254):                 "K8S_POD_NAME",
		"name=web&namespace=" + strings.Repeat("x", 64):    "K8S_POD_NAMESPACE",
		"name=%1b%5b2J&namespace=shop":                     "K8S_POD_NAME",
		"namespace=shop&name=web-0&name=web-1&namespace=x": "",
	} {
		code, body := get(f.introspectionHandler(), "localhost", introspect.PodPath+"?"+query)
		if want != "" && (code != http.StatusBadRequest || !strings.Contains(body, want)) {
			t.Errorf("%s: %d %s, want %s", query, code, body, want)
		}
	}
	if code, _ := get(f.introspectionHandler(), "node.example:6666", introspect.PodPath+"?name=web-0"); code != http.StatusForbidden {
		t.Errorf("asked in another host's name: %d", code)
	}
	for range podViews {
		d.inspector.views <- struct{}{}
	}
	if code, body := get(f.introspectionHandler(), "localhost", introspect.PodPath+"?name=web-0&namespace=shop"); code != http.StatusServiceUnavailable {
		t.Errorf("one question too many: %d %s", code, body)
	}
	for range podViews {
		<-d.inspector.views
	}
	synctest.Test(t, func(t *testing.T) { // a call that holds the container's lock does not hold up the answer
		n := newNode(t, "10.0.0.5")
		d := n.assemble()
		d.record(t, "a", n)
		unlock, err := d.attachments.locks.lock(t.Context(), "a")
		must(t, err)
		defer unlock()
		began := time.Now()
		a := askPod(t, frontOf(d), "namespace=shop&name=web-0").Attachments[0]
		if a.Checked || !strings.Contains(a.Fault, "another call") || time.Since(began) > podViewTimeout {
			t.Errorf("after %v: %+v", time.Since(began), a)
		}
	})
}

func TestPodViewShowsWaitingADDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		d := n.assemble()
		since := d.Clock.Now().UTC()
		req := attachment.Request{Key: keyFor("a"), Pod: attachment.Pod{Namespace: "shop", Name: "web-0"}}
		_, end := d.attachments.acquirer.waits.add(t.Context(), req)
		_, endOther := d.attachments.acquirer.waits.add(t.Context(), attachment.Request{Key: keyFor("b"), Pod: attachment.Pod{Namespace: "shop", Name: "web-1"}})
		defer endOther()
		n.clock.Advance(3 * time.Second)
		v := askPod(t, frontOf(d), "namespace=shop&name=web-0")
		want := []introspect.Waiting{{ContainerID: "a", Interface: "eth0", Since: since}} // and could have an address
		if !reflect.DeepEqual(v.Waiting, want) {
			t.Errorf("waiting %+v, want %+v", v.Waiting, want)
		}
		end()
		if v := askPod(t, frontOf(d), "namespace=shop&name=web-0"); len(v.Waiting) != 0 {
			t.Errorf("still waiting: %+v", v.Waiting)
		}
	})
	synctest.Test(t, func(t *testing.T) { // with why
		n := newNode(t)
		d := n.assemble()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			rec := attachment.Record{Key: keyFor("a"), Netns: attachment.Netns{Path: n.newNetns("a")}, Pod: attachment.Pod{Namespace: "shop", Name: "web-0"}}
			_, _ = d.attachments.add(ctx, rec, attachment.PodOptions{})
		}()
		synctest.Wait()
		v := askPod(t, frontOf(d), "namespace=shop&name=web-0")
		ex := d.source.Why(keyFor("a"))
		if len(v.Waiting) != 1 || ex == nil || v.Waiting[0].Reason != ex.Reason || v.Waiting[0].Message != ex.Message || ex.Message == "" {
			t.Errorf("waiting %+v, want it for %+v", v.Waiting, ex)
		}
		cancel()
		<-ended
	})
}
