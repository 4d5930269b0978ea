// Package egressclients has the operator's own controllers keep gateways informed of their
// clients, in a cluster of many pods of which some use Egresses, and measures what a client
// that goes and one that comes cost the operator, and what a gateway is sent. The
// Kubernetes API is in memory, in virtual time.
//
//	egressclients.go a run
//	cluster.go       who else is there: pods, nodes, gateways
package egressclients

import (
	"context"
	"runtime"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/internal/operator/egress/clients"
)

// Order is one run.
type Order struct {
	// Pods are all, Clients those of them that use one of so many Egresses each.
	Pods, Clients, Egresses int
	// Changes is how many clients are replaced by others, PerSecond how many a second.
	Changes, PerSecond int
}

// Outcome is what a run measured.
type Outcome struct {
	// CPU is of everything for each client that is replaced by another: of the
	// operator, and of the API in memory. Idle is of a replacement of a pod that uses
	// no Egress.
	CPU, Idle time.Duration
	// Objects is how many objects a gateway watches, Bytes what it is sent of them each
	// second while clients are replaced, as JSON; PodObjects and PodBytes would be those of
	// one that watches the cluster's pods.
	Objects, PodObjects int
	Bytes, PodBytes     float64
	// Known is the longest time from when a node had set a client up until gateways knew
	// it.
	Known  time.Duration
	Writes map[string]int // the operator's, while clients were replaced
	Heap   uint64         // the operator's, with its caches
}

// Job is this kind of run.
var Job = bubble.Job[Order, Outcome]{Name: "egressclients", Do: run}

// deadline is how long a run may take, in its own time.
const deadline = time.Hour

func run(ctx context.Context, o Order) (out Outcome, err error) {
	api, err := memapi.New(
		memapi.Kind{Object: &appsv1.Deployment{}}, memapi.Kind{Object: &appsv1.ReplicaSet{}},
		memapi.Kind{Object: &corev1.Pod{}, Status: true}, memapi.Kind{Object: &v1alpha1.Egress{}, Status: true},
		memapi.Kind{Object: &v1alpha1.EgressClient{}, Status: true}, memapi.Kind{Object: &v1alpha1.EgressClientSlice{}},
	)
	if err != nil {
		return out, err
	}
	if err := work(ctx, o, api, &out); err != nil {
		return out, err
	}
	// The controllers are gone by now: what is left is the API.
	out.Heap -= min(out.Heap, bubble.LiveHeap())
	runtime.KeepAlive(api)
	return out, nil
}

// operate runs the controllers until ctx ends.
func operate(ctx context.Context, api *memapi.API) error {
	return memapi.Operate(ctx, api, clients.Watches(), clients.Index, func(mgr manager.Manager) error {
		_, err := clients.Setup(mgr, clients.Options{})
		return err
	})
}
