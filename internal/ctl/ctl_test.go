package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/ec2/maxpods"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// run executes berthctl and returns its output.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	if asks := args[0] == "ip-manager" || args[0] == "status"; asks && !slices.Contains(args, "--timeout") {
		args = append(slices.Clone(args), "--timeout", "1m") // the default is too short for loaded test machines
	}
	cmd := New()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("output differs from %s (-want +got):\n%s", path, diff)
	}
}

// goldenRun executes berthctl and compares its output with a file.
func goldenRun(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, name, out)
}

// refused executes berthctl with each of the arguments, and checks the error message.
func refused(t *testing.T, wantByArgs map[string]string) {
	t.Helper()
	for args, want := range wantByArgs {
		if _, err := run(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want error containing %q", args, err, want)
		}
	}
}

// document is a node's introspection document in testdata.
func document(t *testing.T, name string) introspect.Document {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "node-"+name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var doc introspect.Document
	if err := yaml.UnmarshalStrict(data, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// serve serves berthd's endpoints: the document and /readyz.
func serve(t *testing.T, doc introspect.Document, notReady string) (address string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+introspect.Path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(doc) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if notReady != "" {
			http.Error(w, notReady, http.StatusServiceUnavailable)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestIPManager(t *testing.T) {
	for _, name := range []string{"busy", "dual-stack", "pool", "ports", "empty"} {
		t.Run(name, func(t *testing.T) {
			goldenRun(t, "ip-manager-"+name+".txt", "ip-manager", "--address", serve(t, document(t, name), ""))
		})
	}
}

func TestIPManagerJSON(t *testing.T) {
	doc := document(t, "busy")
	out, err := run(t, "ip-manager", "-o", "json", "--address", "http://"+serve(t, doc, "")+introspect.Path)
	var got introspect.Document
	if err := errors.Join(err, json.Unmarshal([]byte(out), &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(doc, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
}

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		name, notReady string
		doc            introspect.Document
	}{{"ready", "", document(t, "busy")}, {"pool", "", document(t, "pool")}, {"not-ready", "no address was usable on this node yet", introspect.Document{}}} {
		t.Run(tc.name, func(t *testing.T) {
			at := serve(t, tc.doc, tc.notReady)
			out, err := run(t, "status", "--address", at)
			if (err != nil) != (tc.notReady != "") {
				t.Errorf("error = %v, want an error: %t", err, tc.notReady != "")
			}
			golden(t, "status-"+tc.name+".txt", out)
		})
	}
}

func TestStatusJSON(t *testing.T) {
	at := serve(t, document(t, "busy"), "draining")
	out, err := run(t, "status", "-o", "json", "--address", at)
	if err == nil {
		t.Error("status succeeded for a node that is not ready")
	}
	var got nodeStatus
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Ready || got.Reason != "draining" || len(got.ENIs) != 2 || len(got.Conditions) != 2 {
		t.Errorf("status = %+v, want not ready (draining), 2 ENIs and 2 conditions", got)
	}
}

// refusing returns an address that is reserved but refuses connections.
func refusing(t *testing.T) (address string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

func TestUnreachableDaemon(t *testing.T) {
	gone := refusing(t)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	t.Cleanup(page.Close)
	starting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "berthd is starting: waiting for the metadata service", http.StatusServiceUnavailable)
	}))
	t.Cleanup(starting.Close)
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(func() { close(release); silent.Close() })
	for _, tc := range []struct{ name, url, timeout, want string }{
		{"nothing listening", gone, "1m", "nothing listens"},
		{"another server", page.URL, "1m", "does not serve berthd's"},
		{"starting", starting.URL, "1m", "waiting for the metadata service"},
		{"silent", silent.URL, "300ms", "no answer"},
		{"not an address", "http://[", "1m", "query berthd"},
	} {
		for _, view := range []string{"ip-manager", "status"} {
			t.Run(tc.name+"/"+view, func(t *testing.T) {
				out, err := run(t, view, "--timeout", tc.timeout, "--address", tc.url)
				if err == nil || !strings.Contains(err.Error(), tc.want) || out != "" {
					t.Errorf("output %q, error %v; want no output and error containing %q", out, err, tc.want)
				}
			})
		}
	}
}

// The expected values for AWS's best-practices formula are rows of AWS's eni-max-pods.txt.
func TestMaxPods(t *testing.T) {
	for _, tc := range []struct {
		kind     string
		prefixes bool
		families ipfamily.Set
		first    int
		want     int
	}{
		{"c5.large", false, "ipv4", 0, 29}, {"m5.large", false, "ipv4", 0, 29}, {"t3.small", false, "ipv4", 0, 11}, {"m5.xlarge", false, "ipv4", 0, 58},
		{"m5.24xlarge", false, "ipv4", 0, 737}, {"t3.small", true, "ipv4", 0, 146}, {"m5.large", true, "ipv4", 0, 434},
		{"m5.large", false, "dual", 0, 29}, {"m5.large", true, "dual", 0, 434}, {"m5.large", false, "ipv6", 0, 110},
		{"m5.large", false, "ipv4", 1, 20}, {"m5.large", true, "ipv4", 2, 146}, {"m5.large", false, "ipv6", 1, 110}, // custom networking
		{"m4.large", false, "dual", 1, 11}, {"t2.small", false, "ipv6", 2, 6},
		{"m4.large", false, "dual", 0, 11}, {"t2.small", false, "dual", 0, 8}, {"t2.small", false, "ipv6", 0, 10}, // 2 ENIs in addition to the primary, with 3 and 4 addresses
	} {
		c, err := maxpods.Of(tc.kind, maxpods.Options{Prefixes: tc.prefixes, Families: tc.families, First: tc.first})
		most := 110
		if tc.kind == "m5.24xlarge" {
			most = 250
		}
		if err != nil || !c.Unlimited && c.Allowed != tc.want || c.MaxPods != min(tc.want, most) || c.Unlimited != (tc.want == 110) {
			t.Errorf("%s, prefixes %v, %s: max pods = %d of %d, error %v; want %d of %d", tc.kind, tc.prefixes, tc.families, c.MaxPods, c.Allowed, err, min(tc.want, most), tc.want)
		}
	}
	for first, want := range []int{20, 11, 11} { // from device index 2 only one ENI is left for pods; the trunk is at 1
		if c, err := maxpods.Of("m5.large", maxpods.Options{Families: "ipv4", First: first, Trunk: true}); err != nil || c.MaxPods != want {
			t.Errorf("with a trunk, from device index %d: max pods = %d, error %v; want %d", first, c.MaxPods, err, want)
		}
	}
	refused(t, map[string]string{
		"max-pods --instance-type t3.large --trunk-eni": "t3.large has no known support for branch interfaces",
		"max-pods": "instance-type", "max-pods --instance-type m5.huge": "m5.large", "max-pods --instance-type x": "is unknown",
		"max-pods --instance-type m4.large --prefix-delegation": "Nitro", "max-pods --instance-type m3.medium --ip-families dual": "has no IPv6", "warm --instance-type m3.medium --ip-families ipv6": "has no IPv6",
		"max-pods --instance-type m5.large --ip-families both": `--ip-families: "both": expected ipv4, ipv6 or dual`, "max-pods --instance-type m5.large -o yaml": "expected table, json or eni-max-pods",
		"max-pods --instance-type m5.large --all": "expected one of them", "max-pods --instance-type m5.large --free-addresses -1": "--free-addresses is -1: expected 0 or more",
		"max-pods --instance-type m5.large --max-eni -1":              "--max-eni is -1: expected 0 or more",
		"max-pods --instance-type m5.large --first-interface-index 3": "--first-interface-index is 3: expected 0 to 2, as m5.large has 3 ENIs",
	})
	goldenRun(t, "max-pods.txt", "max-pods", "--instance-type", "m5.24xlarge")
	goldenRun(t, "max-pods-subnet.txt", "max-pods", "--instance-type", "m5.large", "--free-addresses", "15")
	goldenRun(t, "max-pods-all.txt", "max-pods", "--all", "--max-eni", "2", "--trunk-eni", "--prefix-delegation")
	goldenRun(t, "eni-max-pods.txt", "max-pods", "-o", "eni-max-pods")
	goldenRun(t, "max-pods-ipv6.txt", "max-pods", "--instance-type", "m5.large", "--ip-families", "ipv6")
}

// The simulation matches the Amazon VPC CNI.
func TestWarm(t *testing.T) {
	for _, tc := range []struct {
		kind, flags string
		pods        int
		want        string // addresses by ENI
	}{
		{"t3.small", "--warm-eni-target=1", 0, "3"},
		{"t3.small", "--warm-eni-target=1", 5, "3,3,3"},
		{"t3.small", "--warm-eni-target=1", 9, "3,3,3"},
		{"t3.small", "--warm-ip-target=1 --minimum-ip-target=1", 0, "1"},
		{"t3.small", "--warm-ip-target=1 --minimum-ip-target=1", 5, "3,3"},
		{"t3.small", "--warm-ip-target=1 --minimum-ip-target=1", 9, "3,3,3"},
		{"t3.small", "--warm-ip-target=2 --minimum-ip-target=5", 0, "3,2"},
		{"t3.small", "--warm-ip-target=2 --minimum-ip-target=5", 5, "3,3,1"},
		{"t3.small", "--warm-eni-target=3 --max-eni=2", 0, "3,3"},
		{"t3.small", "--warm-eni-target=0", 3, "3,3"},
		{"m5.xlarge", "--warm-ip-target=5 --minimum-ip-target=10", 0, "10"},
		{"m5.xlarge", "--warm-ip-target=5 --minimum-ip-target=10", 7, "12"},
		{"m5.xlarge", "--warm-ip-target=5 --minimum-ip-target=10", 15, "14,6"},
		{"m5.xlarge", "--warm-eni-target=2", 0, "14,14"},
		{"m5.xlarge", "--warm-eni-target=1", 15, "14,14,14"},
		{"t3.small", "--enable-prefix-delegation --warm-prefix-target=1", 16, "32"},
		{"t3.small", "--enable-prefix-delegation --warm-prefix-target=1", 17, "48"},
		{"m5.large", "--pre-allocate=8", 0, "0,8"},
		{"m5.large", "--pre-allocate=8 --ip-families=dual", 3, "0,9,2"},
		{"m5.large", "--warm-ip-target=2 --ip-families=ipv6", 30, "65536"},
		{"t2.small", "--warm-ip-target=2 --ip-families=dual", 4, "0,3,3"}, // addresses of the primary ENI are reserved for the node
	} {
		args := append([]string{"warm", "-o", "json", "--instance-type", tc.kind, "--pods", fmt.Sprint(tc.pods)}, strings.Fields(tc.flags)...)
		out, err := run(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		var n warmNode
		if err := json.Unmarshal([]byte(out), &n); err != nil {
			t.Fatal(err)
		}
		var got []string
		used := 0
		for _, e := range n.ENIs {
			got = append(got, fmt.Sprint(e.Addresses))
			used += e.Used
		}
		if s := strings.Join(got, ","); s != tc.want || used != tc.pods || n.Waiting != 0 {
			t.Errorf("%s %s with %d pods: %s (%d used, %d waiting), want %s", tc.kind, tc.flags, tc.pods, s, used, n.Waiting, tc.want)
		}
	}
}

func TestWarmTables(t *testing.T) {
	goldenRun(t, "warm.txt", "warm", "--instance-type", "t3.small", "--pods", "10", "--warm-ip-target", "2")
	goldenRun(t, "warm-dual.txt", "warm", "--instance-type", "t3.small", "--pods", "4", "--warm-ip-target", "2", "--ip-families", "dual")
	refused(t, map[string]string{
		"warm --instance-type t3.none":                                      "is unknown",
		"warm --instance-type t3.small --pods=-1":                           "--pods is -1",
		"warm --instance-type t3.small --warm-ip-target=x":                  "--warm-ip-target",
		"warm --instance-type t3.small --warm-ip-target=1 --pre-allocate=1": "one dialect",
	})
}

func TestUninstall(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "10-berth.conflist")
	if err := os.WriteFile(path, []byte(`{"plugins":[{"type":"berth"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"removed " + path, "no configuration of Berth at"} {
		out, err := run(t, "uninstall-cni", "--cni-conf-dir", dir)
		if err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("output %q, error %v; want prefix %q", out, err, want)
		}
	}
}

// max-pods reads a subnet's free addresses from EC2, with the user's own configuration.
func TestMaxPodsOfASubnet(t *testing.T) {
	ec2 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("Action") != "DescribeSubnets" || !strings.Contains(r.Header.Get("Authorization"), "/eu-central-1/ec2/") {
			t.Errorf("request %s with %s, want DescribeSubnets in eu-central-1", r.FormValue("Action"), r.Header.Get("Authorization"))
		}
		item := ""
		if r.FormValue("Filter.1.Value.1") == "subnet-0123" {
			item = "<item><subnetId>subnet-0123</subnetId><vpcId>vpc-1</vpcId><availabilityZone>eu-central-1a</availabilityZone><cidrBlock>10.0.1.0/24</cidrBlock><availableIpAddressCount>15</availableIpAddressCount></item>"
		}
		_, _ = fmt.Fprintf(w, "<DescribeSubnetsResponse><requestId>1</requestId><subnetSet>%s</subnetSet></DescribeSubnetsResponse>", item)
	}))
	defer ec2.Close()
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_EC2": ec2.URL, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
	of := []string{"max-pods", "--instance-type=m5.large", "--region=eu-central-1"}
	if out, err := run(t, append(of, "--subnet-id=subnet-0123")...); err != nil || !strings.HasPrefix(out, "m5.large: 16 pods\n") {
		t.Errorf("output %q, error %v; want 16 pods, as with --free-addresses 15", out, err)
	}
	if _, err := run(t, append(of, "--subnet-id=subnet-4567")...); err == nil || !strings.Contains(err.Error(), "--subnet-id subnet-4567: EC2 has no subnet subnet-4567") {
		t.Errorf("unknown subnet: error = %v", err)
	}
	if _, err := run(t, append(of, "--subnet-id=subnet-0123", "--free-addresses=1")...); err == nil || !strings.Contains(err.Error(), "are both set") {
		t.Errorf("both flags: error = %v", err)
	}
}
