package ready

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/poll"
)

// settleTime is how long the cluster is left alone before pods are created.
const settleTime = 2 * time.Second

const (
	name      = "measured"
	namespace = metav1.NamespaceDefault
)

var labels = map[string]string{"app": name}

// spec returns a pod with one container and without probes, volumes and image pulls, to maximize the
// network's share of its start time.
func spec(node string) corev1.PodSpec {
	no, grace := false, int64(1)
	s := corev1.PodSpec{
		Containers:                    []corev1.Container{{Name: "pause", Image: host.PauseImage, ImagePullPolicy: corev1.PullNever}},
		TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
	}
	if node != "" {
		s.NodeSelector = map[string]string{corev1.LabelHostname: node}
		return s
	}
	s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	return s
}

// Deployment creates a Deployment whose pods are spread evenly over the nodes, and returns how long it
// takes until all are Ready.
func (c *Cluster) Deployment(ctx context.Context, n Network, pods int) (last time.Duration, err error) {
	replicas := int32(pods)
	var began time.Time
	all, err := c.turn(ctx, n, turn{pods: pods, onNode: (pods + nodes - 1) / nodes, create: func(ctx context.Context) error {
		began = time.Now()
		return c.Kube.Client.Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec("")},
			},
		})
	}})
	for _, at := range all {
		last = max(last, at.Sub(began))
	}
	return last, err
}

// Burst creates pods at once on one node, and returns the times from creation to Ready, sorted.
func (c *Cluster) Burst(ctx context.Context, n Network, pods int) (took []time.Duration, err error) {
	began := make([]time.Time, pods)
	podName := func(i int) string { return fmt.Sprintf("%s-%d", name, i) }
	node := c.Nodes()[0].Name
	all, err := c.turn(ctx, n, turn{pods: pods, onNode: pods, create: func(ctx context.Context) error {
		return objects.Each(ctx, pods, pods, func(ctx context.Context, i int) error {
			began[i] = time.Now()
			return c.Kube.Client.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podName(i), Labels: labels}, Spec: spec(node),
			})
		})
	}})
	if err != nil {
		return nil, err
	}
	for i := range began {
		took = append(took, all[podName(i)].Sub(began[i]))
	}
	slices.Sort(took)
	return took, nil
}

// turn is one measurement of a network.
type turn struct {
	pods   int // in all
	onNode int // maximum per node
	create func(context.Context) error
}

// turn creates pods with a network and removes them again. It returns when each was Ready.
func (c *Cluster) turn(ctx context.Context, n Network, t turn) (at map[string]time.Time, err error) {
	defer must.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c.use(ctx, n)
	if n == Berth { // wait for warm addresses
		for _, node := range c.Nodes() {
			must.OK(lab.WaitAvailable(ctx, node, t.onNode))
		}
	}
	must.OK(poll.Pause(ctx, time.Now(), settleTime))
	at = map[string]time.Time{}
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.create(groupCtx) })
	g.Go(func() (err error) {
		// From a watch, since the times in conditions are whole seconds.
		until := objects.Until(groupCtx, c.Kube.Client, &corev1.PodList{}, nil, func(p *corev1.Pod) bool {
			if _, known := at[p.Name]; !known && p.Labels["app"] == name && objects.IsReady(p) {
				at[p.Name] = time.Now()
				err = errors.Join(err, carries(n, p))
			}
			return len(at) == t.pods
		})
		if until != nil {
			until = fmt.Errorf("wait until %d pods are Ready with %s: %d are: %w", t.pods, n, len(at), until)
		}
		return errors.Join(err, until)
	})
	must.OK(g.Wait())
	c.remove(ctx)
	return at, nil
}

// carries returns an error unless a pod's address belongs to the given network.
func carries(n Network, p *corev1.Pod) error {
	a, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil || referencePods.Contains(a) != (n == Reference) {
		return fmt.Errorf("pod %s has the address %q, which is not of network %s", p.Name, p.Status.PodIP, n)
	}
	return nil
}

// remove deletes the pods and their sandboxes. Kubelets would remove the sandboxes within a minute, which
// would be in a turn of the other network.
func (c *Cluster) remove(ctx context.Context) {
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	must.OK(c.Kube.Client.DeleteAllOf(ctx, &appsv1.Deployment{}, client.InNamespace(namespace), background))
	must.OK(c.Kube.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.MatchingLabels(labels)))
	must.OK(poll.Until(ctx, func() error {
		left := &corev1.PodList{}
		err := c.Kube.Client.List(ctx, left, client.InNamespace(namespace), client.MatchingLabels(labels))
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are not removed yet", len(left.Items))
		}
		return err
	}))
	for _, h := range c.hosts() {
		removeSandboxes(ctx, h)
	}
}

// removeSandboxes removes stopped sandboxes from a machine.
func removeSandboxes(ctx context.Context, h *host.Host) {
	conn := must.Get(h.CRI())
	defer conn.Close()
	r := cri.NewRuntimeServiceClient(conn)
	ended := &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_NOTREADY}}
	for _, s := range must.Get(r.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: ended})).Items {
		must.Get(r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id}))
	}
}
