package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/operator/nodeenis"
)

// A takeover is the start of an operator in a cluster that another one has served: its controller of NodeNetworks and
// its allocator, on a Kubernetes API and an EC2 in memory. Each node has 30 pods, 38 addresses and three ENIs.
const (
	podsOfNode, freeOfNode = 30, 8
	onSecondENI            = 29 // as many as it takes
	waitingNodes           = 10 // have no free address, and a pod that waits
)

// TakeoverOrder is one takeover.
type TakeoverOrder struct {
	Nodes int
	Page  time.Duration // duration of each EC2 call, of which each page of a listing is one
	// Template creates a template for all nodes after the takeover, whose settings the operator records in each object.
	Template bool
	// Real measures First, Last and Full in real time, on this machine's processors, and nothing else.
	Real bool
}

// Takeover is what a takeover measured. A time is virtual time, in which only EC2 calls and Berth's own delays take time,
// plus the CPU time of the process until then, as if one processor did everything in turn. With Real, it is real time.
type Takeover struct {
	First, Last time.Duration // until the first and the last of the nodes with a waiting pod have more addresses
	Full        time.Duration // until all nodes are observed
	FullCPU     time.Duration // included in Full
	Heap        uint64        // of the operator at rest, with its caches
	Listing     time.Duration // a listing of all ENIs at rest
	ListingHeap uint64        // held at its end, in addition to Heap
	Pages       int           // calls of a listing at rest
	Writes      map[string]int
	// BusiestSecond is the largest number of writes in a second after the template was created, Settled the time until the
	// last one.
	BusiestSecond int
	Settled       time.Duration
}

// TakeoverJob is this kind of run.
var TakeoverJob = bubble.Job[TakeoverOrder, Takeover]{Name: "takeover", Do: runTakeover, Real: func(o TakeoverOrder) bool { return o.Real }}

// takeover is the state of a run, and observes the fleet.
type takeover struct {
	TakeoverOrder
	ec2     *ec2
	api     *memapi.API
	waiting []string
	began   time.Time
	cpu     time.Duration // of the process, at the beginning

	mu           sync.Mutex // guards all below
	observed     map[string]bool
	out          Takeover
	atRest       uint64 // heap size, if listings are measured
	listedAtRest bool   // a listing has ended since then, so the next one is entirely at rest
}

func runTakeover(ctx context.Context, o TakeoverOrder) (Takeover, error) {
	t := &takeover{TakeoverOrder: o, ec2: newEC2(Order{Nodes: o.Nodes}, nil), observed: map[string]bool{}}
	var err error
	t.api, err = memapi.New(
		memapi.Kind{Object: &v1alpha1.NodeNetwork{}, Cluster: true, Status: true}, memapi.Kind{Object: &v1alpha1.NodeNetworkTemplate{}, Cluster: true},
		memapi.Kind{Object: &corev1.Node{}, Cluster: true, Status: true}, memapi.Kind{Object: &corev1.Pod{}, Status: true},
	)
	if err != nil {
		return Takeover{}, err
	}
	for i := range o.Nodes {
		if err := t.addNode(ctx, i); err != nil {
			return Takeover{}, err
		}
	}
	t.ec2.Front.ResetCalls()
	t.ec2.Front.ResetStats()
	t.ec2.Front.SetLatency("", o.Page)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, ctx := bubble.NewParts(ctx)
	t.began, t.cpu = time.Now(), bubble.CPU()
	parts.Start("the operator", t.operate)
	err = t.measure(ctx)
	cancel()
	if t.Real { // the process ends
		return t.out, err
	}
	if err = errors.Join(parts.Wait(), err); err != nil {
		return Takeover{}, err
	}
	t.out.Writes = t.api.Written()
	t.out.Heap -= min(t.out.Heap, bubble.LiveHeap()) // the operator has stopped: what remains belongs to the cluster
	runtime.KeepAlive(t)
	return t.out, nil
}

// operate runs the operator's parts until ctx ends.
func (t *takeover) operate(ctx context.Context) error {
	f, err := fleet.New(fleet.Config{Cluster: clusterName, Cloud: t.ec2.paced, Observer: t})
	if err != nil {
		return err
	}
	noIndex := func(context.Context, client.FieldIndexer) error { return nil }
	return memapi.Operate(ctx, t.api, nodeenis.Watches(), noIndex, func(mgr manager.Manager) error {
		_, err := nodeenis.Setup(mgr, nodeenis.Options{Fleet: f})
		return errors.Join(err, mgr.Add(manager.RunnableFunc(f.Run)))
	})
}

func (t *takeover) measure(ctx context.Context) error {
	const most = time.Hour
	for time.Since(t.began) < most && ctx.Err() == nil {
		served, err := t.served(ctx)
		if err != nil {
			return err
		}
		t.mu.Lock()
		now := t.elapsed()
		if served > 0 && t.out.First == 0 {
			t.out.First = now
		}
		if served == len(t.waiting) && t.out.Last == 0 {
			t.out.Last = now
		}
		if len(t.observed) == t.Nodes && t.out.Full == 0 {
			t.out.Full, t.out.FullCPU = now, now-time.Since(t.began)
		}
		done := t.out.Last > 0 && t.out.Full > 0
		t.mu.Unlock()
		if done && t.Real {
			return nil
		}
		if done {
			return t.rest(ctx)
		}
		<-time.After(500 * time.Millisecond)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx) // the operator's error
	}
	return fmt.Errorf("after %v %d of %d nodes are observed", most, len(t.observed), t.Nodes)
}

// elapsed returns the virtual time and the CPU time so far, without that of the EC2 in memory, or the real time.
func (t *takeover) elapsed() time.Duration {
	if t.Real {
		return time.Since(t.began)
	}
	return time.Since(t.began) + bubble.CPU() - t.cpu - t.ec2.Front.CPU()
}

// served returns how many of the nodes with a waiting pod have more addresses.
func (t *takeover) served(ctx context.Context) (n int, err error) {
	for _, name := range t.waiting {
		o := &v1alpha1.NodeNetwork{}
		if err := t.api.Get(ctx, client.ObjectKey{Name: name}, o); err != nil {
			return 0, err
		}
		if len(o.Spec.IPAM.Available) > podsOfNode+freeOfNode {
			n++
		}
	}
	return n, nil
}

// rest measures the operator at rest, and then the writes that a template causes.
func (t *takeover) rest(ctx context.Context) error {
	<-time.After(3 * time.Minute)
	heap := bubble.LiveHeap()
	t.mu.Lock()
	t.out.Heap, t.atRest, t.listedAtRest = heap, heap, false
	t.mu.Unlock()
	for t.listing() == 0 {
		<-time.After(time.Second)
	}
	if !t.Template {
		return nil
	}
	err := t.api.Create(ctx, &v1alpha1.NodeNetworkTemplate{ObjectMeta: metav1.ObjectMeta{Name: "all"}})
	if err != nil {
		return err
	}
	began, before := time.Now(), total(t.api.Written())
	for last := time.Now(); time.Since(last) < time.Minute; {
		<-time.After(time.Second)
		now := total(t.api.Written())
		if now > before {
			last, t.out.Settled = time.Now(), time.Since(began)
		}
		t.out.BusiestSecond, before = max(t.out.BusiestSecond, now-before), now
	}
	return nil
}

func total(counts map[string]int) (sum int) {
	for n := range maps.Values(counts) {
		sum += n
	}
	return sum
}

// Acted implements fleet.Observer.
func (t *takeover) Acted(node string, a plan.Action, _ cloud.Class, err error, _ time.Duration) {
	if a.Kind == plan.Observe && a.ENI == "" && err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.observed[node] = true
	}
}

// Listed implements fleet.Observer.
func (t *takeover) Listed(took time.Duration, _ error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.atRest > 0 && t.out.Listing == 0 && t.listedAtRest {
		t.out.Listing, t.out.Pages = took, int(took/t.Page) // one after the other; EC2 counts calls for single nodes, too
		heap := bubble.LiveHeap()
		t.out.ListingHeap = heap - min(heap, t.atRest)
	}
	t.listedAtRest = true
}

func (t *takeover) listing() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Listing
}

// Collected implements fleet.Observer.
func (*takeover) Collected(eni.Collected) {}

// addNode creates the ENIs of an instance, its Node, and its NodeNetwork as an earlier operator left it.
func (t *takeover) addNode(ctx context.Context, i int) error {
	id, name := t.ec2.instances[i], fmt.Sprintf("node-%06d", i)
	for at, addresses := range []int{onSecondENI, podsOfNode + freeOfNode - onSecondENI} {
		made, err := t.ec2.CreateENI(ctx, cloud.CreateENI{
			SubnetID: primaries, Amount: cloud.Amount{Addresses: addresses}, ClientToken: fmt.Sprint(id, at), Description: eni.Description(id),
			Tags: map[string]string{eni.TagCluster: clusterName, eni.TagInstanceID: id, eni.TagOwner: eni.Owner, eni.TagCreatedAt: time.Now().Format(time.RFC3339)},
		})
		if err != nil {
			return err
		}
		attachment, err := t.ec2.AttachENI(ctx, made.ID, id, at+1)
		if err = errors.Join(err, t.ec2.SetDeleteOnTermination(ctx, made.ID, attachment, true)); err != nil {
			return err
		}
	}
	enis, err := t.ec2.ENIs(ctx, cloud.ENIFilter{InstanceID: id})
	if err != nil {
		return err
	}
	waits := i%max(1, t.Nodes/waitingNodes) == 0
	if waits {
		t.waiting = append(t.waiting, name)
	}
	return errors.Join(t.api.Load(newNode(name, id)), t.api.Load(newNodeNetwork(name, id, enis, waits)))
}

// newNode returns a Node with the fields that Nodes usually have.
func newNode(name, instance string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: zone, corev1.LabelInstanceTypeStable: instanceType, corev1.LabelOSStable: "linux",
		corev1.LabelArchStable: "amd64", corev1.LabelTopologyRegion: "lab-1", "pool": "general",
	}}}
	n.Spec.ProviderID = "aws:///" + zone + "/" + instance
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// newNodeNetwork returns the object of a node at rest. If a pod waits there, all of its addresses are used.
func newNodeNetwork(name, instance string, enis []cloud.ENI, waits bool) *v1alpha1.NodeNetwork {
	least, free := int32(podsOfNode+freeOfNode), int32(freeOfNode)
	o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeNetworkSpec{
		InstanceID: instance, InstanceType: instanceType, ENI: v1alpha1.ENISpec{MinAllocate: &least, PreAllocate: &free},
		IPAM: v1alpha1.IPAMSpec{Available: map[string]v1alpha1.AvailableAddress{}},
	}}
	published := metav1.Now()
	o.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: v1alpha1.OwnerOperator, Operation: metav1.ManagedFieldsOperationApply, APIVersion: v1alpha1.GroupVersion.String(), Time: &published,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:ipam":{"f:available":{}}}}`),
	}}
	is := &o.Status
	is.IPAM = v1alpha1.IPAMStatus{Used: map[string]v1alpha1.UsedAddress{}, InstanceID: instance}
	is.ENI = v1alpha1.ENIStatus{ENIs: map[string]v1alpha1.ENI{}, Count: 2, Available: podsOfNode + freeOfNode,
		Limits: &v1alpha1.ENILimits{ENIs: 8, AddressesPerENI: 30, IPv6AddressesPerENI: 30, Prefixes: true}}
	used := podsOfNode
	if waits {
		used, is.IPAM.Waiting = podsOfNode+freeOfNode, 1
	}
	for _, e := range enis {
		is.ENI.ENIs[e.ID] = v1alpha1.ENI{
			MAC: e.MAC.String(), DeviceIndex: int32(e.Attachment.DeviceIndex), SubnetID: e.SubnetID, SecurityGroups: slices.Clone(e.Groups),
			PrimaryIPv4: e.Primary.String(), SubnetCIDR: "10.0.0.0/8",
		}
		for _, a := range e.Addresses {
			o.Spec.IPAM.Available[a.String()] = v1alpha1.AvailableAddress{Resource: e.ID}
			if len(is.IPAM.Used) < used {
				n := len(is.IPAM.Used)
				is.IPAM.Used[a.String()] = v1alpha1.UsedAddress{
					Owner: fmt.Sprintf("default/web-%s-%d", name, n), UID: fmt.Sprintf("%08d-%04d-4000-8000-%012d", n, n, n), Resource: e.ID,
				}
			}
		}
	}
	is.IPAM.UsedCount = int32(len(is.IPAM.Used))
	for _, c := range [...][2]string{{v1alpha1.ConditionReady, "AddressesAvailable"}, {v1alpha1.ConditionInDeficit, "TargetMet"}, {v1alpha1.ConditionAtCapacity, "RoomToGrow"}, {v1alpha1.ConditionDegraded, "AsExpected"}} {
		state := metav1.ConditionFalse
		if c[0] == v1alpha1.ConditionReady {
			state = metav1.ConditionTrue
		}
		is.Conditions = append(is.Conditions, metav1.Condition{Type: c[0], Status: state, Reason: c[1], LastTransitionTime: published})
	}
	return o
}
