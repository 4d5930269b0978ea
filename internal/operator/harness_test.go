package operator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/proc"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestMain(m *testing.M) {
	planner.Child()
	os.Exit(harness.Kube(func() int { return harness.Main(m, "berth-operator") }))
}

// cluster is a control plane, and a fake EC2 with two instances.
type cluster struct {
	t          *testing.T
	client     client.Client
	lab        *endpoints.Cloud
	kubeconfig string // of the operator's service account, with its roles and the admission policies
}

var account = types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	harness.KubeClean(t)
	c := &cluster{t: t, client: harness.KubeClient(t)}
	c.use(harness.OperatorConfig(t, deploy.OperatorMode))
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = account.Namespace, LeaseName
	harness.OK(t, client.IgnoreNotFound(c.client.Delete(t.Context(), lease)))
	var err error
	c.lab, err = endpoints.Serve(spec.Default())
	harness.OK(t, err)
	t.Cleanup(c.lab.Close)
	return c
}

// use makes operators that are started from now on reach the API server with cfg.
func (c *cluster) use(cfg *rest.Config) {
	c.t.Helper()
	c.kubeconfig = filepath.Join(c.t.TempDir(), "kubeconfig")
	harness.OK(c.t, kube.WriteKubeconfig(c.kubeconfig, cfg))
}

// node creates a Node and its NodeNetwork for an instance of the lab.
func (c *cluster) node(instance string, eni v1alpha1.ENISpec) {
	c.t.Helper()
	n := bareNode(instance)
	n.Spec.ProviderID = "aws:///zone/" + c.lab.Cloud.Instances.ID(instance)
	c.create(n, objectOf(instance, c.lab.Cloud.Instances.ID(instance), eni))
}

func (c *cluster) create(objects ...client.Object) {
	c.t.Helper()
	for _, o := range objects {
		harness.OK(c.t, c.client.Create(c.t.Context(), o))
	}
}

// bareNode returns a Node without an instance.
var bareNode = controllers.Named[corev1.Node]

// newPod returns a pod that is bound to node-a.
func newPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "c"}}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
}

// objectOf returns a node's NodeNetwork as its daemon creates it.
func objectOf(node, instanceID string, eni v1alpha1.ENISpec) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: v1alpha1.NodeNetworkSpec{InstanceID: instanceID, InstanceType: "m5.large", ENI: eni},
	}
}

// wants changes the number of addresses that a node is to keep free.
func (c *cluster) wants(node string, addresses int32) {
	c.t.Helper()
	controllers.Merge(c.t, objectOf(node, "", v1alpha1.ENISpec{}), `{"spec":{"eni":{"preAllocate":%d}}}`, addresses)
}

// lead starts an operator, waits until it leads, and creates node-a with its 8 addresses.
func (c *cluster) lead(args ...string) *process {
	c.t.Helper()
	o := c.start("one", args...)
	o.until(c.leads("one"))
	c.serves(o, "node-a")
	return o
}

// serves creates a node and waits until it has its 8 addresses.
func (c *cluster) serves(o *process, node string) {
	c.t.Helper()
	c.node(node, v1alpha1.ENISpec{})
	o.until(c.has(node, 8))
}

func (c *cluster) read(node string) *v1alpha1.NodeNetwork {
	c.t.Helper()
	return controllers.Get[v1alpha1.NodeNetwork](c.t, client.ObjectKey{Name: node})
}

// has returns nil once a node has this many addresses.
func (c *cluster) has(node string, addresses int) func() error {
	return func() error {
		o := &v1alpha1.NodeNetwork{}
		if err := c.client.Get(c.t.Context(), client.ObjectKey{Name: node}, o); err != nil {
			return err
		}
		if n := len(o.Spec.IPAM.Available); n != addresses {
			return fmt.Errorf("node %s has %d addresses, want %d; conditions = %+v", node, n, addresses, o.Status.Conditions)
		}
		return nil
	}
}

// holder returns the holder of the Lease, or "" if it is free.
func (c *cluster) holder() string {
	c.t.Helper()
	lease := &coordinationv1.Lease{}
	err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: account.Namespace, Name: LeaseName}, lease)
	harness.OK(c.t, client.IgnoreNotFound(err))
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// leads returns nil while the named operator holds the Lease.
func (c *cluster) leads(name string) func() error {
	return func() error {
		if h := c.holder(); !strings.HasPrefix(h, name+"_") {
			return fmt.Errorf("leader = %q, want %s", h, name)
		}
		return nil
	}
}

// process is a berth-operator process, running the binary as shipped.
type process struct {
	*proc.Process
	c       *cluster
	metrics string
	health  string
}

// quick lets another operator take over soon, but still tolerates that a leader or the API server gets
// no CPU time for six seconds.
var quick = []string{"--lease-duration=9s", "--renew-deadline=7s", "--retry-period=250ms"}

// steady keeps a slow leader from losing its Lease.
var steady = []string{"--lease-duration=120s", "--renew-deadline=110s"}

// limit is the deadline for operations that take only a moment on an idle machine.
const limit = 3 * time.Minute

// start runs an operator until the test ends, with the settings of steady unless args override them.
func (c *cluster) start(name string, args ...string) *process {
	c.t.Helper()
	p := &process{c: c, metrics: freeAddress(c.t), health: freeAddress(c.t)}
	key := c.lab.Credentials()
	p.Process = proc.New(name, filepath.Join(c.t.TempDir(), name+".log"), func() proc.Command {
		return proc.Command{
			Path: filepath.Join(harness.BinDir, "berth-operator"), Netns: "/proc/thread-self/ns/net",
			Args: slices.Concat([]string{
				"--kubeconfig=" + c.kubeconfig, "--cluster-name=test", "--ec2-endpoint=" + c.lab.EC2URL,
				"--metrics-address=" + p.metrics, "--health-address=" + p.health,
			}, steady, args),
			Env: []string{
				"AWS_ACCESS_KEY_ID=" + key.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + key.SecretAccessKey,
				"AWS_REGION=" + c.lab.Cloud.Region(), "POD_NAME=" + name, "POD_NAMESPACE=" + account.Namespace,
			},
		}
	})
	harness.OK(c.t, p.Start())
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("last lines of the log of %s:\n%s", name, p.LogTail(40))
		}
		_ = p.Kill()
	})
	return p
}

// until waits for a condition, and fails if the operator exits.
func (p *process) until(is func() error) {
	p.c.t.Helper()
	ctx, cancel := context.WithTimeout(p.c.t.Context(), limit)
	defer cancel()
	harness.OK(p.c.t, p.Wait(ctx, is))
}

// logsNone checks that the operator has logged none of these words since it became leader. It ignores
// earlier lines, because the API server may not have known the roles yet, and Events rejected by a policy
// that another test installed without egress.
func (p *process) logsNone(words ...string) {
	p.c.t.Helper()
	_, log, leads := strings.Cut(p.LogTail(1000), "leading:")
	if !leads {
		p.c.t.Error("log does not report leadership")
	}
	for line := range strings.SplitSeq(log, "\n") {
		for _, word := range words {
			if strings.Contains(line, word) && !strings.Contains(line, "ValidatingAdmissionPolicy 'berth-operator-leads-and-tells'") {
				p.c.t.Errorf("unexpected line in the operator's log: %s", line)
			}
		}
	}
}

// answersWith returns nil when a path answers with this status.
func answersWith(address, path string, status int) func() error {
	return func() error {
		code, body, err := get(address, path)
		if err == nil && code != status {
			return fmt.Errorf("GET %s = %d %s, want %d", path, code, body, status)
		}
		return err
	}
}

// healthy checks that the probes succeed.
func (p *process) healthy() {
	p.c.t.Helper()
	harness.OK(p.c.t, errors.Join(answersWith(p.health, "/livez", 200)(), answersWith(p.health, "/readyz", 200)()))
}

func get(address, path string) (int, string, error) {
	r, err := http.Get("http://" + address + path)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// values returns the samples of /metrics by name and labels, as text.
func (p *process) values() map[string]string {
	p.c.t.Helper()
	_, body, err := get(p.metrics, "/metrics")
	harness.OK(p.c.t, err)
	out := map[string]string{}
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		if m := sample.FindStringSubmatch(s.Text()); m != nil {
			out[m[1]] = m[2]
		}
	}
	return out
}

var sample = regexp.MustCompile(`^([a-z0-9_]+(?:\{.*\})?) (\S+)$`)

// shows returns nil when the metrics have these values.
func (p *process) shows(want map[string]string) func() error {
	return func() error {
		got := p.values()
		for name, v := range want {
			if got[name] != v {
				return fmt.Errorf("metric %s = %q, want %s", name, got[name], v)
			}
		}
		return nil
	}
}

// freeAddress returns a loopback address and port that stay free until the operator listens there: the address
// is random, and outgoing connections on this machine only use ports of 127.0.0.1.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(254), rand.N(256), 1+rand.N(254)))
	harness.OK(t, err)
	defer l.Close()
	return l.Addr().String()
}
