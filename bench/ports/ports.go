// Package ports creates thousands of pods that need a port of a VPC, runs the operator's own
// controller, and measures the number of calls to the provider, the time, the number of writes to
// the Kubernetes API, and the operator's memory. The provider and the Kubernetes API are in
// memory, in virtual time: a call to the provider takes the order's latency, and nothing else
// takes time. The reference is a controller that makes one call per port to the same provider.
//
//	ports.go    a run, the controller, and the naive controller
//	cluster.go  the rest of the cluster: clients that create pods, a scheduler, nodes
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
	// Latency is the duration of a call to the provider, AtOnce the number of calls it serves concurrently.
	Latency time.Duration
	AtOnce  int
	// Scheduled is the number of pods scheduled per second; 0 means all at once. Late is the delay
	// between the creation of the pods and the first one scheduled.
	Scheduled int
	Late      time.Duration
	// Naive runs the controller that makes one call per port.
	Naive bool
	// AtRest measures the heap at the end, instead of its peak: each of the measurements of a peak collects the whole heap.
	AtRest bool
}

// Outcome is what a run measured. Times count from the creation of the pods.
type Outcome struct {
	Scheduled time.Duration // when the last pod was scheduled
	Bound     time.Duration // when the last PodNIC reported its port as bound
	Median    time.Duration // when half of them did
	Active    time.Duration // when the last PodNIC was Active
	Calls     map[string]int
	Writes    map[string]int // the operator's writes to the Kubernetes API, by verb and kind
	Heap      uint64         // the operator's, without the two APIs
	CPU       time.Duration  // CPU time of the whole process
	// MinBound is the lower bound of Bound that the provider imposes: the time of the fewest calls
	// that create and bind all ports. MinActive adds the time in which a node plugs a port, and the
	// call that reads the last port as active.
	MinBound, MinActive time.Duration
}

// TotalCalls is the number of calls to the provider.
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

// deadline limits a run, in virtual time.
const deadline = time.Hour

// plugTime is how long a node takes to plug a port that is bound to it.
const plugTime = 200 * time.Millisecond

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
	out.Calls, out.Writes, out.MinBound = callsOf(p), api.Written(), minBound(o, p.Traits())
	out.MinActive = out.MinBound + plugTime + o.Latency
	// The controller has stopped, so the remaining heap belongs to the two APIs.
	out.Heap -= min(out.Heap, bubble.LiveHeap())
	runtime.KeepAlive(p)
	runtime.KeepAlive(api)
	return out, nil
}

// The VPC's network has room for a million ports.
var network = vpcport.Network{ID: "n-1", Name: "tenant-a", MTU: 1442, Subnets: []vpcport.Subnet{{
	ID: "s-1", Name: "subnet-1", CIDR: netip.MustParsePrefix("10.0.0.0/12"), Gateway: netip.MustParseAddr("10.0.0.1"),
}}}

// provider returns a provider with the network, an agent on each node, and the order's latency.
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

// minBound is the time that the provider needs for the fewest calls that create and bind all ports: full
// batches, or one update per port if pods are scheduled after their ports are created.
func minBound(o Order, t vpcport.Traits) time.Duration {
	calls := (o.Pods + t.MaxBatch - 1) / t.MaxBatch
	if o.Late > 0 {
		calls = o.Pods
	}
	return time.Duration((calls+o.AtOnce-1)/o.AtOnce) * o.Latency
}

// networks opens the one VPC.
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
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{namespace}}, MaxNICsPerNamespace: new(int32(1 << 20)),
	}
}

// operate runs the controller with a provider until ctx ends. Calls pass through the limiter of calls in
// flight, as in production.
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

// NewAPI returns an API that serves the kinds that the controller uses.
func NewAPI() (*memapi.API, error) {
	return memapi.New(
		memapi.Kind{Object: &corev1.Pod{}, Status: true}, memapi.Kind{Object: &corev1.Node{}, Cluster: true, Status: true},
		memapi.Kind{Object: &v1alpha1.PodNIC{}, Status: true}, memapi.Kind{Object: &v1alpha1.VPC{}, Cluster: true, Status: true},
	)
}

// naive creates ports as kuryr-kubernetes does without a port pool (NeutronPodVIFDriver): one call
// creates a port that is bound to its node, and further calls poll whether it is active. It keeps as
// many calls in flight as the provider serves, and polls for the first time after the node has plugged
// the port.
func naive(ctx context.Context, o Order, p *portfake.Provider) (out Outcome, err error) {
	var mu sync.Mutex // guards bound
	var bound []time.Duration
	began := time.Now()
	if o.Late > 0 {
		<-time.After(o.Late) // it creates no port before the pod is scheduled
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
		<-time.After(plugTime)
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
	out.Calls, out.MinBound = callsOf(p), minBound(o, p.Traits())
	return out, nil
}
