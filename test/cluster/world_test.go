//go:build e2e

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/test/harness"
)

// soon is how long a cluster on a busy machine may take for anything.
const soon = 4 * time.Minute

// Which node troubles leave alone, where the client is, and which they meet.
const (
	calmNode   = "node-1"
	brokenNode = "node-2"
)

// Names of what the cluster carries.
const (
	inDefault   = metav1.NamespaceDefault
	webName     = "web"
	webPort     = 8080
	webNodePort = 30080
	clientName  = "client"
	agnhost     = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
	daemonName  = "berthd"
	operator    = "berth-operator"
)

// world is a cluster in which troubles take turns. Each puts right what it broke.
type world struct {
	*lab.Lab
	dir string
}

// raise is raiseEmpty with a Deployment behind a Service and a client that calls it all the time.
func raise(t *testing.T, o lab.Options) *world {
	t.Helper()
	w := raiseEmpty(t, o)
	for _, o := range workload(o.Mode) {
		harness.OK(t, w.Kube.Client.Create(t.Context(), o))
	}
	harness.OK(t, w.Kube.WaitDeployment(harness.Deadline(t, soon), inDefault, webName))
	w.podReady(t, clientName)
	return w
}

// raiseEmpty starts a cluster of two nodes, unless the options say how many, and removes it at the end
// of the test.
func raiseEmpty(t *testing.T, o lab.Options) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "trouble")
	harness.OK(t, err)
	settings := kernelSettings(t)
	o.Dir, o.BinDir, o.Nodes = dir, harness.BinDir, cmp.Or(o.Nodes, 2)
	o.Kubelets.Images, o.Kubelets.Helm = filepath.SplitList(os.Getenv(imagesVariable)), os.Getenv(helmVariable)
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	l, err := lab.Start(ctx, o)
	harness.OK(t, err)
	w := &world{l, dir}
	t.Cleanup(func() {
		if t.Failed() {
			w.tell(t)
		}
		err := errors.Join(l.Err(), l.Close())
		if _, swept := lab.Sweep(dir, l.ID); errors.Join(err, swept, os.RemoveAll(dir)) != nil {
			t.Error(err, swept)
		}
		checkNothingLeft(t, dir)
		if now := kernelSettings(t); now != settings {
			t.Errorf("kernel settings were %s before and are %s", settings, now)
		}
	})
	return w
}

// callScript writes a line for each call of the Service: 200, or what else came of it, curl's
// own exit status, and after how many seconds the name was resolved (0: it was not).
// It is the container's own program, which no restart of kubelet or runtime ends.
const callScript = `while :; do curl -s -o /dev/null -m 5 -w '%{http_code}/%{exitcode}/%{time_namelookup}\n' http://` + webName + `/hostname >>` + callFile + `; sleep 0.05; done`

const callFile = "/tmp/calls"

// workload is a Deployment of HTTP servers, the Service before them, and the client.
func workload(mode lab.Mode) []client.Object {
	replicas, grace, one := int32(6), int64(10), int64(1)
	labels := map[string]string{"app": webName}
	server := corev1.Container{
		Name: webName, Image: agnhost, ImagePullPolicy: corev1.PullNever,
		// Proxies hear of a pod's end a moment later.
		Args:           []string{"netexec", fmt.Sprintf("--http-port=%d", webPort), "--delay-shutdown=4"},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(webPort)}}, PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: 5},
	}
	spread := corev1.TopologySpreadConstraint{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
	}
	return []client.Object{
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: webName},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{
						Containers: []corev1.Container{server}, TerminationGracePeriodSeconds: &grace,
						TopologySpreadConstraints: []corev1.TopologySpreadConstraint{spread},
					},
				},
			},
		},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: webName},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, Selector: labels,
				Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(webPort), NodePort: webNodePort}},
			},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: clientName},
			Spec: corev1.PodSpec{
				Containers:   []corev1.Container{{Name: clientName, Image: agnhost, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", callScript}}},
				NodeSelector: map[string]string{corev1.LabelHostname: calmNode}, TerminationGracePeriodSeconds: &one,
				DNSConfig: mode.DNSConfig(),
			},
		},
	}
}

// plainPod is one that does nothing, on a node.
func plainPod(name, node string) *corev1.Pod {
	one := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: name, Labels: map[string]string{"app": "plain"}},
		Spec: corev1.PodSpec{
			Containers:   []corev1.Container{{Name: "pause", Image: agnhost, ImagePullPolicy: corev1.PullNever, Args: []string{"pause"}}},
			NodeSelector: map[string]string{corev1.LabelHostname: node}, TerminationGracePeriodSeconds: &one,
		},
	}
}

// makePods makes plain pods and returns when the API server has them.
func (w *world) makePods(t *testing.T, prefix, node string, count int) (names []string) {
	t.Helper()
	for i := range count {
		p := plainPod(fmt.Sprintf("%s-%d", prefix, i), node)
		harness.OK(t, w.Kube.Client.Create(t.Context(), p))
		names = append(names, p.Name)
	}
	return names
}

// removePods returns once they are gone.
func (w *world) removePods(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: name}}
		harness.OK(t, client.IgnoreNotFound(w.Kube.Client.Delete(t.Context(), p)))
	}
	for _, name := range names {
		harness.Eventually(t, soon, "pod "+name+" goes", func() error {
			p := &corev1.Pod{}
			if err := w.Kube.Client.Get(t.Context(), client.ObjectKey{Namespace: inDefault, Name: name}, p); client.IgnoreNotFound(err) != nil || err == nil {
				return errors.Join(err, fmt.Errorf("it is there: %s", p.Status.Phase))
			}
			return nil
		})
	}
}

// podReady waits for pods.
func (w *world) podReady(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		harness.Eventually(t, soon, "pod "+name+" is Ready", func() error { return w.isReady(t.Context(), name) })
	}
}

func (w *world) isReady(ctx context.Context, name string) error {
	p := &corev1.Pod{}
	if err := w.Kube.Client.Get(ctx, client.ObjectKey{Namespace: inDefault, Name: name}, p); err != nil {
		return err
	}
	if !objects.IsReady(p) {
		return fmt.Errorf("pod %s is %s: %+v", name, p.Status.Phase, p.Status.ContainerStatuses)
	}
	return nil
}

// nodeReady tells whether a Node is Ready, and what is said of it.
func (w *world) nodeReady(ctx context.Context, name string) (bool, string, error) {
	n := &corev1.Node{}
	if err := w.Kube.Client.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return false, "", err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message, nil
		}
	}
	return false, "", fmt.Errorf("node %s has no condition Ready", name)
}

// daemon is the pod of berthd on a node.
func (w *world) daemon(ctx context.Context, node string) (*corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := w.Kube.Client.List(ctx, pods, client.InNamespace(addons.Namespace), client.MatchingLabels{"app.kubernetes.io/name": daemonName}); err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		if p.Spec.NodeName == node && p.DeletionTimestamp == nil {
			return &p, nil
		}
	}
	return nil, fmt.Errorf("there is no pod of berthd on %s", node)
}

// rest waits until nodes are Ready, Berth's pods too, and pods, daemons and cloud agree
// on addresses: nothing is lost, nothing has leaked.
func (w *world) rest(t *testing.T) {
	t.Helper()
	ctx := harness.Deadline(t, soon)
	harness.OK(t, w.Kube.WaitNodesReady(ctx, w.Nodes()...))
	harness.OK(t, w.Kube.WaitDeployment(ctx, inDefault, webName))
	harness.Eventually(t, soon, "all come to agree", func() error {
		for _, n := range w.Nodes() {
			p, err := w.daemon(ctx, n.Name)
			if err != nil {
				return err
			}
			if c := p.Status.ContainerStatuses; len(c) == 0 || !c[0].Ready {
				return fmt.Errorf("berthd of %s is not Ready: %+v", n.Name, c)
			}
		}
		_, err := oracle.Addresses(ctx, w.Lab)
		return err
	})
}

// nodeURL is the Service as the host outside sees it by a node.
func (w *world) nodeURL(t *testing.T, name string) string {
	t.Helper()
	n, err := w.Node(name)
	harness.OK(t, err)
	var address netip.Addr
	if w.Site != nil {
		address = w.Site.Addrs(name).IPv4
	} else {
		address = w.Snapshot().InstanceENIs(n.InstanceID)[0].Primary
	}
	return "http://" + netip.AddrPortFrom(address, webNodePort).String() + "/hostname"
}

// kubectl runs the real one and returns what a person reads.
func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.Kube.Kubectl(t.Context(), args...)
	harness.OK(t, err)
	return out
}

// shows waits until kubectl prints all of the words.
func (w *world) shows(t *testing.T, words []string, args ...string) string {
	t.Helper()
	var out string
	harness.Eventually(t, soon, "kubectl "+strings.Join(args, " "), func() error {
		var err error
		out, err = w.Kube.Kubectl(t.Context(), args...)
		for _, word := range words {
			if !strings.Contains(out, word) {
				return errors.Join(err, fmt.Errorf("it does not say %q:\n%s", word, out))
			}
		}
		return nil
	})
	return out
}

// tell shows what the cluster says of what does not work.
func (w *world) tell(t *testing.T) {
	for _, args := range [][]string{
		{"get", "nodes,pods", "--all-namespaces", "--output=wide", "--no-headers"},
		{"get", "events", "--all-namespaces", "--field-selector=type=Warning", "--sort-by=.lastTimestamp", "--no-headers"},
		{"logs", "--namespace=" + addons.Namespace, "--selector=app.kubernetes.io/name in (berthd, berth-operator)", "--tail=12", "--prefix", "--ignore-errors"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		out, err := w.Kube.Kubectl(ctx, args...)
		cancel()
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
