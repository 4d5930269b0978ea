package operator

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// The whole, under the roles and policies that are installed: a NodeNetwork
// gets addresses, and the metrics have every documented family.
func TestNodeGetsAddresses(t *testing.T) {
	c := newCluster(t)
	// One Assign a second: the second node's has to wait.
	o := c.start("one", "--ec2-limits=AssignPrivateIpAddresses=1/1")
	o.until(answersWith(o.health, "/readyz", 200))
	o.until(c.leads("one"))
	o.until(answersWith(o.health, "/livez", 200))
	o.until(answersWith(o.metrics, "/readyz", 200))

	c.node("node-a", v1alpha1.ENISpec{PreAllocate: new(int32(2))})
	c.node("node-b", v1alpha1.ENISpec{PreAllocate: new(int32(2))})
	for _, n := range []string{"node-a", "node-b"} {
		o.until(c.has(n, 2))
		c.wants(n, 5)
	}
	o.until(c.has("node-a", 5))
	o.until(c.has("node-b", 5))

	subnets := map[string]string{}
	for _, n := range []string{"node-a", "node-b"} {
		for _, e := range c.read(n).Status.ENI.ENIs {
			subnets[n] = e.SubnetID
		}
	}
	o.until(o.shows(map[string]string{
		`berth_operator_eni_ips{type="available"}`:                                              "10",
		`berth_operator_eni_ips{type="used"}`:                                                   "0",
		`berth_operator_eni_ips{type="needed"}`:                                                 "0",
		`berth_operator_eni_available`:                                                          "2",
		`berth_operator_eni_nodes{category="total"}`:                                            "2",
		`berth_operator_eni_nodes{category="in-deficit"}`:                                       "0",
		`berth_operator_eni_nodes{category="at-capacity"}`:                                      "0",
		created(subnets["node-a"]):                                                              "1",
		created(subnets["node-b"]):                                                              "1",
		fmt.Sprintf(`berth_operator_eni_allocation_ops_total{subnet_id=%q}`, subnets["node-a"]): "1",
		`berth_operator_aws_api_duration_seconds_count{operation="CreateNetworkInterface",response_code="OK"}`: "2",
		`leader_election_master_status{name="berth-operator"}`:                                                 "1",
	}))
	checkFamilies(t, o)
	o.logsNone("orbidden")
}

func created(subnet string) string {
	return fmt.Sprintf(`berth_operator_eni_interface_creation_ops_total{status="success",subnet_id=%q}`, subnet)
}

// gaugesOfOthers begin the names of those that there are with --ipam=pool and port only, or
// once there is a VPC, or that of the limiter, which holds no call back when nodes join a second
// apart (nodenetwork holds it, metrics_test.go).
var gaugesOfOthers = []string{
	"berth_operator_pool_", "berth_operator_port_", "berth_operator_vpc_", "berth_operator_podnic", "berth_operator_stray_ports", "berth_operator_warm_port", "berth_operator_egress_",
	"berth_operator_webhook_certificate_expiry_", "berth_operator_ec2_rate_limit_",
}

// checkFamilies holds /metrics against the page that documents it.
func checkFamilies(t *testing.T, o *process) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harness.Tree(), "docs", "reference", "operator-metrics.md"))
	harness.OK(t, err)
	_, body, err := get(o.metrics, "/metrics")
	harness.OK(t, err)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (\\w+) \\|").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
		if slices.ContainsFunc(gaugesOfOthers, func(begins string) bool { return strings.HasPrefix(m[1], begins) }) {
			continue
		}
		if !strings.Contains(body, "# TYPE "+m[1]+" "+m[2]+"\n") {
			t.Errorf("/metrics lacks %s of type %s", m[1], m[2])
		}
	}
	if len(documented) < 10 {
		t.Errorf("the page documents only %d metrics", len(documented))
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (berth_\w+)`).FindAllStringSubmatch(body, -1) {
		if !documented[m[1]] {
			t.Errorf("the page does not document %s", m[1])
		}
	}
}

// Pods that are bound to a node are served before their ADDs arrive, and how
// long that took is counted.
func TestBoundPodsAreDemand(t *testing.T) {
	c := newCluster(t)
	o := c.start("one")
	c.node("node-a", v1alpha1.ENISpec{PreAllocate: new(int32(1))})
	o.until(c.has("node-a", 1))
	harness.OK(t, o.Pause()) // so that it sees them together, and more than there are addresses
	for i := range 4 {
		p := &corev1.Pod{Spec: corev1.PodSpec{
			NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "c"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		}}
		p.Namespace, p.Name = "default", fmt.Sprintf("pod-%d", i)
		harness.OK(t, c.client.Create(t.Context(), p))
	}
	harness.OK(t, o.Resume())
	// Four that wait, and one to spare.
	o.until(c.has("node-a", 5))
	o.until(func() error {
		if n := o.values()[`berth_operator_demand_to_address_seconds_count`]; n == "0" || n == "" {
			return errors.New("no wait was counted")
		}
		return nil
	})
}

// The second operator is ready while it stands by, and goes on where a killed
// leader stopped.
func TestTakeover(t *testing.T) {
	c := newCluster(t)
	first := c.lead(quick...)
	second := c.start("two", quick...)
	second.until(answersWith(second.health, "/readyz", 200))
	harness.OK(t, c.leads("one")())
	harness.OK(t, second.shows(map[string]string{`berth_operator_eni_nodes{category="total"}`: "0"})())
	enis := len(c.lab.Cloud.Snapshot().ENIs)

	harness.OK(t, first.Kill())
	c.node("node-b", v1alpha1.ENISpec{})
	second.until(c.leads("two"))
	second.until(c.has("node-b", 8))
	harness.OK(t, c.has("node-a", 8)())
	if n := len(c.lab.Cloud.Snapshot().ENIs); n != enis+1 {
		t.Errorf("%d ENIs, want one more than %d", n, enis)
	}
}

// One that ends in order leaves the Lease free, so that nobody waits for it.
func TestEndReleasesTheLease(t *testing.T) {
	c := newCluster(t)
	o := c.lead()
	o.until(answersWith(o.health, "/readyz", 200))
	harness.OK(t, o.Stop(time.Minute)) // sooner than the Lease runs out
	if code := o.ExitCode(); code != 0 {
		t.Errorf("exit code %d\n%s", code, o.LogTail(20))
	}
	if h := c.holder(); h != "" {
		t.Errorf("the Lease still is %s's", h)
	}
	if log := o.LogTail(1000); strings.Contains(log, "level=ERROR") {
		t.Errorf("the log has errors:\n%s", log)
	}
}

// A leader that was held still for longer than its lease must not go on.
func TestLosingTheLeaseEndsTheProcess(t *testing.T) {
	c := newCluster(t)
	first := c.start("one", quick...)
	first.until(c.leads("one"))
	second := c.start("two", quick...)
	second.until(answersWith(second.health, "/readyz", 200))
	harness.OK(t, first.Pause())
	second.until(c.leads("two"))
	exited := first.Exited()
	harness.OK(t, first.Resume())
	select {
	case <-exited:
	case <-time.After(limit):
		t.Fatal("the old leader goes on")
	}
	if code := first.ExitCode(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if log := first.LogTail(50); !strings.Contains(log, "lost the Lease") {
		t.Errorf("the log does not say why:\n%s", log)
	}
	harness.OK(t, c.leads("two")())
}

// An API server that is away for less than the renew deadline costs nothing,
// and nodes that come after it are seen.
func TestAPIServerRestart(t *testing.T) {
	c := newCluster(t)
	o := c.lead()
	back := harness.WithoutAPIServer(t)
	o.until(answersWith(o.health, "/livez", 200))
	back()
	c.serves(o, "node-b")
	if o.Starts() != 1 || !o.Running() {
		t.Error("the operator ended")
	}
}

func TestWithoutLeaderElection(t *testing.T) {
	c := newCluster(t)
	o := c.start("one", "--leader-elect=false", "--metrics-address=")
	c.serves(o, "node-a")
	if h := c.holder(); h != "" {
		t.Errorf("%s leads", h)
	}
}

// All mistakes come at once, and the exit code says that there are some.
func TestMistakes(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir, "berth-operator"),
		"--retry-period=soon", "--ec2-limits=Assign=5/5", "--no-such-flag")
	cmd.Env = []string{"BERTH_LEASE_DURATION=1ms"}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"--no-such-flag", "BERTH_LEASE_DURATION", `"Assign" is no EC2 action`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("lacks %s\nin %s", want, out)
		}
	}
}

// What is wrong with where it runs is said, too.
func TestStartProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no API":       {nil, "outside a cluster, set --kubeconfig"},
		"no such file": {[]string{"--kubeconfig=/nowhere/kubeconfig"}, "/nowhere/kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir, "berth-operator"), append(tt.args, "--metrics-address=")...)
			cmd.Env = []string{"AWS_REGION=lab-1"}
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), tt.says) {
				t.Errorf("exit code %d, lacks %q\n%s", cmd.ProcessState.ExitCode(), tt.says, out)
			}
		})
	}
}
