package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// onSeveralENIs adds the pods, all at once on every node, and checks that each
// node has some on a secondary ENI.
func onSeveralENIs(ctx context.Context, s *stage) string {
	took := s.add(ctx, nil, names("pod", s.size.pods))
	onPrimary := 0
	for _, n := range s.nodes {
		used := map[int]bool{}
		for _, p := range n.Pods() {
			i := s.index(n, p.Addr())
			if i == 0 {
				onPrimary++
			}
			used[i] = true
		}
		if len(used) < 2 {
			fail("all pods of %s are on one ENI; %d should need a second one", n.Name, s.size.pods)
		}
	}
	return fmt.Sprintf("%d pods on %d nodes; %s; %d on secondary ENIs", len(took), len(s.nodes), spread(took), len(took)-onPrimary)
}

// names returns pod names with a common stem: web-1, web-2 and so on.
func names(stem string, count int) []string {
	var out []string
	for i := range count {
		out = append(out, fmt.Sprintf("%s-%d", stem, i+1))
	}
	return out
}

// add adds pods to a node, or to each node if n is nil, all at once. It returns how long each took, sorted.
func (s *stage) add(ctx context.Context, n *node.Node, names []string) []time.Duration {
	nodes := []*node.Node{n}
	if n == nil {
		nodes = s.nodes
	}
	took, errs := make([]time.Duration, len(nodes)*len(names)), make([]error, len(nodes)*len(names))
	var wg sync.WaitGroup
	for i := range took {
		wg.Go(func() {
			began := time.Now()
			_, errs[i] = nodes[i/len(names)].AddPod(ctx, names[i%len(names)], node.PodOptions{})
			took[i] = time.Since(began)
		})
	}
	wg.Wait()
	check(errors.Join(errs...))
	slices.Sort(took)
	return took
}

// spread describes sorted times.
func spread(took []time.Duration) string {
	return fmt.Sprintf("ADD median %s, slowest %s", ms(took[len(took)/2]), ms(took[len(took)-1]))
}

// lead is the family of requests: IPv4 if pods have it.
func (s *stage) lead() ipfamily.Family { return s.lab.PodFamilies().Families()[0] }

func (s *stage) internet() netip.Addr { return internetHosts[s.lead()] }

func (s *stage) onPrem() netip.Addr { return onPremHosts[s.lead()] }

// primary returns a node's own address.
func (s *stage) primary(n *node.Node) netip.Addr { return s.lab.NodeAddrs(n)[0] }

// enisOf returns a node's ENIs, the primary one first.
func enisOf(l *lab.Lab, n *node.Node) []vpc.ENI { return l.Snapshot().InstanceENIs(n.InstanceID) }

// index returns the device index of the ENI that has an address.
func (s *stage) index(n *node.Node, a netip.Addr) int {
	for _, e := range enisOf(s.lab, n) {
		if e.Owns(a) {
			return e.Attachment.DeviceIndex
		}
	}
	fail("EC2 has not assigned %s to %s", a, n.Name)
	return 0
}

// first returns a pod of a node.
func (s *stage) first(n *node.Node) *node.Pod {
	if len(n.Pods()) == 0 {
		fail("%s has no pod", n.Name)
	}
	return n.Pods()[0]
}

// onSecondary returns a pod of a node that is not on the primary ENI.
func (s *stage) onSecondary(n *node.Node) *node.Pod {
	i := slices.IndexFunc(n.Pods(), func(p *node.Pod) bool { return s.index(n, p.Addr()) > 0 })
	if i < 0 {
		fail("%s has no pod on a secondary ENI", n.Name)
	}
	return n.Pods()[i]
}

// next returns another node like the first.
func (s *stage) next() spec.Instance {
	i := s.lab.Cloud.Spec().Instances[0]
	return spec.Instance{Name: fmt.Sprintf("node-%d", len(s.nodes)+1), Type: i.Type, Subnet: i.Subnet, Role: i.Role}
}

// launch adds a node and returns once it is ready.
func (s *stage) launch(ctx context.Context, i spec.Instance) *node.Node {
	must(s.lab.Cloud.Instances.Launch(i))
	s.lab.WaitEvents()
	n := must(s.lab.Node(i.Name))
	s.nodes = append(s.nodes, n)
	check(n.WaitReady(ctx))
	return n
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// since formats the time since then in seconds.
func since(then time.Time) string { return fmt.Sprintf("%.1f s", time.Since(then).Seconds()) }

// awaitLeader waits until an operator leads.
func awaitLeader(ctx context.Context, l *lab.Lab) (leader *lab.Operator) {
	await(ctx, "operators", func() {
		if leader = must(l.Leader(ctx)); leader == nil {
			fail("no operator is the leader")
		}
	})
	return leader
}

// revive starts killed operators and waits until all operators are ready. The lab restarts those that lose their
// Lease, as a kubelet does.
func revive(ctx context.Context, l *lab.Lab, killed ...*lab.Operator) {
	for _, o := range killed {
		if err := o.Start(); err != nil && !o.Running() {
			check(err)
		}
	}
	await(ctx, "operators", func() {
		for _, o := range l.Operators() {
			_, err := o.Get(ctx, "/readyz")
			checkf(err, "%s", o.Name)
		}
	})
}

// withoutLeader kills the leader, calls do, and starts that operator again.
func withoutLeader(ctx context.Context, l *lab.Lab, do func()) {
	leader := awaitLeader(ctx, l)
	check(leader.Kill())
	do()
	revive(ctx, l, leader)
}
