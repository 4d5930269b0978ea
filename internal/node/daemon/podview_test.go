package daemon

import (
	"cmp"
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

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// askPod asks about a pod as berthctl does.
func askPod(t *testing.T, f *Front, query string) introspect.Pod {
	t.Helper()
	code, body := get(f.introspectionHandler(), "localhost:6666", introspect.PodPath+"?"+query)
	var view introspect.Pod
	if err := json.Unmarshal([]byte(body), &view); err != nil || code != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", query, code, err, body)
	}
	return view
}

// record puts an attachment of a pod as it is when its ADD has ended.
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
		return slices.SortedFunc(slices.Values(d.Store.Records()), func(a, b attachment.Record) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
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

func TestPodViewTellsOfADDsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		d := n.assemble()
		since := d.Clock.Now().UTC()
		req := source.Request{Key: keyFor("a"), Pod: attachment.Pod{Namespace: "shop", Name: "web-0"}}
		_, end := d.attachments.acquirer.waits.add(t.Context(), req)
		_, endOther := d.attachments.acquirer.waits.add(t.Context(), source.Request{Key: keyFor("b"), Pod: attachment.Pod{Namespace: "shop", Name: "web-1"}})
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
			_, _ = d.attachments.add(ctx, rec, source.Wish{})
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
