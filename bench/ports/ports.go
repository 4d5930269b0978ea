// Package ports has thousands of pods get a port of a VPC at once, by the operator's own
// controller, and measures how many calls that takes, how long, how many writes at the
// Kubernetes API, and what the operator keeps of it. Provider and Kubernetes API are in
// memory, in virtual time: a call to the provider takes the order's latency, and all else
// takes none. A controller that makes a call for each port has the same provider.
//
//	ports.go    a run, the controller, and one that makes a call for each port
//	cluster.go  the rest of the cluster: clients that make pods, a scheduler, nodes
package ports

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// Order is one run.
type Order struct {
	Pods, Nodes int
	// Latency is of a call to the provider, AtOnce how many it works on at a time.
	Latency time.Duration
	AtOnce  int
	// Scheduled is how many pods a second get a node, from when they are made on; 0: all
	// at once. Late is how long after that the scheduler begins.
	Scheduled int
	Late      time.Duration
	// Naive has a controller work that makes a call for each port.
	Naive bool
}

// Outcome is what a run measured. Times are from when the pods were made.
type Outcome struct {
	Scheduled time.Duration // when the last pod had its node
	Bound     time.Duration // when the last port was bound and its PodNIC said so
	Median    time.Duration // when half of them were
	Active    time.Duration // when the last PodNIC was Active
	Calls     map[string]int
	Writes    map[string]int // the operator's at the Kubernetes API, by what was written
	Heap      uint64         // the most that the operator had at a time, without the two APIs
	CPU       time.Duration  // of everything
	// Forced is what the provider alone forces for Bound: the fewest calls by which so many
	// ports are made and bound, at its pace. ForcedActive adds what a node takes, and the
	// look that shows the last port active.
	Forced, ForcedActive time.Duration
}

// TotalCalls is the number of calls that the provider took.
func (o Outcome) TotalCalls() int { return total(o.Calls) }

// TotalWrites is the number of the operator's writes.
func (o Outcome) TotalWrites() int { return total(o.Writes) }

func total(of map[string]int) (n int) {
	for _, each := range of {
		n += each
	}
	return n
}

// Job is this kind of run.
var Job = bubble.Job[Order, Outcome]{Name: "ports", Do: run}

// deadline is how long the pods of a run may take, in its own time.
const deadline = time.Hour

// nodesTake is how long a node takes to plug a port that is bound to it.
const nodesTake = 200 * time.Millisecond

func run(ctx context.Context, o Order) (out Outcome, err error) {
	p := provider(o)
	if o.Naive {
		return naive(ctx, o, p)
	}
	api, err := NewAPI()
	if err != nil {
		return out, err
	}
	if err := work(ctx, o, p, api, &out); err != nil {
		return out, err
	}
	out.Calls, out.Writes, out.Forced = callsOf(p), api.Written(), forced(o, p.Traits())
	out.ForcedActive = out.Forced + nodesTake + o.Latency
	// The controller is gone by now: what is left are the two APIs.
	out.Heap -= min(out.Heap, bubble.LiveHeap())
	runtime.KeepAlive(p)
	runtime.KeepAlive(api)
	return out, nil
}

// The VPC's network has room for 65,000 ports.
var network = vpcport.Network{ID: "n-1", Name: "tenant-a", MTU: 1442, Subnets: []vpcport.Subnet{{
	ID: "s-1", Name: "subnet-1", CIDR: netip.MustParsePrefix("10.0.0.0/16"), Gateway: netip.MustParseAddr("10.0.0.1"),
}}}

// provider is one with the network and an agent on each node, at the pace of the order.
func provider(o Order) *portfake.Provider {
	p := portfake.New(portfake.Options{Latency: o.Latency, AtOnce: o.AtOnce})
	p.AddNetwork(network)
	for i := range o.Nodes {
		p.AddHost(nodeName(i), vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int", OVN: true})
	}
	return p
}

func callsOf(p *portfake.Provider) map[string]int {
	calls := map[string]int{}
	for _, c := range p.Front.Calls() {
		calls[c.Op]++
	}
	return calls
}

// forced is how long the provider takes for the fewest calls: as many ports of one call as
// it lets; and if nodes were known only after that, one for each port.
func forced(o Order, t vpcport.Traits) time.Duration {
	calls := (o.Pods + t.MaxBatch - 1) / t.MaxBatch
	if o.Late > 0 {
		calls = o.Pods
	}
	return time.Duration((calls+o.AtOnce-1)/o.AtOnce) * o.Latency
}

// networks are the one VPC.
type networks struct{ opened podnics.Opened }

func (n networks) Of(string) (podnics.Opened, error) { return n.opened, nil }

func (networks) Changed(func(string)) {}

const (
	vpcName   = "tenant-a"
	namespace = "shop"
)

func vpcSpec() v1alpha1.VPCSpec {
	return v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: network.ID, DefaultSubnets: []string{network.Subnets[0].ID},
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{namespace}}, MaxNICsPerNamespace: new(int32(1 << 16)),
	}
}

// operate runs the controller over a provider until ctx ends. Calls pass the limiter of calls in flight, as in production.
func operate(ctx context.Context, api *memapi.API, p vpcport.Provider) error {
	through := lanes.New(lanes.Options{}).Provider(p, nil)
	return Operate(ctx, api, "bench", podnics.Opened{Provider: through, Network: network, Spec: vpcSpec()})
}

// Operate runs the controller of a cluster with one VPC until ctx ends.
func Operate(ctx context.Context, api *memapi.API, cluster string, vpc podnics.Opened) error {
	return memapi.Operate(ctx, api, podnics.Watches(), podnics.Index, func(mgr manager.Manager) error {
		_, err := podnics.Setup(mgr, podnics.Options{Cluster: cluster, Networks: networks{vpc}})
		return err
	})
}

// NewAPI is an API of the kinds that the controller uses.
func NewAPI() (*memapi.API, error) {
	return memapi.New(
		memapi.Kind{Object: &corev1.Pod{}, Status: true}, memapi.Kind{Object: &corev1.Node{}, Cluster: true, Status: true},
		memapi.Kind{Object: &v1alpha1.PodNIC{}, Status: true}, memapi.Kind{Object: &v1alpha1.VPC{}, Cluster: true, Status: true},
	)
}

// naive has the ports made as kuryr-kubernetes makes those of pods without a pool
// (NeutronPodVIFDriver): a call that makes one bound to its node, and others that look
// whether it is active. It has as many calls under way as the provider bears, and looks
// first when the node has plugged the port.
func naive(ctx context.Context, o Order, p *portfake.Provider) (out Outcome, err error) {
	var mu sync.Mutex // guards bound
	var bound []time.Duration
	began := time.Now()
	if o.Late > 0 {
		<-time.After(o.Late) // it begins once a pod has its node
	}
	err = objects.Each(ctx, o.Pods, o.Pods, func(ctx context.Context, i int) error {
		host := nodeName(i % o.Nodes)
		made, err := p.Create(ctx, []vpcport.NewPort{{NetworkID: network.ID, Device: fmt.Sprint("pod-", i), Host: host}})
		if err != nil {
			return err
		}
		mu.Lock()
		bound = append(bound, time.Since(began))
		mu.Unlock()
		<-time.After(nodesTake)
		p.Plug(made[0].ID, host)
		got, err := p.Get(ctx, made[0].ID)
		if err == nil && got.Status != vpcport.StatusActive {
			err = fmt.Errorf("port %s is not active", got.ID)
		}
		return err
	})
	if err != nil {
		return out, err
	}
	out.Active = time.Since(began)
	slices.Sort(bound)
	out.Bound, out.Median = bound[len(bound)-1], bound[(len(bound)-1)/2]
	out.Calls, out.Forced = callsOf(p), forced(o, p.Traits())
	return out, nil
}
