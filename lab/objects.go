package lab

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// nodeObjects maintains Nodes and Pods in the API in place of kubelets, a scheduler and a cloud controller.
type nodeObjects struct {
	options    Options
	kube       *Cluster
	beside     bool              // pods have ports in addition to the interface of the mode
	namespaces map[string]string // annotations of Pods created for pods
	reports    *reports
}

// NodeLost simulates the loss of a node: its Node becomes not ready, and its Pods are deleted.
func (c *Cluster) NodeLost(name string) { c.nodes.stopped(name) }

// RegisterNode creates the Node of a running node again, as its kubelet does.
func (c *Cluster) RegisterNode(ctx context.Context, name string) error {
	return c.nodes.register(ctx, hostNode(name))
}

// equip prepares a node for the cluster: its daemon gets the address of the API and, unless it calls EC2 itself, no
// address of EC2. Its pods become API objects.
func (c *nodeObjects) equip(o *node.Options) {
	if c.options.Mode != NodeMode {
		o.EC2URL = ""
	}
	var args []string
	switch {
	case c.options.Mode == OperatorMode:
		args = []string{"--ipam=eni-operator", "--auto-create-node-network"}
	case !c.options.Mode.HasEC2():
		args = []string{"--ipam=" + string(c.options.Mode)}
	}
	if c.beside {
		args = append(args, "--vpc-ports")
	}
	if c.options.Egress {
		args = append(args, "--egress")
	}
	if c.options.NetworkPolicies {
		args = append(args, "--network-policies", "--network-policy-token="+policyToken(o.Dir), "--network-policy-dir="+filepath.Join(o.Dir, "var", "lib", "berth"))
	}
	if c.options.NodeNetworkTemplates {
		args = append(args, "--node-network-templates")
	}
	o.Args = slices.Concat(args, []string{"--kubeconfig=" + daemonKubeconfig(o.Dir)}, o.Args)
	o.Objects = &podObjects{cluster: c, node: o.Name, uids: map[podKey]string{}}
}

func daemonKubeconfig(nodeDir string) string {
	return filepath.Join(nodeDir, "etc", "kubernetes", "berthd.kubeconfig")
}

// policyToken is the file of the token with which a node's daemon calls the operator.
func policyToken(nodeDir string) string {
	return filepath.Join(nodeDir, "etc", "kubernetes", "network-policies.token")
}

// join registers a machine and writes its daemon's kubeconfig.
func (c *nodeObjects) join(m *machine, n *corev1.Node) {
	m.joined = make(chan struct{})
	c.reports.add("register node "+m.Name, func(ctx context.Context) error {
		if err := c.register(ctx, n.DeepCopy()); err != nil {
			return err
		}
		pod, err := c.kube.Workloads.DaemonPod(m.Name)
		if err != nil {
			return err
		}
		if err := c.kube.Client.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		if err := c.kube.kubeconfig(ctx, daemonKubeconfig(m.Dir), daemonAccount, m.Name); err != nil {
			return err
		}
		if c.options.NetworkPolicies {
			token, err := c.kube.NodeToken(ctx, daemonAccount, m.Name, wire.Audience)
			if err != nil {
				return err
			}
			if err := os.WriteFile(policyToken(m.Dir), []byte(token), 0o600); err != nil {
				return fmt.Errorf("write the token for network policies: %w", err)
			}
		}
		close(m.joined)
		return nil
	})
}

// stopped reports that a machine was powered off: its pods are deleted, and its Node is not ready.
func (c *nodeObjects) stopped(name string) {
	c.reports.add("report that node "+name+" is off", func(ctx context.Context) error {
		if err := c.setReady(ctx, name, corev1.ConditionUnknown); client.IgnoreNotFound(err) != nil {
			return err
		}
		return c.removePods(ctx, name)
	})
}

// terminated removes the Node of a terminated machine.
func (c *nodeObjects) terminated(name string) {
	c.reports.add("remove node "+name, func(ctx context.Context) error { return c.unregister(ctx, name) })
}

// nodeOf returns the Node of an instance, as its kubelet creates it.
func nodeOf(name string, i vpc.Instance) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelInstanceTypeStable: i.Type, corev1.LabelTopologyZone: i.Zone,
		}},
		Spec: corev1.NodeSpec{ProviderID: "aws:///" + i.Zone + "/" + i.ID},
	}
}

// register creates the Node of a new machine.
func (c *nodeObjects) register(ctx context.Context, n *corev1.Node) error {
	if err := c.kube.Client.Create(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return c.setReady(ctx, n.Name, corev1.ConditionTrue)
}

// setReady sets a Node's condition Ready.
func (c *nodeObjects) setReady(ctx context.Context, name string, status corev1.ConditionStatus) error {
	n := &corev1.Node{}
	if err := c.kube.Client.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return err
	}
	pods := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
	n.Status.Capacity, n.Status.Allocatable = pods, pods
	now := metav1.Now()
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: status, Reason: "Lab", LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	return c.kube.Client.Status().Update(ctx, n)
}

// unregister deletes the Node of a terminated instance and its Pods, as a cloud controller and the pod collector do.
func (c *nodeObjects) unregister(ctx context.Context, name string) error {
	err := c.kube.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return c.removePods(ctx, name)
}

// removePods deletes the Pods that are bound to a node, without a grace period, which no kubelet would end.
func (c *nodeObjects) removePods(ctx context.Context, node string) error {
	pods := &corev1.PodList{}
	if err := c.kube.Client.List(ctx, pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return err
	}
	for i := range pods.Items {
		if err := c.kube.Client.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// podObjects manages the Pods of a node's pods. It implements node.PodObjects.
type podObjects struct {
	cluster *nodeObjects
	node    string

	mu   sync.Mutex        // guards uids; never held across I/O
	uids map[podKey]string // of bound pods
}

type podKey struct{ namespace, name string }

var _ node.PodObjects = (*podObjects)(nil)

// objectName returns a pod's name in the API: names in the lab are only unique within a node.
func (o *podObjects) objectName(name string) string { return name + "-" + o.node }

func (o *podObjects) meta(k podKey) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: k.namespace, Name: o.objectName(k.name)}
}

// Bind implements node.PodObjects. It waits while an object with the name is being deleted, and while the API server is
// down.
func (o *podObjects) Bind(ctx context.Context, name string, of node.PodOptions) (uid, objectName string, err error) {
	k := podKey{of.Namespace, name}
	o.mu.Lock()
	uid = o.uids[k]
	o.mu.Unlock()
	if uid != "" {
		return uid, o.objectName(name), nil
	}
	pod := &corev1.Pod{
		ObjectMeta: o.meta(k),
		Spec: corev1.PodSpec{
			NodeName:   o.node,
			Containers: []corev1.Container{{Name: "echo", Image: "echo"}},
		},
	}
	pod.Labels, pod.Annotations = of.Labels, maps.Clone(of.Annotations)
	for _, p := range of.Named {
		port := corev1.ContainerPort{Name: p.Name, ContainerPort: int32(p.Port), Protocol: corev1.Protocol(p.Protocol)}
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, port)
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, bindingAnnotation, rand.Text())
	err = poll.Retry(ctx, func() error { return o.cluster.create(ctx, pod.DeepCopy(), &uid) }, func(err error) bool {
		return apierrors.IsAlreadyExists(err) || kube.Unavailable(err) // an object is gone once its deletion has been sent
	})
	if err != nil {
		return "", "", fmt.Errorf("bind pod %s/%s to %s: %w", of.Namespace, name, o.node, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.uids[k] = uid
	return uid, o.objectName(name), nil
}

// bindingAnnotation identifies the request that created an object: its reply may be lost, and another object with the
// name may exist.
const bindingAnnotation = "vpclab/binding"

// create creates a pod, unless an earlier request has created it, and its namespace if missing.
func (c *nodeObjects) create(ctx context.Context, pod *corev1.Pod, uid *string) error {
	binding := pod.Annotations[bindingAnnotation]
	err := c.kube.Client.Create(ctx, pod)
	if apierrors.IsNotFound(err) {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, Annotations: c.namespaces}}
		if err := c.kube.Client.Create(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		err = c.kube.Client.Create(ctx, pod)
	}
	if apierrors.IsAlreadyExists(err) {
		there := &corev1.Pod{}
		if getErr := c.kube.Client.Get(ctx, client.ObjectKeyFromObject(pod), there); getErr == nil && there.Annotations[bindingAnnotation] == binding {
			pod, err = there, nil
		}
	}
	*uid = string(pod.UID)
	return err
}

// Running implements node.PodObjects.
func (o *podObjects) Running(p *node.Pod) {
	what := fmt.Sprintf("report that pod %s runs on %s", p.Name, o.node)
	o.cluster.reports.add(what, func(ctx context.Context) error {
		pod := &corev1.Pod{}
		key := client.ObjectKey{Namespace: p.Namespace, Name: p.ObjectName}
		if err := o.cluster.kube.Client.Get(ctx, key, pod); err != nil {
			return client.IgnoreNotFound(err) // it was deleted
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIPs = nil
		for _, a := range p.Addrs {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
		pod.Status.PodIP = p.Addr().String()
		return client.IgnoreNotFound(o.cluster.kube.Client.Status().Update(ctx, pod))
	})
}

// Gone implements node.PodObjects.
func (o *podObjects) Gone(namespace, name string) {
	k := podKey{namespace, name}
	o.mu.Lock()
	delete(o.uids, k)
	o.mu.Unlock()
	o.cluster.reports.add(fmt.Sprintf("remove pod %s of %s", name, o.node), func(ctx context.Context) error {
		return client.IgnoreNotFound(o.cluster.kube.Client.Delete(ctx, &corev1.Pod{ObjectMeta: o.meta(k)}, client.GracePeriodSeconds(0)))
	})
}

// AnnotatePod annotates a pod once it is running, as a user does.
func (c *Cluster) AnnotatePod(ctx context.Context, p *node.Pod, key, value string) error {
	err := poll.Until(ctx, func() error {
		o := &corev1.Pod{}
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: p.ObjectName}, o)
		if err == nil && o.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("pod is %s", o.Status.Phase)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait until pod %s/%s is running: %w", p.Namespace, p.ObjectName, err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err != nil {
		return err
	}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.ObjectName}}
	if err := c.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotate pod %s/%s: %w", p.Namespace, p.ObjectName, err)
	}
	return nil
}

// BindPods creates Pods in namespace "default", bound to a node, before the pods themselves are added.
func BindPods(ctx context.Context, n *node.Node, names ...string) error {
	if n.Objects == nil {
		return errors.New("bind pods: node mode has no Pod objects")
	}
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { _, _, errs[i] = n.Objects.Bind(ctx, name, node.PodOptions{Namespace: "default"}) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
