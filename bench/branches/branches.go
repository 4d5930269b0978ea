// Package branches creates many pods at once that each need an EC2 branch interface on the same node,
// runs the operator's own controller, and compares the time with the minimum that EC2's rate limits
// impose. EC2 with its limits, behind Berth's limiter, and the Kubernetes API are in memory, in
// virtual time.
package branches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/bench/ports"
	"github.com/berthnet/berth/bench/scale"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

// Order is one run: pods that are created at once.
type Order struct {
	Pods   int
	Limits scale.Limits
}

// Outcome is what a run measured. Times count from the creation of the pods, which are scheduled already.
type Outcome struct {
	Bound, Median time.Duration // when the last PodNIC, and half of them, reported their ports as bound
	// MinBound is the lower bound of Bound that EC2's limits impose: two calls per pod, one that
	// creates an interface and one that associates it with the node's trunk.
	MinBound  time.Duration
	Calls     map[string]int // that EC2 granted
	Throttled int            // that it throttled
}

// Job is this kind of run.
var Job = bubble.Job[Order, Outcome]{Name: "branches", Do: run}

const (
	clusterName  = "bench"
	vpcName      = "pods"
	namespace    = "shop"
	node         = "node-1"
	instance     = "i-00000000000000001"
	instanceType = "m5.4xlarge"
	zone         = "lab-1a"
	subnet       = "subnet-1"
	group        = "sg-web"
)

// deadline limits a run, in virtual time.
const deadline = time.Hour

func run(ctx context.Context, o Order) (out Outcome, err error) {
	api, err := ports.NewAPI()
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	amazon := cloudfake.New(o.Limits.Options())
	amazon.State.AddSubnet(subnet, zone, "10.0.0.0/16", nil)
	amazon.State.AddSecurityGroup(group, nil)
	amazon.State.AddInstance(instance, instanceType, subnet)
	amazon.State.AddENI(instance, 1, cloud.InterfaceTrunk, map[string]string{eni.TagCluster: clusterName, eni.TagOwner: eni.Owner, eni.TagInstanceID: instance})
	vpc, err := createObjects(ctx, api)
	if err != nil {
		return out, err
	}
	ended := make(chan error, 1)
	go func() { ended <- operate(ctx, api, pace.Cloud(amazon, pace.Options{}), vpc) }()
	<-time.After(time.Minute) // until all watches are established and all token buckets are full
	before := granted(amazon)
	bound, err := burst(ctx, o, api)
	cancel()
	err = errors.Join(err, <-ended)
	<-time.After(time.Hour) // until remaining timers have fired
	if err != nil {
		return out, err
	}
	slices.Sort(bound)
	out.Bound, out.Median = bound[len(bound)-1], bound[(len(bound)-1)/2]
	out.MinBound = max(2*o.Limits.Delay, o.Limits.MinDuration(map[string]int{pace.CreateENI.Action: o.Pods, pace.AssociateBranch.Action: o.Pods}))
	out.Calls = map[string]int{}
	for action, s := range amazon.Front.Stats() {
		out.Calls[action] = s.Calls - s.Refused - before[action]
		out.Throttled += s.Refused
	}
	return out, nil
}

// granted counts the calls that EC2 did not throttle, by action.
func granted(amazon *cloudfake.Cloud) map[string]int {
	out := map[string]int{}
	for action, s := range amazon.Front.Stats() {
		out[action] = s.Calls - s.Refused
	}
	return out
}

// createObjects creates the objects that exist before the pods. No branch is kept warm.
func createObjects(ctx context.Context, api *memapi.API) (*v1alpha1.VPC, error) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{ProviderID: "aws:///" + zone + "/" + instance}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Capacity = corev1.ResourceList{v1alpha1.ResourceBranches: *resource.NewQuantity(int64(limits.Branches(instanceType)), resource.DecimalSI)}
	v := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: vpcName}, Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderEC2, Network: cloudfake.VPC, DefaultSecurityGroups: []string{group},
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{namespace}}, EC2: &v1alpha1.EC2Spec{WarmBranches: new(int32(0))},
	}}
	if err := errors.Join(
		api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}), api.Create(ctx, n), api.Create(ctx, v),
	); err != nil {
		return nil, fmt.Errorf("create the Namespace, the Node and the VPC: %w", err)
	}
	return v, nil
}

// operate runs the controller until ctx ends. Calls pass through both limiters, as in production.
func operate(ctx context.Context, api *memapi.API, amazon cloud.API, v *v1alpha1.VPC) error {
	p := branch.Open(branch.Settings{Cloud: amazon, Cluster: clusterName, VPC: cloudfake.VPC})
	network, err := p.Network(ctx, cloudfake.VPC)
	if err != nil {
		return err
	}
	through := lanes.New(lanes.Options{Calls: p.Traits().AtOnce}).Provider(p, nil)
	return ports.Operate(ctx, api, clusterName, podnics.Opened{UID: string(v.UID), Provider: through, Network: network, Spec: v.Spec})
}

// burst creates the pods, scheduled to the node, and returns when each of their PodNICs reported its
// port as bound.
func burst(ctx context.Context, o Order, api *memapi.API) (bound []time.Duration, err error) {
	w, err := api.Watch(ctx, &v1alpha1.PodNICList{})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	began := time.Now()
	var creating sync.WaitGroup
	defer creating.Wait()
	failed := make(chan error, 1)
	creating.Go(func() {
		if err := objects.Each(ctx, o.Pods, o.Pods, func(ctx context.Context, i int) error { return api.Create(ctx, newPod(i)) }); err != nil {
			failed <- err
		}
	})
	seen := map[string]bool{}
	for len(seen) < o.Pods {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("of %d PodNICs, %d are bound: %w", o.Pods, len(seen), context.Cause(ctx))
		case err := <-failed:
			return nil, err
		case e := <-w.ResultChan():
			if n, is := e.Object.(*v1alpha1.PodNIC); is && n.Status.Plug != nil && !seen[n.Name] {
				seen[n.Name] = true
				bound = append(bound, time.Since(began))
			}
		}
	}
	return bound, nil
}

func newPod(i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("web-%03d", i), Annotations: map[string]string{v1alpha1.AnnotationVPC: vpcName},
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}
	p.Status.Phase = corev1.PodPending
	return p
}
