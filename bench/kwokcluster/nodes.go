package kwokcluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/internal/source/nodenetworksupplier"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/kube"
)

// writers is the number of concurrent writes of nodes and pods.
const writers = 16

// simulatedNode is a node of KWOK with a part of berthd.
type simulatedNode struct {
	name   string
	source *enisource.Source

	mu     sync.Mutex // guards all below
	pods   []*corev1.Pod
	served time.Time // when a pod got an address first
}

// join creates the simulated nodes with a pod each, and returns once all these pods have addresses.
func (c *cluster) join(ctx context.Context) {
	live := ctx
	snapshot := c.lab.Snapshot()
	for _, i := range snapshot.Instances {
		if c.lab.Simulated(i.Name) {
			c.nodes = append(c.nodes, &simulatedNode{name: i.Name})
		}
	}
	// The operator's process runs beside the machines; its pod is on a node that KWOK makes Ready.
	must.OK(c.lab.Kube.Client.Create(ctx, must.Get(c.lab.Kube.Workloads.OperatorPod(c.nodes[0].name))))
	must.OK(objects.Each(ctx, len(c.nodes), writers, func(ctx context.Context, i int) error {
		n := c.nodes[i]
		instance, _ := snapshot.Instance(c.lab.Cloud.Instances.ID(n.name))
		c.boot(ctx, live, n, instance)
		c.addPod(ctx, live, n)
		return nil
	}))
	c.await(ctx)
}

// boot creates a Node and starts its daemon, which creates the NodeNetwork.
func (c *cluster) boot(ctx, live context.Context, n *simulatedNode, i vpc.Instance) {
	must.OK(c.lab.Kube.Client.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.name, Annotations: map[string]string{kwokNode: simulated},
			Labels: map[string]string{
				corev1.LabelHostname: n.name, corev1.LabelInstanceTypeStable: i.Type, corev1.LabelTopologyZone: i.Zone,
				corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			},
		},
		Spec:   corev1.NodeSpec{ProviderID: "aws:///" + i.Zone + "/" + i.ID},
		Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
	}))
	must.OK(c.lab.Kube.Client.Create(ctx, must.Get(c.lab.Kube.Workloads.DaemonPod(n.name))))
	token := must.Get(c.lab.Kube.NodeToken(ctx, types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "berthd"}, n.name))
	cfg := rest.CopyConfig(c.daemon)
	cfg.BearerToken = token
	file := filepath.Join(c.dir, n.name+".kubeconfig")
	must.OK(kube.WriteKubeconfig(file, cfg))
	n.source = must.Get(nodenetworksupplier.New(nodenetworksupplier.Config{
		NodeName: n.name, Kubeconfig: file, InstanceID: i.ID, Datapath: links{}, Cooling: ipam.DefaultCooling,
		Spec: &v1alpha1.NodeNetworkSpec{
			InstanceID: i.ID, InstanceType: i.Type, ENI: v1alpha1.ENISpec{VPCID: i.VPCID, AvailabilityZone: i.Zone},
		},
	}))
	c.running.Go(func() { c.ended(live, n.source.Run(live)) })
}

var capacity = corev1.ResourceList{
	corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
}

// ended records the error of a simulated daemon or of a pod, unless the run has ended.
func (c *cluster) ended(live context.Context, err error) {
	if err == nil || live.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = errors.Join(c.failed, err)
}

// addPod creates a pod on a node, and has its address acquired as by the node's container runtime.
func (c *cluster) addPod(ctx, live context.Context, n *simulatedNode) {
	c.mu.Lock()
	c.serial++
	p := podOf(n.name, c.serial)
	c.waiting++
	c.mu.Unlock()
	must.OK(c.lab.Kube.Client.Create(ctx, p))
	n.mu.Lock()
	n.pods = append(n.pods, p)
	n.mu.Unlock()
	c.running.Go(func() {
		_, err := n.source.Acquire(live, source.Request{
			Key: sandbox(p), Pod: attachment.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)},
		})
		if err != nil {
			err = fmt.Errorf("pod %s on %s: %w", p.Name, n.name, err)
		}
		c.ended(live, err)
		n.mu.Lock()
		if n.served.IsZero() {
			n.served = time.Now()
		}
		n.mu.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waiting--
	})
}

// removePod deletes the oldest pod of a node. KWOK removes it like a kubelet.
func (c *cluster) removePod(ctx context.Context, n *simulatedNode) {
	n.mu.Lock()
	p := n.pods[0]
	n.pods = n.pods[1:]
	n.mu.Unlock()
	must.OK(c.lab.Kube.Client.Delete(ctx, p))
	n.source.Release(sandbox(p))
}

func sandbox(p *corev1.Pod) attachment.Key {
	return attachment.Key{Network: "berth", ContainerID: string(p.UID), IfName: "eth0"}
}

// podOf returns a pod of a Deployment, as the API server stores it after its scheduling.
func podOf(node string, serial int) *corev1.Pod {
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("256Mi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("web-6d4cf56db6-%06d", serial),
			Labels: map[string]string{"app": "web", "pod-template-hash": "6d4cf56db6"},
		},
		Spec: corev1.PodSpec{
			NodeName: node,
			Containers: []corev1.Container{{
				Name: "web", Image: "registry.example/web:1.0", Resources: corev1.ResourceRequirements{Requests: limits, Limits: limits},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			}},
		},
	}
}

func keyOf(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

// links is a data path that has the link of every ENI.
type links struct{}

func (links) SetENI(context.Context, eni.ENI) error                              { return nil }
func (links) RemoveENI(context.Context, string) error                            { return nil }
func (links) ChangedLinks(context.Context) (map[string]source.LinkChange, error) { return nil, nil }
