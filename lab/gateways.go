package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
)

// gatewayProgram is what runs in gateways, and gatewayImage its image in a lab.
const (
	gatewayProgram  = "berth-egress"
	gatewayImage    = gatewayProgram + ":" + gatewayImageTag
	gatewayImageTag = "lab"
)

// gateways runs the pods of Egresses' Deployments as kubelets do: their network by the plugin, and their program as a
// process in it, with restarts, readiness probes and grace periods.
type gateways struct {
	lab    *Lab
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu  sync.Mutex // guards all; never held across I/O
	all map[types.UID]*Gateway
}

// Gateway is a gateway pod.
type Gateway struct {
	*proc.Process
	Egress types.NamespacedName
	Name   string // of the Pod
	UID    types.UID
	Pod    *node.Pod // its sandbox

	deleted chan struct{} // closed when the Pod is to end
	once    sync.Once
	gone    atomic.Bool // see Vanish
}

// Cut kills the gateway's program and takes its link down. Its kubelet restarts the program, which reaches nobody, and
// reports that it is not ready.
func (g *Gateway) Cut() error {
	err := ns.Netlink(g.Pod.Netns(), func(h *netlink.Handle) error {
		l, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		return h.LinkSetDown(l)
	})
	if err := errors.Join(err, g.Kill()); err != nil {
		return fmt.Errorf("cut gateway %s: %w", g.Name, err)
	}
	return nil
}

// Vanish is Cut on a node that is lost: the program is not restarted, and the API is not updated.
func (g *Gateway) Vanish() error {
	g.gone.Store(true)
	return g.Cut()
}

func newGateways(l *Lab) *gateways {
	ctx, cancel := context.WithCancel(context.Background())
	g := &gateways{lab: l, cancel: cancel, all: map[types.UID]*Gateway{}}
	g.work.Go(func() { g.watch(ctx) })
	return g
}

// Gateways are the running gateways of an Egress, by name.
func (l *Lab) Gateways(egress types.NamespacedName) []*Gateway {
	if l.gateways == nil {
		return nil
	}
	l.gateways.mu.Lock()
	defer l.gateways.mu.Unlock()
	var out []*Gateway
	for _, g := range l.gateways.all {
		if g.Egress == egress && g.Pod != nil {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b *Gateway) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// close ends all gateways at once.
func (g *gateways) close() error {
	g.cancel()
	g.work.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, one := range slices.Collect(maps.Values(g.all)) {
		if one.Process != nil {
			errs = append(errs, one.Kill())
		}
	}
	return errors.Join(errs...)
}

// watch follows gateways' Pods until ctx ends.
func (g *gateways) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := g.follow(ctx); err != nil && ctx.Err() == nil {
			g.lab.Log.Debug("watching gateways' pods again", "err", err)
			_ = poll.Pause(ctx, time.Now(), poll.Often)
		}
	}
}

func (g *gateways) follow(ctx context.Context) error {
	w, err := g.lab.Kube.Client.Watch(ctx, &corev1.PodList{}, client.HasLabels{v1alpha1.LabelEgress})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if pod, ok := e.Object.(*corev1.Pod); ok {
			g.see(ctx, e.Type, pod)
		}
	}
	return nil
}

// see handles an event of a Pod.
func (g *gateways) see(ctx context.Context, what watch.EventType, pod *corev1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pod.UID]
	switch {
	case one != nil && (what == watch.Deleted || pod.DeletionTimestamp != nil):
		one.once.Do(func() { close(one.deleted) })
	case one == nil && what != watch.Deleted && pod.Spec.NodeName != "":
		one = &Gateway{
			Egress: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelEgress]},
			Name:   pod.Name, UID: pod.UID, deleted: make(chan struct{}),
		}
		if pod.DeletionTimestamp != nil {
			one.once.Do(func() { close(one.deleted) })
		}
		g.all[pod.UID] = one
		g.work.Go(func() {
			if err := g.run(ctx, one, pod.DeepCopy()); err != nil && ctx.Err() == nil {
				g.lab.note(fmt.Errorf("gateway %s/%s: %w", pod.Namespace, pod.Name, err))
			}
		})
	}
}

// run is the life of a gateway's pod.
func (g *gateways) run(ctx context.Context, one *Gateway, pod *corev1.Pod) error {
	wanted, forget := context.WithCancel(ctx)
	defer forget()
	go func() {
		select {
		case <-one.deleted:
			forget()
		case <-wanted.Done():
		}
	}()
	n := g.node(wanted, pod.Spec.NodeName)
	if n == nil {
		return nil
	}
	sandbox, err := n.AddPod(wanted, gatewaySandbox(pod), node.PodOptions{
		Namespace: pod.Namespace, Annotations: pod.Annotations, Object: &node.PodObject{Name: pod.Name, UID: string(pod.UID)},
	})
	if err == nil {
		err = g.start(wanted, one, pod, sandbox)
	}
	if err == nil {
		err = g.serve(ctx, one, pod, n)
	}
	if wanted.Err() != nil && ctx.Err() == nil {
		err = nil // what was under way when it was deleted
	}
	if g.gone(n) {
		err = nil // all that was under way
	}
	return errors.Join(err, g.end(ctx, one, pod, n, sandbox))
}

// node waits for a node by name: a Pod may be bound to one that was just lost. It returns nil when ctx ends first.
func (g *gateways) node(ctx context.Context, name string) *node.Node {
	for {
		if n, err := g.lab.Node(name); err == nil {
			return n
		}
		if poll.Pause(ctx, time.Now(), poll.Often) != nil {
			return nil
		}
	}
}

// gone reports whether a node was lost.
func (g *gateways) gone(n *node.Node) bool {
	now, err := g.lab.Node(n.Name)
	return err != nil || now != n
}

// gatewaySandbox is the name of a pod on its node.
func gatewaySandbox(pod *corev1.Pod) string { return "gw-" + string(pod.UID)[:8] }

// start starts the gateway's program in its sandbox, and reports the pod's addresses.
func (g *gateways) start(ctx context.Context, one *Gateway, pod *corev1.Pod, sandbox *node.Pod) error {
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Image == gatewayImage })
	if i < 0 {
		return fmt.Errorf("no container has the image %s", gatewayImage)
	}
	container := pod.Spec.Containers[i]
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, sandbox.Addr().String()
	for _, a := range sandbox.Addrs {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	kubeconfig := filepath.Join(g.lab.Kube.dir, pod.Name+".kubeconfig")
	account := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}
	var token string
	// While its Egress is being deleted the account may be gone before the pod is.
	err := poll.Retry(ctx, func() (err error) {
		token, err = g.lab.Kube.Token(ctx, account, pod)
		return err
	}, func(error) bool { return true })
	if err != nil {
		return err
	}
	if err := kube.WriteKubeconfig(kubeconfig, g.lab.Kube.ConfigWithToken(token)); err != nil {
		return err
	}
	env, err := environment(pod, container)
	if err != nil {
		return err
	}
	env = append(env, "BERTH_KUBECONFIG="+kubeconfig)
	program := proc.New("gateway "+pod.Name, filepath.Join(g.lab.Dir, "log", pod.Name+".log"), func() proc.Command {
		return proc.Command{
			Path: filepath.Join(g.lab.BinDir, gatewayProgram), Args: container.Args, Env: env, Netns: sandbox.Netns(), Capabilities: capabilities(container),
		}
	})
	g.mu.Lock()
	one.Process, one.Pod = program, sandbox
	g.mu.Unlock()
	return program.Start()
}

// capabilities are those of a container, which drops all that it does not add.
func capabilities(c corev1.Container) (names []string) {
	for _, name := range c.SecurityContext.Capabilities.Add {
		names = append(names, strings.ToLower(string(name)))
	}
	return names
}

// environment are the variables of a container, those of the downward API included.
func environment(pod *corev1.Pod, c corev1.Container) (env []string, err error) {
	var ips, hosts []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	for _, ip := range pod.Status.HostIPs {
		hosts = append(hosts, ip.IP)
	}
	fields := map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
		"status.podIP": pod.Status.PodIP, "status.podIPs": strings.Join(ips, ","), "status.hostIPs": strings.Join(hosts, ","), "spec.nodeName": pod.Spec.NodeName,
	}
	for _, v := range c.Env {
		value := v.Value
		if v.ValueFrom != nil {
			known := false
			if of := v.ValueFrom.FieldRef; of != nil {
				value, known = fields[of.FieldPath]
			}
			if !known {
				return nil, fmt.Errorf("variable %s: the lab does not know what it is from", v.Name)
			}
		}
		env = append(env, v.Name+"="+value)
	}
	return env, nil
}

// serve runs a gateway and reports its readiness until its pod was deleted and its program has ended, its node is
// lost, or ctx ends.
func (g *gateways) serve(ctx context.Context, one *Gateway, pod *corev1.Pod, n *node.Node) error {
	ready, answered := false, time.Now()
	if err := g.report(ctx, pod, ready); err != nil {
		return err
	}
	var ended chan error
	deleted := one.deleted
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-deleted:
			deleted, ended = nil, make(chan error, 1)
			go func() { ended <- one.Stop(gracePeriod(pod)) }()
			continue
		case err := <-ended:
			if err != nil {
				g.lab.Log.Debug("gateway killed at the end of its grace period", "gateway", one.Name, "err", err)
			}
			return nil
		case <-tick.C:
		}
		if g.gone(n) {
			return nil
		}
		if one.gone.Load() {
			continue
		}
		if one.EndedByItself() || !one.Running() && ended == nil {
			g.restart(one)
		}
		now := probed(ctx, n, one.Pod, pod)
		if now {
			answered = time.Now()
		}
		if now == ready || !now && time.Since(answered) < patience(pod) || one.gone.Load() || g.gone(n) {
			continue
		}
		if err := g.report(ctx, pod, now); err != nil {
			g.lab.Log.Debug("gateway not reported", "gateway", one.Name, "err", err)
			continue
		}
		ready = now
	}
}

func (g *gateways) restart(one *Gateway) {
	if err := one.Start(); err != nil {
		g.lab.Log.Debug("gateway not restarted", "gateway", one.Name, "err", err)
	}
}

// gracePeriod is a pod's, or the default of Kubernetes.
func gracePeriod(pod *corev1.Pod) time.Duration {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// probeInterval is the period of readiness probes; a kubelet's is a second or more.
const probeInterval = 250 * time.Millisecond

// patience is how long a kubelet lets a gateway's readiness probe fail.
func patience(pod *corev1.Pod) time.Duration {
	for _, c := range pod.Spec.Containers {
		if p := c.ReadinessProbe; c.Image == gatewayImage && p != nil {
			return time.Duration(p.FailureThreshold*p.PeriodSeconds) * time.Second
		}
	}
	return 0
}

// probed asks a gateway's readiness probe from its node, as a kubelet does.
func probed(ctx context.Context, n *node.Node, sandbox *node.Pod, pod *corev1.Pod) bool {
	for _, c := range pod.Spec.Containers {
		if c.Image != gatewayImage || c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet == nil {
			continue
		}
		get := c.ReadinessProbe.HTTPGet
		port := get.Port.IntValue()
		for _, p := range c.Ports {
			if p.Name == get.Port.StrVal {
				port = int(p.ContainerPort)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := ns.Get(ctx, n.Netns, "http://"+netip.AddrPortFrom(sandbox.Addr(), uint16(port)).String()+get.Path)
		return err == nil
	}
	return true
}

// report writes a Pod's status as its kubelet does.
func (g *gateways) report(ctx context.Context, pod *corev1.Pod, ready bool) error {
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	now := &corev1.Pod{}
	err := poll.Retry(ctx, func() error {
		if err := g.lab.Kube.Client.Get(ctx, client.ObjectKeyFromObject(pod), now); err != nil {
			return err
		}
		if now.UID != pod.UID {
			return nil
		}
		now.Status.Phase, now.Status.PodIP, now.Status.PodIPs = pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs
		var conditions []corev1.PodCondition
		for _, c := range now.Status.Conditions {
			if c.Type != corev1.PodReady && c.Type != corev1.ContainersReady {
				conditions = append(conditions, c)
			}
		}
		for _, t := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
			conditions = append(conditions, corev1.PodCondition{Type: t, Status: is, LastTransitionTime: metav1.Now()})
		}
		now.Status.Conditions = conditions
		return g.lab.Kube.Client.Status().Update(ctx, now)
	}, func(err error) bool { return client.IgnoreNotFound(err) != nil })
	return client.IgnoreNotFound(err)
}

// end removes a gateway's sandbox and Pod.
func (g *gateways) end(ctx context.Context, one *Gateway, pod *corev1.Pod, n *node.Node, sandbox *node.Pod) error {
	g.mu.Lock()
	program := one.Process
	g.mu.Unlock()
	var errs []error
	if program != nil {
		errs = append(errs, program.Kill())
	}
	if ctx.Err() != nil {
		return errors.Join(errs...) // the lab goes, with all there is on its nodes
	}
	var err error
	if !g.gone(n) { // else its node went, with all its pods
		if sandbox != nil {
			errs = append(errs, n.DelPod(ctx, sandbox.Name))
		}
		err = poll.Retry(ctx, func() error {
			return g.lab.Kube.Client.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}},
				client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
		}, kube.Unavailable)
	}
	g.mu.Lock()
	delete(g.all, pod.UID)
	g.mu.Unlock()
	return errors.Join(append(errs, ignoreOther(err))...)
}

// ignoreOther ignores errors for an object that is gone, or replaced by another of its name.
func ignoreOther(err error) error {
	if err == nil || client.IgnoreNotFound(err) == nil || strings.Contains(err.Error(), "Precondition failed") {
		return nil
	}
	return err
}
