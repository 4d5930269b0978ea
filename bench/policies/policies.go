// Package policies runs the operator's part of network policies, and nodes that enforce them, in clusters of up to 20,000
// nodes and 200,000 pods, in virtual time. The kernel of a node is replaced by what it costs.
//
//	policies.go  the runs
//	cluster.go   pods, policies and nodes
package policies

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/vishvananda/netns"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/wire"
)

// Workload is a kind of run.
type Workload string

const (
	// Told starts pods that a pod of every node allows, one after the other.
	Told Workload = "told"
	// Deleted deletes a policy of a pod of every node that allows all pods.
	Deleted Workload = "deleted"
	// Events replaces pods that a few others allow.
	Events Workload = "events"
	// Memory has one node enforce the policies of its pods.
	Memory Workload = "memory"
)

// Order is one run.
type Order struct {
	Workload              Workload
	Nodes, Pods, Policies int
	Enforcers             int           // nodes that are complete; the others take what they are told and confirm it
	Changes               int           // pods that are started or replaced
	Kernel, End           time.Duration // cost of a change in a node's kernel, and of a look at its connections
	Netns                 string        // of Memory
}

// Outcome is what a run measured.
type Outcome struct {
	Took []time.Duration // for each pod and node, or each node, from the change until the node enforces it
	CPU  time.Duration   // of the operator and all nodes, per change
	Heap uint64          // of the operator's state, or of a node's
	Told float64         // nodes that were told, per change
}

// Job is this kind of run.
var Job = bubble.Job[Order, Outcome]{Name: "policies", Do: run}

func run(ctx context.Context, o Order) (out Outcome, err error) {
	empty := bubble.LiveHeap()
	c := newCluster(o)
	if o.Workload == Memory {
		return c.memory()
	}
	ctx, cancel := context.WithCancel(ctx)
	parts, ctx := bubble.NewParts(ctx)
	if err = c.start(ctx, parts); err == nil {
		<-time.After(time.Minute)
		out.Heap = bubble.LiveHeap() - min(empty, bubble.LiveHeap())
		switch o.Workload {
		case Told:
			err = c.tell(ctx, &out)
		case Deleted:
			err = c.deletePolicy(&out)
		case Events:
			err = c.replace(&out)
		}
	}
	cancel()
	err = errors.Join(parts.Wait(), err)
	runtime.KeepAlive(c)
	return out, err
}

// between is the time between two changes, in which all nodes are told.
const between = time.Second

// tell starts pods on complete nodes, which report their addresses as in an ADD.
func (c *cluster) tell(ctx context.Context, out *Outcome) error {
	before := bubble.CPU()
	for i := range c.Changes {
		p := c.newPod(i)
		c.feed.SetPod(p)
		e, pod := c.enforcers[p.Node], podOf(p)
		if err := e.Known(ctx, pod.PodName, pod.UID); err != nil {
			return err
		}
		addr := c.address(c.Pods + i)
		pod.Addrs = []netip.Addr{addr}
		began := time.Now()
		if err := e.Set(ctx, p.String(), pod); err != nil {
			return err
		}
		e.Announce(pod)
		<-time.After(between)
		took := c.kernels.enforced(addr)
		if len(took) != c.Nodes {
			return fmt.Errorf("%d nodes enforce the address of %s, expected %d", len(took), p, c.Nodes)
		}
		for _, at := range took {
			out.Took = append(out.Took, at.Sub(began))
		}
	}
	out.CPU = (bubble.CPU() - before) / time.Duration(c.Changes)
	return nil
}

// deletePolicy deletes the policy that pods of all nodes have.
func (c *cluster) deletePolicy(out *Outcome) error {
	before, began := bubble.CPU(), time.Now()
	c.feed.DeletePolicy(policy.Ref{Namespace: agents, Name: agents})
	<-time.After(10 * between)
	out.CPU = bubble.CPU() - before
	took := c.kernels.changed(began)
	if len(took) != c.Nodes {
		return fmt.Errorf("%d nodes changed what they enforce, expected %d", len(took), c.Nodes)
	}
	for _, at := range took {
		out.Took = append(out.Took, at.Sub(began))
	}
	return nil
}

// replace replaces pods by others that get their addresses as in an ADD: as many of each kind, whose costs differ.
func (c *cluster) replace(out *Outcome) error {
	stride := c.Pods*5/8 + 1
	before := bubble.CPU()
	c.kernels.reset()
	for i := range c.Changes {
		p := c.pod(i * stride)
		c.feed.DeletePod(p.NamespacedName)
		addrs := p.Addrs
		p.UID, p.Addrs = types.UID(fmt.Sprintf("00000000-0000-4000-9000-%012d", i)), nil
		c.feed.SetPod(p)
		if _, err := c.feed.Assign(p.Node, p.NamespacedName, p.UID, addrs, false); err != nil {
			return err
		}
		p.Addrs = addrs
		c.feed.SetPod(p)
		<-time.After(between)
	}
	out.CPU = (bubble.CPU() - before) / time.Duration(c.Changes)
	out.Told = float64(c.kernels.reset()) / float64(c.Changes)
	return nil
}

// memory measures what a node has in memory for the policies of its pods: the state, and the content of its table.
func (c *cluster) memory() (out Outcome, err error) {
	var parts [][]byte
	for _, p := range wire.Encode(c.feed.Subscribe(nodeName(0)).Next()) {
		data, err := proto.Marshal(p)
		if err != nil {
			return out, err
		}
		parts = append(parts, data)
	}
	c.feed = nil
	ns, err := netns.GetFromPath(c.Netns)
	if err != nil {
		return out, err
	}
	defer ns.Close()
	empty := bubble.LiveHeap()
	state, table := policy.NewState(), policytable.New(ns)
	var d wire.Decoder
	for _, data := range parts {
		part := &wire.Update{}
		if err := proto.Unmarshal(data, part); err != nil {
			return out, err
		}
		u, err := d.Add(part)
		if err != nil {
			return out, err
		}
		if u != nil {
			state.Take(u)
		}
	}
	var pods []policytable.Pod
	policies := map[policy.Ref]bool{}
	for name, uid := range state.Pods() {
		list, _ := state.Of(name, uid)
		pods = append(pods, policytable.Pod{Addrs: []netip.Addr{c.address(len(pods))}, Policies: list})
		for _, p := range list {
			policies[p.Ref] = true
		}
	}
	if len(policies) != c.Policies {
		return out, fmt.Errorf("the node has %d policies, expected %d", len(policies), c.Policies)
	}
	if err := table.Apply(pods, state.Elements, nil); err != nil {
		return out, err
	}
	clear(pods) // the enforcer keeps no list of them
	out.Heap = bubble.LiveHeap() - empty
	runtime.KeepAlive(state)
	runtime.KeepAlive(table)
	runtime.KeepAlive(parts)
	return out, nil
}
