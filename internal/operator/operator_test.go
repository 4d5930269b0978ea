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
// apart (TestMetricsOfNodes has it).
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
		c.create(newPod(fmt.Sprintf("pod-%d", i)))
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
	harness.OK(t, controllers.Same("ENIs", len(c.lab.Cloud.Snapshot().ENIs), enis+1))
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
	harness.OK(t, controllers.Same("the holder of the Lease", c.holder(), ""))
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
	harness.OK(t, controllers.Same("the exit code", first.ExitCode(), 1))
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
	harness.OK(t, controllers.Same("the holder of the Lease", c.holder(), ""))
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

// attached lists an instance's ENIs with their secondary addresses.
func (c *cluster) attached(instance string) (out []string) {
	for _, e := range c.lab.Cloud.Snapshot().InstanceENIs(c.lab.Cloud.Instances.ID(instance)) {
		out = append(out, fmt.Sprintf("%s %v", e.ID, e.Secondary))
	}
	slices.Sort(out)
	return out
}

// A node whose daemon's token is in the wrong hands names another node's
// instance in its object, wants nothing there, and confirms whatever it is asked
// to give back: the other node keeps its ENIs and addresses.
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

	thief := harness.KubeClientFor(t, sourcenode.Config(t, "berthd", "node-b")) // has its daemon's token, and nothing else
	mine := controllers.Named[v1alpha1.NodeNetwork]("node-b")
	harness.Eventually(t, limit, "the daemon may not delete its own object, in which a person's settings are", func() error {
		// A dry run: the API server may not enforce its policies yet.
		if err := thief.Delete(t.Context(), mine.DeepCopy(), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return errors.Join(errors.New("not refused by a policy"), err)
		}
		return nil
	})
	harness.OK(t, c.client.Delete(t.Context(), mine.DeepCopy())) // a person did
	harness.Eventually(t, limit, "it makes the object anew", func() error {
		// eth0 is for those only whom berthd-allowed lists
		return thief.Create(t.Context(), objectOf("node-b", c.lab.Cloud.Instances.ID("node-a"), v1alpha1.ENISpec{PreAllocate: new(int32)}))
	})
	harness.Eventually(t, limit, "the operator says that it will not work for that object", func() error {
		if now := c.attached("node-a"); !slices.Equal(now, before) {
			t.Fatalf("node-a had %v and has %v", before, now)
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
		return fmt.Errorf("conditions %+v", got.Status.Conditions)
	})
	harness.OK(t, controllers.Same("addresses of another node that it learned of", len(c.read("node-b").Spec.IPAM.Available), 0))
	// Node-a grows as before.
	c.wants("node-a", 6)
	o.until(c.has("node-a", 6))

	// Without a provider ID it is EC2 that tells: a Node of the private DNS name
	// of the other instance has that one.
	harness.OK(t, c.client.Delete(t.Context(), mine.DeepCopy()))
	id := c.lab.Cloud.Instances.ID("node-b")
	primary := c.lab.Cloud.Snapshot().InstanceENIs(id)[0].Primary
	name := fmt.Sprintf("ip-%s.%s.compute.internal", strings.ReplaceAll(primary.String(), ".", "-"), c.lab.Cloud.Region())
	harness.OK(t, c.client.Create(t.Context(), controllers.Named[corev1.Node](name)))
	harness.OK(t, c.client.Create(t.Context(), objectOf(name, id, four)))
	o.until(c.has(name, 4))
}

// An operator that works for Egresses alone, under the roles and policies that the chart
// gives it beside node mode, where there is no other operator.
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
		t.Errorf("Deployment %+v", d.Spec)
	}
	o.until(func() error {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
			return err
		}
		for kind, want := range map[string]bool{v1alpha1.ConditionServiceReady: true, v1alpha1.ConditionAvailable: false, v1alpha1.ConditionClientsReady: true} {
			if s := meta.FindStatusCondition(e.Status.Conditions, kind); s == nil || (s.Status == metav1.ConditionTrue) != want {
				return fmt.Errorf("conditions %+v", e.Status.Conditions)
			}
		}
		return nil
	})
	harness.OK(t, controllers.Same("addresses of the Service", len(e.Status.ServiceIPs), 1))
	o.until(o.shows(map[string]string{
		`berth_operator_egress_gateways{egress="nat",namespace="default",state="desired"}`: "2",
		`berth_operator_egress_gateways{egress="nat",namespace="default",state="ready"}`:   "0",
		`berth_operator_egress_applies_total{kind="Deployment",result="success"}`:          "1",
		`leader_election_master_status{name="berth-operator"}`:                             "1",
	}))
	o.healthy()
	o.logsNone("orbidden", "level=ERROR")
}
