// Package egressclients runs the operator's own controllers, which inform egress gateways of their
// clients, in a cluster of many pods of which some use Egresses. It measures what the replacement of a
// client costs the operator, and how much data a gateway receives. The Kubernetes API is in memory, in
// virtual time.
//
//	egressclients.go a run
//	cluster.go       the rest of the cluster: pods, nodes, gateways
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
	// Pods is the number of all pods, which run on Nodes; Clients of them use one of the Egresses each.
	Pods, Nodes, Clients, Egresses int
	// Changes is how many pods are replaced by others, PerSecond at which rate.
	Changes, PerSecond int
}

// Outcome is what a run measured.
type Outcome struct {
	// Served is the time from the start of the operator, which finds all pods and no EgressClient, until the slices have all
	// clients. ServedCPU and ServedWrites are the CPU time and the operator's writes for that.
	Served, ServedCPU time.Duration
	ServedWrites      int
	// CPU is the CPU time per replaced client, of the operator and of the API in memory. Idle is that
	// per replaced pod that uses no Egress.
	CPU, Idle time.Duration
	// Objects is the number of objects that a gateway watches, and Bytes the number of bytes of JSON that it receives
	// per second while clients are replaced. PodObjects and PodBytes are the same for a gateway that would watch the
	// cluster's pods.
	Objects, PodObjects int
	Bytes, PodBytes     float64
	// Known is the longest time from a node's report that a client is set up until the gateway learned
	// of the client.
	Known  time.Duration
	Writes map[string]int // the operator's, while clients were replaced
	Heap   uint64         // the operator's, including its caches
}

// Job is this kind of run.
var Job = bubble.Job[Order, Outcome]{Name: "egressclients", Do: run}

// deadline limits a run, in virtual time.
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
	// The controllers have stopped, so the remaining heap belongs to the API.
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
