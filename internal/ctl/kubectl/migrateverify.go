package kubectl

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// Verification is the output of verify.
type Verification struct {
	From     string       `json:"from"`
	Nodes    int          `json:"nodes"`   // that Berth serves
	Pods     int          `json:"pods"`    // whose addresses were compared
	Reached  []ReachedPod `json:"reached"` // addresses that answered their node; none if the nodes were not asked
	Problems []string     `json:"problems"`
}

// ReachedPod is an address of a pod that answered its node.
type ReachedPod struct {
	Node      string `json:"node"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	migrate.Reached
}

// verify compares the pods of the cluster with what nodes say of their addresses.
func (m *migration) verify(cmd *cobra.Command, f *migrateFlags) error {
	ctx := cmd.Context()
	s, err := m.see(ctx, false)
	if err != nil {
		return err
	}
	v := Verification{From: m.from.name, Reached: []ReachedPod{}, Problems: []string{}}
	before := map[types.UID]bool{} // the pods that the node tool must have seen
	serving := func(n *rollout.Node) bool { return n.Label == rollout.Serving && n.Berthd == rollout.Ready }
	for _, n := range s.Nodes {
		if n.Label == rollout.Serving && n.Berthd != rollout.Ready && (len(f.nodes) == 0 || slices.Contains(f.nodes, n.Name)) {
			v.problem(n.Name, "berthd is not ready: the node's pods were not checked")
		}
	}
	if slices.Contains(m.from.verbs, rollout.Verify) && !f.noNodePods {
		pods, err := m.everyPod(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			before[pods[i].UID] = true
		}
		tools, err := m.survey(ctx, cmd, s, rollout.Verify, f.nodes, serving)
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			v.add(n.Name, tools[n.Name])
		}
	}
	if err := m.compare(ctx, s, &v, before, func(n *rollout.Node) bool {
		return serving(n) && (len(f.nodes) == 0 || slices.Contains(f.nodes, n.Name))
	}); err != nil {
		return err
	}
	slices.Sort(v.Problems)
	return f.out.finish(cmd, v, len(v.Problems) > 0, v.write)
}

// add adds the result of the node tool on a node, which may be nil.
func (v *Verification) add(node string, t *rollout.Tool) {
	if t == nil {
		return
	}
	v.problem(node, t.Problems()...)
	if t.Report == nil {
		return
	}
	for _, p := range t.Report.Pods {
		for _, r := range p.Reached {
			v.Reached = append(v.Reached, ReachedPod{node, p.Namespace, p.Name, r})
		}
	}
}

func (v *Verification) write(p *view.Printer, wide bool) {
	p.Printf("%d nodes of Berth, %d pods: %s\n", v.Nodes, v.Pods, view.Count(len(v.Problems), "problem"))
	by := map[string]int{}
	for _, r := range v.Reached {
		by[r.By]++
	}
	var ways []string
	for _, way := range slices.Sorted(maps.Keys(by)) {
		ways = append(ways, fmt.Sprintf("%d by %s", by[way], way))
	}
	if len(ways) > 0 {
		p.Printf("Addresses that answered: %s\n", strings.Join(ways, ", "))
	}
	if wide {
		p.Section("Pods", view.GridOf(v.Reached, func(r ReachedPod) []any { return []any{r.Node, r.Namespace + "/" + r.Pod, r.Address, r.By} }, "NODE", "POD", "ADDRESS", "ANSWERED BY"), "none")
	}
	for _, text := range v.Problems {
		p.Printf("! %s\n", text)
	}
}

func (v *Verification) problem(of string, texts ...string) {
	for _, text := range texts {
		v.Problems = append(v.Problems, of+": "+text)
	}
}

// owners returns the pods that have addresses of the pod network, by address. Addresses that two pods have are problems.
func (v *Verification) owners(pods []corev1.Pod) map[netip.Addr]*corev1.Pod {
	owners := map[netip.Addr]*corev1.Pod{}
	for i := range pods {
		p := &pods[i]
		if len(podsOfNode(pods[i:i+1])) == 0 {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			addr, err := netip.ParseAddr(ip.IP)
			if err != nil {
				continue
			}
			if other, twice := owners[addr]; twice {
				v.problem(p.Spec.NodeName, fmt.Sprintf("pod %s/%s has address %s, and so has pod %s/%s", p.Namespace, p.Name, addr, other.Namespace, other.Name))
			}
			owners[addr] = p
		}
	}
	return owners
}

// everyPod reads the pods of the cluster.
func (r *requests) everyPod(ctx context.Context) (pods []corev1.Pod, err error) {
	err = r.patiently(ctx, func(ctx context.Context) error {
		a := &api{rest: r.api.rest}
		pods = list[corev1.Pod](ctx, a, "pods", podsOfAll, nil)
		return a.err()
	})
	return pods, err
}

// unanswered adds pods of a node that the node tool must have seen, and of which it did not say that they answer.
func (v *Verification) unanswered(p *corev1.Pod, addr netip.Addr) {
	reached := slices.ContainsFunc(v.Reached, func(r ReachedPod) bool { return r.Address == addr && r.Node == p.Spec.NodeName })
	if !reached && !slices.ContainsFunc(v.Problems, func(text string) bool { return strings.Contains(text, addr.String()+" ") }) {
		v.problem(p.Spec.NodeName, fmt.Sprintf("pod %s/%s: the node tool has no answer of its address %s", p.Namespace, p.Name, addr))
	}
}

// compare holds the addresses of pods, of all nodes, against those that each berthd has given out, and those of before
// against the answers.
func (m *migration) compare(ctx context.Context, s *seen, v *Verification, before map[types.UID]bool, chosen func(*rollout.Node) bool) error {
	pods, err := m.everyPod(ctx)
	if err != nil {
		return err
	}
	var daemons map[string]daemon
	err = m.patiently(ctx, func(ctx context.Context) error {
		a := &api{rest: m.api.rest}
		daemons = m.daemonPods(ctx, a, "")
		return a.err()
	})
	if err != nil {
		return err
	}
	moved := map[string]bool{} // the chosen nodes
	for i := range s.Nodes {
		moved[s.Nodes[i].Name] = chosen(&s.Nodes[i])
	}
	owners := v.owners(pods)
	has := map[string][]netip.Addr{} // by pod of a chosen node
	where := map[string]string{}     // its node
	for addr, p := range owners {
		if name := p.Namespace + "/" + p.Name; moved[p.Spec.NodeName] {
			has[name], where[name] = append(has[name], addr), p.Spec.NodeName
			if before[p.UID] {
				v.unanswered(p, addr)
			}
		}
	}
	nodes, err := m.nodeClient()
	if err != nil {
		return err
	}
	var ask []daemon
	for _, d := range daemons {
		if moved[d.node] {
			ask = append(ask, d)
		}
	}
	given := map[netip.Addr]string{}
	for node, answer := range askAll(nodes, ask, func(int) {}, func(d daemon) answer { doc, err := nodes.document(ctx, d); return answer{doc: doc, err: err} }) {
		v.Nodes++
		if answer.err != nil {
			v.problem(node, fmt.Sprintf("berthd could not be queried: %v", answer.err))
			continue
		}
		for _, of := range answer.doc.Allocated {
			name := of.Namespace + "/" + of.Pod
			if other, twice := given[of.Address]; twice {
				v.problem(node, fmt.Sprintf("berthd gave address %s to pod %s, and another one to pod %s", of.Address, name, other))
			}
			given[of.Address] = name
			if p, taken := owners[of.Address]; taken && p.Namespace+"/"+p.Name != name {
				v.problem(node, fmt.Sprintf("berthd gave address %s to pod %s, and pod %s/%s has it", of.Address, name, p.Namespace, p.Name))
			}
		}
	}
	for name, addrs := range has {
		v.Pods++
		for _, addr := range addrs {
			if given[addr] != name {
				v.problem(where[name], fmt.Sprintf("pod %s has address %s, which berthd did not give to it: delete the pod, or run apply", name, addr))
			}
		}
	}
	return nil
}
