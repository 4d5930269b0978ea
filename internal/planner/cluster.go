package planner

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// Cluster is the observed state of a running cluster.
type Cluster struct {
	Nodes      []ClusterNode
	Subnets    []Subnet
	Settings   Settings
	Pods       map[string]int // number of running pods with their own address, by controller (NAMESPACE/NAME); without daemon pods
	DaemonPods int            // number of daemon pods with their own address on each node
	History    *History       // may be nil
}

// ClusterNode is a node of a running cluster.
type ClusterNode struct {
	InstanceType string
	Subnet       string // its name, which is its ID
	MaxPods      int
}

// withoutHistory is the simulated time of a cluster without a history.
const withoutHistory = time.Hour

// otherPods is the name for pods without a known deployment.
const otherPods = "other pods"

// Scenario creates a scenario from a cluster, with the workload of its history or, without one, its current pods for an
// hour and a rolling update of each deployment. The alternatives are settings that are often better.
func (c Cluster) Scenario() Scenario {
	s := Scenario{
		Name: "cluster", Duration: Duration(withoutHistory), Seed: 1, Subnets: slices.Clone(c.Subnets), Settings: c.Settings,
		Workload: Workload{DaemonPods: c.DaemonPods},
	}
	s.Settings.Name = cmp.Or(s.Settings.Name, "current settings")
	slices.SortFunc(s.Subnets, func(a, b Subnet) int { return cmp.Compare(a.Name, b.Name) })
	s.Nodes = c.groups()
	if c.History == nil {
		s.Description = "The cluster as it is, for an hour with a rolling update of each deployment."
		for _, name := range slices.Sorted(maps.Keys(c.Pods)) {
			s.Workload.Deployments = append(s.Workload.Deployments, Deployment{Name: name, Replicas: c.Pods[name], Rollouts: []Rollout{{At: Duration(30 * time.Minute)}}})
		}
	} else {
		s.Duration = Duration(c.History.duration())
		s.Description = fmt.Sprintf("The workload of the cluster over %v, from Prometheus.", s.Duration.Std())
		s.Workload.Deployments = c.History.deployments(c.DaemonPods)
		c.History.scaleNodes(s.Nodes)
	}
	s.Workload.Deployments = fewer(s.Workload.Deployments)
	s.Alternatives = c.alternatives()
	return s
}

// groups lists node groups: nodes of the same type, subnet and maximum of pods.
func (c Cluster) groups() (out []NodeGroup) {
	counts := map[ClusterNode]int{}
	for _, n := range c.Nodes {
		counts[n]++
	}
	for _, n := range slices.SortedFunc(maps.Keys(counts), func(a, b ClusterNode) int {
		return cmp.Or(cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Subnet, b.Subnet), a.MaxPods-b.MaxPods)
	}) {
		out = append(out, NodeGroup{
			Name: fmt.Sprintf("%s-%s-%d", n.InstanceType, n.Subnet, n.MaxPods), InstanceType: n.InstanceType, Count: counts[n],
			Subnets: []string{n.Subnet}, MaxPods: min(1000, n.MaxPods),
		})
	}
	return out
}

// fewer merges the smallest deployments if there are more than a scenario may have.
func fewer(list []Deployment) []Deployment {
	if len(list) <= maxList {
		return list
	}
	slices.SortStableFunc(list, func(a, b Deployment) int { return b.peak() - a.peak() })
	rest := Deployment{Name: "small deployments"}
	for _, d := range list[maxList-1:] {
		rest.Replicas += d.peak()
	}
	return append(list[:maxList-1:maxList-1], rest)
}

// peak is the highest number of replicas.
func (d Deployment) peak() int {
	n := d.Replicas
	for _, c := range d.Changes {
		n = max(n, c.Count)
	}
	return n
}

// alternatives are settings to compare with the current ones: fewer and more warm addresses, with a minimum of as many
// addresses as a node has pods, and prefixes if all types have them.
func (c Cluster) alternatives() (out []Alternative) {
	pods := c.DaemonPods * len(c.Nodes)
	for _, n := range c.Pods {
		pods += n
	}
	each := int32(math.Ceil(float64(pods) / float64(max(1, len(c.Nodes)))))
	add := func(name string, set func(*v1alpha1.ENISpec)) {
		s := c.Settings
		s.Name = ""
		e := &s.ENI
		e.WarmENITarget, e.WarmIPTarget, e.MinimumIPTarget, e.WarmPrefixTarget = nil, nil, nil, nil
		e.MinAllocate, e.PreAllocate, e.MaxAboveWatermark, e.MaxAllocate = nil, nil, nil, nil
		set(e)
		out = append(out, Alternative{Name: name, Settings: &s})
	}
	for _, warm := range []int32{1, 3, 8} {
		name := fmt.Sprintf("%d warm, at least %d", warm, each)
		if c.Settings.Mode == ModeOperator {
			add(name, func(e *v1alpha1.ENISpec) { e.PreAllocate, e.MinAllocate = &warm, &each })
		} else {
			add(name, func(e *v1alpha1.ENISpec) { e.WarmIPTarget, e.MinimumIPTarget = &warm, &each })
		}
	}
	prefixes := !slices.ContainsFunc(c.Nodes, func(n ClusterNode) bool { l, ok := limits.Lookup(n.InstanceType); return !ok || !l.Prefixes })
	if yes := true; prefixes && !c.Settings.ENI.Prefixes() {
		add("prefixes", func(e *v1alpha1.ENISpec) {
			one := int32(1)
			if e.PrefixDelegation = &yes; c.Settings.Mode == ModeOperator {
				e.PreAllocate = &one
			} else {
				e.WarmPrefixTarget = &one
			}
		})
	}
	return out
}

// History is a cluster's workload over time. All lists have one element for each step.
type History struct {
	Step     time.Duration
	Replicas map[string][]int // desired replicas of deployments, by NAMESPACE/NAME
	Updated  map[string][]int // pods of the newest revision, by deployment
	Pods     []int            // pods with an address of Berth
	Starts   []int            // successful ADDs since the previous step
	Nodes    []int
}

func (h *History) duration() time.Duration {
	return max(time.Minute, h.Step*time.Duration(max(1, len(h.Pods)-1)))
}

func (h *History) at(i int) Duration { return Duration(h.Step * time.Duration(i)) }

// changes turns a list into a number and its changes.
func (h *History) changes(list []int) (first int, out []Change) {
	if len(list) == 0 {
		return 0, nil
	}
	before := list[0]
	for i, n := range list {
		if n != before && len(out) < maxList {
			out = append(out, Change{At: h.at(i), Count: n})
			before = n
		}
	}
	return list[0], out
}

// deployments returns the deployments of the history with their rolling updates, and one for the pods without a
// deployment. Its pods have a lifetime that explains the remaining ADDs.
func (h *History) deployments(daemonPods int) (out []Deployment) {
	known, explained := make([]int, len(h.Pods)), 0
	for _, name := range slices.Sorted(maps.Keys(h.Replicas)) {
		list := h.Replicas[name]
		d := Deployment{Name: name}
		d.Replicas, d.Changes = h.changes(list)
		before, rolling := d.Replicas, false
		for i, n := range list {
			known[i] += n
			explained += max(0, n-before)
			before = n
			updated := n
			if u := h.Updated[name]; i < len(u) {
				updated = u[i]
			}
			if begins := updated < n && !rolling && i > 0; begins && len(d.Rollouts) < maxList {
				d.Rollouts = append(d.Rollouts, Rollout{At: h.at(i)})
				explained += n
			}
			rolling = updated < n
		}
		if d.peak() > 0 {
			out = append(out, d)
		}
	}
	others, sum, starts := make([]int, len(h.Pods)), 0, 0
	for i, n := range h.Pods {
		nodes := 0
		if i < len(h.Nodes) {
			nodes = h.Nodes[i]
		}
		others[i] = max(0, n-known[i]-daemonPods*nodes)
		sum += others[i]
		if i < len(h.Starts) {
			starts += h.Starts[i]
		}
	}
	if sum == 0 {
		return out
	}
	d := Deployment{Name: otherPods}
	d.Replicas, d.Changes = h.changes(others)
	for i := 1; i < len(h.Nodes); i++ {
		explained += max(0, h.Nodes[i]-h.Nodes[i-1]) * daemonPods
	}
	if churn := starts - explained; churn > 0 {
		mean := float64(sum) / float64(len(others))
		life := time.Duration(mean * float64(h.duration()) / float64(churn))
		if d.Lifetime = Duration(max(5*time.Second, life.Truncate(time.Second))); d.Lifetime.Std() >= h.duration() {
			d.Lifetime = 0
		}
	}
	return append(out, d)
}

// scaleNodes scales the node groups in proportion to the number of nodes in the history.
func (h *History) scaleNodes(groups []NodeGroup) {
	now := 0
	for _, g := range groups {
		now += g.Count
	}
	if len(h.Nodes) == 0 || now == 0 {
		return
	}
	for i := range groups {
		g := &groups[i]
		list := make([]int, len(h.Nodes))
		for j, n := range h.Nodes {
			list[j] = int(math.Round(float64(g.Count) * float64(n) / float64(now)))
		}
		g.Count, g.Changes = h.changes(list)
	}
}
