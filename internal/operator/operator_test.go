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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/sourcenode"
)

// End to end, under the installed roles and policies: a NodeNetwork gets addresses, and the metrics contain every
// documented family.
func TestNodeGetsAddresses(t *testing.T) {
	c := newCluster(t)
	// One Assign per second, so the second node has to wait.
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

// gaugesOfOthers are prefixes of metrics that exist only with --ipam=pool or port, with a VPC or with a chart, and of the rate
// limiter's, which has no values when nodes join a second apart (see TestMetricsOfNodes).
var gaugesOfOthers = []string{"berth_operator_network_polic",
	"berth_operator_pool_", "berth_operator_port_", "berth_operator_vpc_", "berth_operator_podnic", "berth_operator_stray_ports", "berth_operator_warm_port", "berth_operator_egress_",
	"berth_operator_webhook_certificate_expiry_", "berth_operator_ec2_rate_limit_", "berth_operator_settings_",
}

// checkFamilies compares /metrics with its reference page.
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
			t.Errorf("/metrics has no %s of type %s", m[1], m[2])
		}
	}
	if len(documented) < 10 {
		t.Errorf("found only %d documented metrics, want at least 10", len(documented))
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (berth_\w+)`).FindAllStringSubmatch(body, -1) {
		if !documented[m[1]] {
			t.Errorf("metric %s is not documented", m[1])
		}
	}
}

// Pods bound to a node get addresses assigned before their ADDs arrive, and the waiting time is measured.
func TestBoundPodsAreDemand(t *testing.T) {
	c := newCluster(t)
	o := c.start("one")
	c.node("node-a", v1alpha1.ENISpec{PreAllocate: new(int32(1))})
	o.until(c.has("node-a", 1))
	harness.OK(t, o.Pause()) // so that it sees all pods at once, more than there are addresses
	for i := range 4 {
		c.create(newPod(fmt.Sprintf("pod-%d", i)))
	}
	harness.OK(t, o.Resume())
	// Four for waiting pods, and one spare.
	o.until(c.has("node-a", 5))
	o.until(func() error {
		if n := o.values()[`berth_operator_demand_to_address_seconds_count`]; n == "0" || n == "" {
			return errors.New("berth_operator_demand_to_address_seconds counts no wait")
		}
		return nil
	})
}

// A standby is ready, and continues where a killed leader stopped.
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
	harness.OK(t, controllers.Same("ENIs", len(c.lab.Cloud.Snapshot().ENIs), enis+1))
}

// An operator that shuts down in an orderly way releases the Lease, so that no other has to wait for its expiry.
func TestShutdownReleasesTheLease(t *testing.T) {
	c := newCluster(t)
	o := c.lead()
	o.until(answersWith(o.health, "/readyz", 200))
	harness.OK(t, o.Stop(time.Minute)) // less than the lease duration
	if code := o.ExitCode(); code != 0 {
		t.Errorf("exit code = %d, want 0; log:\n%s", code, o.LogTail(20))
	}
	harness.OK(t, controllers.Same("holder of the Lease", c.holder(), ""))
	if log := o.LogTail(1000); strings.Contains(log, "level=ERROR") {
		t.Errorf("log has errors:\n%s", log)
	}
}

// A leader that was suspended for longer than its lease must exit.
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
		t.Fatal("the old leader did not exit")
	}
	harness.OK(t, controllers.Same("exit code", first.ExitCode(), 1))
	if log := first.LogTail(50); !strings.Contains(log, "lost the Lease") {
		t.Errorf("log does not report the lost Lease:\n%s", log)
	}
	harness.OK(t, c.leads("two")())
}

// An API server outage shorter than the renew deadline has no effect, and nodes that join afterwards are managed.
func TestAPIServerRestart(t *testing.T) {
	c := newCluster(t)
	o := c.lead()
	back := harness.WithoutAPIServer(t)
	o.until(answersWith(o.health, "/livez", 200))
	back()
	c.serves(o, "node-b")
	if o.Starts() != 1 || !o.Running() {
		t.Error("the operator exited")
	}
}

func TestWithoutLeaderElection(t *testing.T) {
	c := newCluster(t)
	o := c.start("one", "--leader-elect=false", "--metrics-address=")
	c.serves(o, "node-a")
	harness.OK(t, controllers.Same("holder of the Lease", c.holder(), ""))
}

// All invalid settings are reported at once, with a nonzero exit code.
func TestInvalidSettings(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir, "berth-operator"),
		"--retry-period=soon", "--ec2-limits=Assign=5/5", "--no-such-flag")
	cmd.Env = []string{"BERTH_LEASE_DURATION=1ms"}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("exit status = %v, want 1", err)
	}
	for _, want := range []string{"--no-such-flag", "BERTH_LEASE_DURATION", `"Assign" is not an EC2 action`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output does not contain %s:\n%s", want, out)
		}
	}
}

// Problems of the environment are reported as well.
func TestStartProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no API server":      {nil, "outside a cluster, set --kubeconfig"},
		"missing kubeconfig": {[]string{"--kubeconfig=/nowhere/kubeconfig"}, "/nowhere/kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir, "berth-operator"), append(tt.args, "--metrics-address=")...)
			cmd.Env = []string{"AWS_REGION=lab-1"}
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), tt.says) {
				t.Errorf("exit code = %d, want 1 and output containing %q:\n%s", cmd.ProcessState.ExitCode(), tt.says, out)
			}
		})
	}
}

// attached returns an instance's ENIs with their secondary addresses.
func (c *cluster) attached(instance string) (out []string) {
	for _, e := range c.lab.Cloud.Snapshot().InstanceENIs(c.lab.Cloud.Instances.ID(instance)) {
		out = append(out, fmt.Sprintf("%s %v", e.ID, e.Secondary))
	}
	slices.Sort(out)
	return out
}

// An attacker with the daemon token of a node names another node's instance in the object, wants no addresses for
// it, and confirms every release: the other node keeps its ENIs and addresses.
func TestObjectNamesAnothersInstance(t *testing.T) {
	c := newCluster(t)
	o := c.start("one", "--shrink-delay=50ms", "--listing-interval=1s", "--settle-time=1s")
	o.until(c.leads("one"))
	four := v1alpha1.ENISpec{PreAllocate: new(int32(4))}
	c.node("node-a", four)
	c.node("node-b", four)
	o.until(c.has("node-a", 4))
	o.until(c.has("node-b", 4))
	before := c.attached("node-a")

	thief := harness.KubeClientFor(t, sourcenode.Config(t, "berthd", "node-b")) // has only the daemon's token
	mine := controllers.Named[v1alpha1.NodeNetwork]("node-b")
	harness.Eventually(t, limit, "daemon may not delete its own object, which may have manual settings", func() error {
		// A dry run, as the API server may not enforce its policies yet.
		if err := thief.Delete(t.Context(), mine.DeepCopy(), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return errors.Join(errors.New("not rejected by a policy"), err)
		}
		return nil
	})
	harness.OK(t, c.client.Delete(t.Context(), mine.DeepCopy())) // deleted by an administrator
	harness.Eventually(t, limit, "object recreated by the attacker", func() error {
		// Only daemons listed by berthd-allowed may use eth0.
		return thief.Create(t.Context(), objectOf("node-b", c.lab.Cloud.Instances.ID("node-a"), v1alpha1.ENISpec{PreAllocate: new(int32)}))
	})
	harness.Eventually(t, limit, "object refused with reason AnotherInstance", func() error {
		if now := c.attached("node-a"); !slices.Equal(now, before) {
			t.Fatalf("ENIs of node-a changed from %v to %v", before, now)
		}
		old := c.read("node-b")
		got := old.DeepCopy()
		got.Status.IPAM.Released, got.Status.IPAM.InstanceID = got.Spec.IPAM.Releasing, got.Spec.InstanceID
		if err := thief.Status().Patch(t.Context(), got, client.MergeFrom(old)); err != nil {
			return err
		}
		if d := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionDegraded); d != nil && d.Reason == "AnotherInstance" {
			return nil
		}
		return fmt.Errorf("conditions = %+v", got.Status.Conditions)
	})
	harness.OK(t, controllers.Same("addresses published in the attacker's object", len(c.read("node-b").Spec.IPAM.Available), 0))
	// Node-a still gets more addresses.
	c.wants("node-a", 6)
	o.until(c.has("node-a", 6))

	// Without a provider ID, EC2 decides: a Node named after the other instance's private DNS name has that
	// instance.
	harness.OK(t, c.client.Delete(t.Context(), mine.DeepCopy()))
	id := c.lab.Cloud.Instances.ID("node-b")
	primary := c.lab.Cloud.Snapshot().InstanceENIs(id)[0].Primary
	name := fmt.Sprintf("ip-%s.%s.compute.internal", strings.ReplaceAll(primary.String(), ".", "-"), c.lab.Cloud.Region())
	harness.OK(t, c.client.Create(t.Context(), controllers.Named[corev1.Node](name)))
	harness.OK(t, c.client.Create(t.Context(), objectOf(name, id, four)))
	o.until(c.has(name, 4))
}

// An operator only for Egresses, under the roles and policies of the chart in node mode, which has no other
// operator.
func TestEgressAlone(t *testing.T) {
	c := newCluster(t)
	r := deploy.InMode(deploy.NodeMode, "test")
	r.Values["egress"] = map[string]any{"enabled": true, "port": 5556, "image": map[string]any{"repository": "berth-egress", "tag": "v1"}}
	c.use(harness.OperatorConfigOf(t, r))
	o := c.start("one", "--ipam=", "--egress", "--egress-image=berth-egress:v1", "--egress-port=5556")
	o.until(c.leads("one"))
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nat"}, Spec: v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}, Replicas: new(int32(2))},
	}
	harness.OK(t, c.client.Create(t.Context(), e))
	d := &appsv1.Deployment{}
	o.until(func() error { return c.client.Get(t.Context(), client.ObjectKeyFromObject(e), d) })
	pod := d.Spec.Template.Spec
	if *d.Spec.Replicas != 2 || pod.Containers[0].Image != "berth-egress:v1" || pod.Containers[0].Ports[0].ContainerPort != 5556 {
		t.Errorf("Deployment spec = %+v, want 2 replicas with the image and port from the flags", d.Spec)
	}
	o.until(func() error {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
			return err
		}
		for kind, want := range map[string]bool{v1alpha1.ConditionServiceReady: true, v1alpha1.ConditionAvailable: false, v1alpha1.ConditionClientsReady: true} {
			if s := meta.FindStatusCondition(e.Status.Conditions, kind); s == nil || (s.Status == metav1.ConditionTrue) != want {
				return fmt.Errorf("conditions = %+v", e.Status.Conditions)
			}
		}
		return nil
	})
	harness.OK(t, controllers.Same("Service addresses", len(e.Status.ServiceIPs), 1))
	o.until(o.shows(map[string]string{
		`berth_operator_egress_gateways{egress="nat",namespace="default",state="desired"}`: "2",
		`berth_operator_egress_gateways{egress="nat",namespace="default",state="ready"}`:   "0",
		`berth_operator_egress_applies_total{kind="Deployment",result="success"}`:          "1",
		`leader_election_master_status{name="berth-operator"}`:                             "1",
	}))
	o.healthy()
	o.logsNone("orbidden", "level=ERROR")
}
