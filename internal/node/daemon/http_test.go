package daemon

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

// get asks a handler for a path in the name of a host.
func get(h http.Handler, host, path string) (int, string) {
	req := httptest.NewRequest(http.MethodGet, "http://"+host+path, nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	body, _ := io.ReadAll(w.Body)
	return w.Code, string(body)
}

// frontOf is a front that serves nowhere, with a daemon behind it.
func frontOf(d *running) *Front {
	f := &Front{FrontOptions: FrontOptions{Metrics: d.Metrics, Clock: d.Clock, Log: d.Log}, ready: make(chan struct{}), daemon: d.Daemon}
	close(f.ready)
	return f
}

func TestDocument(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	d := n.assemble()
	for _, c := range []string{"a", "b"} {
		d.attached(t, c, n.newNetns(c))
	}
	must(t, d.attachments.del(within(t), keyFor("a")))
	n.clock.Advance(10 * time.Second)
	code, body := get(frontOf(d).introspectionHandler(), "localhost:6666", introspect.Path)
	var doc introspect.Document
	if err := json.Unmarshal([]byte(body), &doc); err != nil || code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", code, err, body)
	}
	if len(doc.Allocated) != 1 || doc.Allocated[0].ContainerID != "b" || doc.Allocated[0].Address.String() != "10.0.0.6" {
		t.Errorf("allocated %+v", doc.Allocated)
	}
	if len(doc.Available) != 1 || doc.Available[0].Address.String() != "10.0.0.7" {
		t.Errorf("available %+v", doc.Available)
	}
	if len(doc.Cooling) != 1 || doc.Cooling[0].RemainingSeconds != 20 {
		t.Errorf("cooling %+v", doc.Cooling)
	}
	if want := (introspect.Totals{Allocated: 1, Available: 1, Cooling: 1}); doc.Totals.Allocated != want.Allocated || doc.Totals.Available != want.Available || doc.Totals.Cooling != want.Cooling {
		t.Errorf("totals %+v", doc.Totals)
	}
	if doc.InstanceID != "i-1" || len(doc.ENIs) != 1 || doc.ENIs[0].Used != 1 {
		t.Errorf("document %s", body)
	}
	if strings.Contains(body, "null") {
		t.Errorf("a list is null: %s", body)
	}
}

func TestIntrospectionRefusesForeignHosts(t *testing.T) {
	h := frontOf(newNode(t).assemble()).introspectionHandler()
	for host, want := range map[string]int{
		"localhost:6666": 200, "127.0.0.1:6666": 200, "[::1]:6666": 200, "127.0.0.1": 200, "localhost": 200,
		"rebound.example:6666": 403, "10.0.0.1:6666": 403, "localhost.example": 403,
	} {
		if code, _ := get(h, host, introspect.Path); code != want {
			t.Errorf("host %s: status %d, want %d", host, code, want)
		}
	}
}

func TestProfilesAreOffByDefault(t *testing.T) {
	f := frontOf(newNode(t).assemble())
	if code, _ := get(f.introspectionHandler(), "localhost", "/debug/pprof/cmdline"); code != http.StatusNotFound {
		t.Errorf("status %d", code)
	}
	f.Pprof = true
	if code, _ := get(f.introspectionHandler(), "localhost", "/debug/pprof/cmdline"); code != http.StatusOK {
		t.Errorf("switched on: status %d", code)
	}
}

func TestMonitoring(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	h := r.front.monitoringHandler()
	mustAdd(t, r, "a", n.newNetns("a"))
	mustDel(t, r, "a")
	_, body := get(h, "10.0.0.1:61678", "/metrics")
	for _, want := range []string{
		`berth_addresses{state="cooling"} 1`, `berth_addresses{state="warm"} 1`, `berth_addresses{state="used"} 0`,
		"berth_enis 1", `berth_cni_requests_total{reason="",result="success",verb="ADD"} 1`,
		"berth_add_duration_seconds_count 1", "berth_del_duration_seconds_count 1",
		"berth_reap_pending ", `berth_condition{type="DataPathReady"} 1`, "berth_build_info{",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if code, body := get(h, "x", path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	r.stop()
	if code, _ := get(h, "x", "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz after the end: %d", code)
	}
}

func TestMetricsReferenceIsComplete(t *testing.T) {
	var b strings.Builder
	must(t, WriteMetricsReference(&b, sourcefake.Reference))
	d := newNode(t, "10.0.0.5").assemble()
	d.Metrics.observeCall("Add", "success", "", time.Millisecond)
	served, err := d.Metrics.Registry.Gather()
	must(t, err)
	for _, f := range served {
		if name := f.GetName(); strings.HasPrefix(name, "berth_") && !strings.Contains(b.String(), "`"+name+"` | "+strings.ToLower(f.GetType().String())) {
			t.Errorf("the reference lacks %s, a %s", name, f.GetType())
		}
	}
}
