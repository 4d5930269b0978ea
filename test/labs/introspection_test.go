package labs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// The daemon's probes.
const (
	liveURL  = "http://127.0.0.1:6666/livez"
	readyURL = "http://127.0.0.1:6666/readyz"
)

// TestIntrospectionAndMetricsAgree compares introspection, berthctl, metrics and probes with each other and with
// pods, and checks who can read them.
func TestIntrospectionAndMetricsAgree(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 2, InstanceType: "t3.small", DaemonArgs: append(slices.Clone(prompt), "--cooling-period=10m"), BerthdEnv: map[string]string{"BERTH_INSTALLED": `{"env":{"BERTH_NODE_NAME":"other"}}`}})
	n, other := l.Nodes()[0], l.Nodes()[1]
	ctx := harness.Deadline(t, 15*time.Minute)
	for i := range 4 {
		_, err := n.AddPod(ctx, fmt.Sprintf("p%d", i), node.PodOptions{Namespace: "shop"})
		harness.OK(t, err)
	}
	gone, err := n.Pod("p3")
	harness.OK(t, err)
	before := metrics(t, n)
	harness.OK(t, n.DelPod(ctx, "p3"))
	doc, err := lab.Document(ctx, n)
	harness.OK(t, err)

	var cooling []netip.Addr
	for _, c := range doc.Cooling {
		cooling = append(cooling, c.Address)
	}
	if doc.Totals.Allocated != 3 || len(doc.Allocated) != 3 || !slices.Equal(cooling, gone.Addrs) {
		t.Errorf("totals = %+v, cooling = %v, want 3 allocated and %v cooling", doc.Totals, doc.Cooling, gone.Addrs)
	}
	for _, a := range doc.Allocated {
		p, err := n.Pod(a.Pod)
		harness.OK(t, err)
		addrs := slices.DeleteFunc([]netip.Addr{a.Address, a.IPv6}, func(a netip.Addr) bool { return !a.IsValid() })
		if !slices.Equal(addrs, p.Addrs) || a.Namespace != "shop" || a.ContainerID != p.ContainerID || a.UID != p.UID ||
			a.Interface != "eth0" || a.Network != "berth" || a.ENI != eniOf(t, l, a.Address).ID || time.Since(a.Since) > 10*time.Minute {
			t.Errorf("allocated = %+v, does not match pod %s with %v in %s", a, p.Name, p.Addrs, p.ContainerID)
		}
	}
	t.Run("metrics", func(t *testing.T) { compareMetrics(t, n, before) })
	if c := condition(t, n, "SettingsAsInstalled", introspect.False); c.Reason != "Drifted" || !strings.Contains(c.Message, "node-name is "+n.Name+", and the chart installed other") {
		t.Errorf("condition = %+v, want a changed node-name", c)
	}
	t.Run("berthctl", func(t *testing.T) { compareTables(t, n, doc) })
	t.Run("loopback only", func(t *testing.T) {
		for from, path := range map[string]string{"other node": other.Netns, "pod": n.Pods()[0].Netns(), "node address": n.Netns} {
			for _, own := range harness.OwnAddresses(t, l, n) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				body, err := ns.Get(ctx, path, "http://"+net.JoinHostPort(own.String(), "6666")+introspect.Path)
				cancel()
				if err == nil {
					t.Errorf("introspection is readable from %s at %s: %.100s", from, own, body)
				}
			}
		}
		if _, err := n.Get(t.Context(), "http://[::1]:6666/ip-manager"); err == nil {
			t.Error("introspection is served on ::1, although only 127.0.0.1 is configured")
		}
	})
	t.Run("probes", func(t *testing.T) {
		for _, url := range []string{liveURL, readyURL, node.ReadyURL} {
			if body, err := n.Get(t.Context(), url); err != nil || strings.TrimSpace(body) != "ok" {
				t.Errorf("%s returned %q, %v, want ok", url, body, err)
			}
		}
		// Metrics are not served on the node's address unless configured.
		if _, err := ns.Get(t.Context(), other.Netns, urlAt(t, l, n, "61678", "/metrics")); err == nil {
			t.Error("metrics are readable from another node")
		}
	})
	t.Run("route_localnet", func(t *testing.T) { localnet(t, l, n) })
	t.Run("crowd", func(t *testing.T) { crowd(t, l, n, other) })
	t.Run("modes", func(t *testing.T) { modes(t, n) })
}

// urlAt returns a URL at the node's own address.
func urlAt(t *testing.T, l *lab.Lab, n *node.Node, port, path string) string {
	t.Helper()
	return "http://" + net.JoinHostPort(harness.PrimaryAddress(t, l, n).String(), port) + path
}

// metrics parses the samples in text format, by name and labels.
func metrics(t *testing.T, n *node.Node) map[string]float64 {
	t.Helper()
	body, err := n.Get(t.Context(), node.MetricsURL)
	harness.OK(t, err)
	out := map[string]float64{}
	for in := bufio.NewScanner(strings.NewReader(body)); in.Scan(); {
		i := strings.LastIndex(in.Text(), " ") // labels may hold spaces
		if i < 0 || strings.HasPrefix(in.Text(), "#") {
			continue
		}
		if out[in.Text()[:i]], err = strconv.ParseFloat(in.Text()[i+1:], 64); err != nil {
			t.Fatalf("metrics: %q: %v", in.Text(), err)
		}
	}
	return out
}

// differences returns errors for the samples that differ.
func differences(m map[string]float64, want map[string]int) (errs []error) {
	for name, want := range want {
		if got, ok := m[name]; !ok || got != float64(want) {
			errs = append(errs, fmt.Errorf("%s = %v (present: %v), want %d", name, got, ok, want))
		}
	}
	return errs
}

func compareMetrics(t *testing.T, n *node.Node, before map[string]float64) {
	var m map[string]float64
	// An ENI may be added or removed between the two requests.
	harness.Eventually(t, patience, "metrics and introspection agree", func() error {
		doc, err := lab.Document(t.Context(), n)
		if err != nil {
			return err
		}
		m = metrics(t, n)
		errs := differences(m, map[string]int{
			`berth_addresses{state="used"}`:              doc.Totals.Allocated,
			`berth_addresses{state="warm"}`:              doc.Totals.Available,
			`berth_addresses{state="cooling"}`:           doc.Totals.Cooling,
			`berth_enis`:                                 len(doc.ENIs),
			`berth_waiting_adds`:                         0,
			`berth_condition{type="DataPathReady"}`:      1,
			`berth_condition{type="AddressesAvailable"}`: 1,
			`berth_condition{type="ForwardingAllowed"}`:  1,
			`berth_condition{type="ARPFiltered"}`:        1,
			`berth_condition{type="PluginInstalled"}`:    1,
		})
		called := []string{`berth_reconciles_total{result="success"}`}
		if harness.Families().Has(ipfamily.IPv4) {
			called = append(called,
				`berth_ec2_calls_total{code="OK",operation="AssignPrivateIpAddresses"}`,
				`berth_ec2_calls_total{code="OK",operation="CreateNetworkInterface"}`,
				`berth_ec2_call_duration_seconds_count{operation="AttachNetworkInterface"}`)
		}
		if harness.Families().Has(ipfamily.IPv6) { // one prefix on the primary ENI
			called = append(called, `berth_ec2_calls_total{code="OK",operation="AssignIpv6Addresses"}`)
		}
		for _, family := range called {
			if m[family] < 1 {
				errs = append(errs, fmt.Errorf("%s = %v, want at least 1", family, m[family]))
			}
		}
		return errors.Join(errs...)
	})
	for _, err := range differences(m, map[string]int{
		`berth_cni_requests_total{reason="",result="success",verb="ADD"}`: 4,
		`berth_cni_requests_total{reason="",result="success",verb="DEL"}`: 1,
		`berth_add_duration_seconds_count`:                                4,
		`berth_del_duration_seconds_count`:                                1,
	}) {
		t.Error(err)
	}
	if before["berth_del_duration_seconds_count"] != 0 {
		t.Errorf("berth_del_duration_seconds_count before the first DEL = %v, want 0", before["berth_del_duration_seconds_count"])
	}
	body, err := n.Get(t.Context(), node.MetricsURL)
	harness.OK(t, err)
	for _, family := range []string{"berth_repairs_total", "berth_reap_pending", "berth_build_info", "go_goroutines", "process_start_time_seconds"} {
		if !strings.Contains(body, family) {
			t.Errorf("metric family %s is missing", family)
		}
	}
}

// compareTables checks that berthctl prints every address and pod of the document.
func compareTables(t *testing.T, n *node.Node, doc introspect.Document) {
	out := berthctl(t, n, "ip-manager")
	for _, a := range doc.Allocated {
		line := lineWith(out, a.Address.String()+" ")
		for _, want := range []string{a.Pod, a.Namespace, a.ENI} {
			if !strings.Contains(line, want) {
				t.Errorf("line of %s = %q, lacks %s", a.Address, line, want)
			}
		}
	}
	for _, c := range doc.Cooling {
		if lineWith(out, c.Address.String()+" ") == "" {
			t.Errorf("no line for the cooling address %s", c.Address)
		}
	}
	if t.Failed() {
		t.Logf("berthctl ip-manager:\n%s", out)
	}
	var again introspect.Document
	if err := json.Unmarshal([]byte(berthctl(t, n, "ip-manager", "--output=json")), &again); err != nil {
		t.Errorf("berthctl ip-manager --output=json: %v", err)
	} else if len(again.Allocated) != len(doc.Allocated) {
		t.Errorf("berthctl's JSON has %d allocated addresses, want %d", len(again.Allocated), len(doc.Allocated))
	}
}

func lineWith(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}

// berthctl runs berthctl on the node.
func berthctl(t *testing.T, n *node.Node, args ...string) string {
	t.Helper()
	var out []byte
	err := ns.Do(n.Netns, func() (err error) {
		out, err = exec.Command(filepath.Join(harness.BinDir, "berthctl"), append(args, "--timeout=1m")...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("berthctl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// modes checks that only root can connect to the daemon and read its records.
func modes(t *testing.T, n *node.Node) {
	files := 0
	harness.OK(t, filepath.WalkDir(n.StateDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasPrefix(d.Name(), "heartbeat") { // a timestamp, readable for a plugin that runs as any user
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) { // replaced meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		files++
		if perm := info.Mode().Perm(); perm != 0o600 {
			t.Errorf("mode of %s = %04o, want 0600", path, perm)
		}
		return nil
	}))
	if info, err := os.Lstat(n.Socket()); err != nil || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("socket = %v (%v), want a socket", info, err)
	}
	if files < 5 { // socket, lock and at least three records
		t.Errorf("only %d files in %s", files, n.StateDir())
	}
}
