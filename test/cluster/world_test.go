//go:build e2e

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/demo"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/test/harness"
)

// kubernetesGrace is the time after which Kubernetes by default takes a silent node for failed, and its pods leave their
// Services. It is longer than the API server is away here.
const kubernetesGrace = 50 * time.Second

// soon is the time limit for one step of a cluster on a busy machine.
const soon = 4 * time.Minute

// The node that troubles spare, where the client runs, and the node that they affect.
const (
	calmNode   = "node-1"
	brokenNode = "node-2"
)

// Names of objects in the cluster.
const (
	inDefault  = metav1.NamespaceDefault
	webName    = demo.WebName
	webPort    = demo.WebPort
	clientName = demo.ClientName
	agnhost    = demo.Agnhost
	daemonName = "berthd"
	operator   = "berth-operator"
)

// world is a cluster for a sequence of faults.
type world struct {
	*lab.Lab
	dir string
	web *demo.Cluster // set by raise
}

// raise is raiseEmpty with a Deployment behind a Service and a client that calls it continuously.
func raise(t *testing.T, o lab.Options) *world {
	t.Helper()
	w := raiseEmpty(t, o)
	var err error
	w.web, err = demo.DeployWeb(harness.Deadline(t, soon), w.Lab, 6)
	harness.OK(t, err)
	return w
}

// raiseEmpty starts a cluster for one test, of two nodes unless the options say otherwise. Images of the options are
// added to the usual ones.
func raiseEmpty(t *testing.T, o lab.Options) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "trouble")
	harness.OK(t, err)
	settings := kernelSettings(t)
	o.Dir, o.BinDir, o.Nodes = dir, harness.BinDir, cmp.Or(o.Nodes, 2)
	o.Kubelets = fromRelease(*o.Kubelets)
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	l, err := lab.Start(ctx, o)
	harness.OK(t, err)
	w := &world{Lab: l, dir: dir}
	t.Cleanup(func() {
		if t.Failed() {
			demo.ClusterOf(l).Report(func(line string) { t.Log(line) })
		}
		err := errors.Join(l.Err(), l.Close())
		if _, swept := lab.Sweep(dir, l.ID); errors.Join(err, swept, os.RemoveAll(dir)) != nil {
			t.Error(err, swept)
		}
		checkNothingLeft(t, dir)
		if now := kernelSettings(t); now != settings {
			t.Errorf("kernel settings = %s, want %s as before", now, settings)
		}
	})
	return w
}

// plainPod returns an idle pod on a node.
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

// makePods creates plain pods.
func (w *world) makePods(t *testing.T, prefix, node string, count int) (names []string) {
	t.Helper()
	for i := range count {
		p := plainPod(fmt.Sprintf("%s-%d", prefix, i), node)
		harness.OK(t, w.Kube.Client.Create(t.Context(), p))
		names = append(names, p.Name)
	}
	return names
}

// removePods deletes pods and waits until they are gone.
func (w *world) removePods(t *testing.T, names ...string) {
	t.Helper()
	harness.OK(t, harness.AtOnce(len(names), func(i int) error { return w.goes(t.Context(), names[i]) }))
}

// podReady waits until pods are Ready.
func (w *world) podReady(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		harness.Eventually(t, soon, "pod "+name+" is Ready", func() error { return w.isReady(t.Context(), inDefault, name) })
	}
}

func (w *world) isReady(ctx context.Context, namespace, name string) error {
	p := &corev1.Pod{}
	if err := w.Kube.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, p); err != nil {
		return err
	}
	if !objects.IsReady(p) {
		return fmt.Errorf("pod %s is %s: %+v", name, p.Status.Phase, p.Status.ContainerStatuses)
	}
	return nil
}

// nodeReady returns whether a Node is Ready, and the message of that condition.
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
	return false, "", fmt.Errorf("node %s has no Ready condition", name)
}

// daemon returns berthd's pod on a node.
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
	return nil, fmt.Errorf("no berthd pod on %s", node)
}

// rest waits until nodes, Berth's pods and the Deployment are Ready, and pods, daemons and cloud agree on addresses,
// with none lost or leaked.
func (w *world) rest(t *testing.T) {
	t.Helper()
	ctx := harness.Deadline(t, soon)
	harness.OK(t, w.Kube.WaitNodesReady(ctx, w.Nodes()...))
	harness.OK(t, w.Kube.WaitDeployment(ctx, inDefault, webName))
	harness.Eventually(t, soon, "pods, daemons and cloud agree", func() error {
		for _, n := range w.Nodes() {
			p, err := w.daemon(ctx, n.Name)
			if err != nil {
				return err
			}
			if c := p.Status.ContainerStatuses; len(c) == 0 || !c[0].Ready {
				return fmt.Errorf("berthd on %s is not Ready: %+v", n.Name, c)
			}
		}
		_, err := oracle.Addresses(ctx, w.Lab)
		return err
	})
}

// kubectl runs kubectl and returns its output.
func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.Kube.Kubectl(t.Context(), args...)
	harness.OK(t, err)
	return out
}

// shows waits until the output of kubectl contains all the words.
func (w *world) shows(t *testing.T, words []string, args ...string) string {
	t.Helper()
	var out string
	harness.Eventually(t, soon, "kubectl "+strings.Join(args, " "), func() error {
		var err error
		out, err = w.Kube.Kubectl(t.Context(), args...)
		for _, word := range words {
			if !strings.Contains(out, word) {
				return errors.Join(err, fmt.Errorf("output lacks %q:\n%s", word, out))
			}
		}
		return nil
	})
	return out
}
