package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
)

// Policies is the output of `kubectl berth policies -o json`.
type Policies struct {
	Policies []Policy `json:"policies"` // by kind, namespace and name
	Trouble  []string `json:"trouble"`  // problems of nodes, one sentence each
	Unread   []string `json:"unread"`
}

// Policy is one NetworkPolicy or ClusterNetworkPolicy.
type Policy struct {
	introspect.PolicyRef
	Tier     string   `json:"tier"` // Admin, NetworkPolicy or Baseline
	Priority int32    `json:"priority"`
	Pods     int      `json:"pods"`    // that it selects and that have addresses
	Nodes    int      `json:"nodes"`   // that run them
	InForce  int      `json:"inForce"` // nodes where it is in force for all of these pods
	Trouble  []string `json:"trouble"` // problems, one sentence each
}

func newPolicies(p *program) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "policies",
		Short: "Show network policies, and where they are not in force",
		Long: `Show all NetworkPolicies and ClusterNetworkPolicies: how many pods each selects, on how
many nodes, and on how many of these it is in force, for which the command queries every
node. A policy is in force on a node if the kernel has its current version for all pods of
the node that it selects.

Problems are invalid fields, nodes where a policy is not in force, nodes without a
connection to the operator, and policies that are in force although they were deleted.
Exits with 2 on a problem.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := p.policyList(cmd)
			if err != nil {
				return err
			}
			unwell := len(l.Trouble)+len(l.Unread) > 0 || slices.ContainsFunc(l.Policies, func(row Policy) bool { return len(row.Trouble) > 0 })
			return out.finish(cmd, l, unwell, func(pr *view.Printer, wide bool) { writePolicies(pr, l, wide) })
		},
	}
	out.register(cmd)
	return cmd
}

// policyAnswer is what a node knows of policies, or why it could not be queried.
type policyAnswer struct {
	doc introspect.NetworkPolicies
	err error
}

func (p *program) policyList(cmd *cobra.Command) (Policies, error) {
	ctx := cmd.Context()
	a, err := p.reach(ctx)
	if err != nil {
		return Policies{}, err
	}
	c := newPolicyCluster()
	c.namespaces(ctx, a)
	c.policies(ctx, a)
	c.pods(ctx, a)
	nodes, err := p.nodeClient()
	if err != nil {
		return Policies{}, err
	}
	daemons := p.daemonPods(ctx, a, "")
	ask := enforcing(daemons)
	done, end := p.progress(cmd, len(ask))
	answers := askAll(nodes, ask, done, func(d daemon) policyAnswer {
		doc, err := nodes.policies(ctx, d)
		doc.Attachments, doc.Sets = nil, nil // thousands of them would not fit into memory
		return policyAnswer{doc, err}
	})
	end()
	l := policiesOf(c, daemons, answers, a.unread)
	for _, node := range slices.Sorted(maps.Keys(answers)) {
		if d := answers[node].doc; d.Enabled && !d.Connected {
			since := ""
			if age := view.Age(d.ConnectedSince, p.Now()); age != "" {
				since = " for " + age
			}
			l.Trouble = append(l.Trouble, fmt.Sprintf("%s: berthd has not been connected to berth-operator%s; the last policies that it received stay in force: %s", node, since, d.ConnectError))
		}
	}
	return l, ctx.Err()
}

// policiesOf returns the rows of policies, with the nodes where they are not in force.
func policiesOf(c *policyCluster, daemons map[string]daemon, answers map[string]policyAnswer, unread unread) Policies {
	l := Policies{Policies: []Policy{}, Trouble: []string{}, Unread: unread.texts()}
	if len(answers) == 0 && unread.why("pods of berthd") == "" {
		l.Trouble = append(l.Trouble, notEnforced)
	}
	selected := map[policy.Ref]map[string]int{} // pods by node
	for name := range c.resolver.Pods() {
		pod, list, _ := c.resolver.Policies(name)
		for _, of := range list {
			if len(pod.Addrs) == 0 {
				continue
			}
			if selected[of.Ref] == nil {
				selected[of.Ref] = map[string]int{}
			}
			selected[of.Ref][pod.Node]++
		}
	}
	for ref, of := range c.compiled {
		row := Policy{PolicyRef: policyRef(ref), Tier: of.Policy.Tier.String(), Priority: of.Policy.Priority, Nodes: len(selected[ref]), Trouble: c.problems(ref)}
		why := map[string][]string{} // nodes by reason
		for node, pods := range selected[ref] {
			row.Pods += pods
			if reason := notInForce(row.PolicyRef, of.Policy.Digest(), pods, daemons[node], answers, node); reason != "" {
				why[reason] = append(why[reason], node)
			} else {
				row.InForce++
			}
		}
		for _, reason := range slices.Sorted(maps.Keys(why)) {
			row.Trouble = append(row.Trouble, fmt.Sprintf("not in force on %s: %s", someOf(why[reason]), reason))
		}
		l.Policies = append(l.Policies, row)
	}
	l.Policies = append(l.Policies, deleted(c, answers, unread)...)
	slices.SortFunc(l.Policies, func(a, b Policy) int { return a.Compare(b.PolicyRef) })
	return l
}

// notInForce returns why a policy that selects pods of a node is not in force there, or "".
func notInForce(ref introspect.PolicyRef, digest string, pods int, d daemon, answers map[string]policyAnswer, node string) string {
	a, asked := answers[node]
	i := slices.IndexFunc(a.doc.Policies, func(p introspect.NodePolicy) bool { return p.PolicyRef == ref })
	outdated := func(what string) string {
		if !a.doc.Connected {
			return "berthd is not connected to berth-operator, and has not received " + what
		}
		return "berthd has not received " + what + " yet"
	}
	switch {
	case d.pod == nil:
		return "no berthd pod runs there"
	case !asked || a.err == nil && !a.doc.Enabled:
		return "berthd does not enforce network policies"
	case a.err != nil:
		return fmt.Sprintf("berthd could not be queried: %v", a.err)
	case i < 0:
		return outdated("the policy")
	}
	switch p := a.doc.Policies[i]; {
	case p.Digest != digest:
		return outdated("the latest version of the policy")
	case p.InForce < p.Pods && a.doc.Failure != "":
		return "the kernel could not be changed: " + a.doc.Failure
	case p.InForce < p.Pods:
		return "the change is being applied"
	case p.Pods < pods:
		return "berthd does not know all of the pods that it selects"
	}
	return ""
}

// deleted returns rows of policies that nodes enforce although they do not exist any more.
func deleted(c *policyCluster, answers map[string]policyAnswer, unread unread) (rows []Policy) {
	on := map[introspect.PolicyRef][]string{}
	for node, a := range answers {
		for _, p := range a.doc.Policies {
			what := "NetworkPolicies"
			if p.Namespace == "" {
				what = "ClusterNetworkPolicies"
			}
			if _, exists := c.compiled[policy.Ref{Namespace: p.Namespace, Name: p.Name}]; !exists && unread.why(what) == "" {
				on[p.PolicyRef] = append(on[p.PolicyRef], node)
			}
		}
	}
	for ref, nodes := range on {
		rows = append(rows, Policy{PolicyRef: ref, Trouble: []string{"it was deleted and is still in force on " + someOf(nodes)}})
	}
	return rows
}

// someOf names a few of some nodes.
func someOf(nodes []string) string {
	const most = 3
	slices.Sort(nodes)
	if len(nodes) <= most {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %s", strings.Join(nodes[:most], ", "), view.Count(len(nodes)-most, "other node"))
}

func writePolicies(p *view.Printer, l Policies, wide bool) {
	head := []string{"KIND", "NAMESPACE", "NAME", "PODS", "NODES", "IN FORCE", "PROBLEMS"}
	if wide {
		head = append(head, "TIER", "PRIORITY")
	}
	g := view.NewGrid(head...)
	for _, row := range l.Policies {
		trouble := "none"
		if n := len(row.Trouble); n > 0 {
			trouble = view.Count(n, "problem")
		}
		cells := []any{row.Kind, row.Namespace, row.Name, row.Pods, row.Nodes, row.InForce, trouble}
		if wide {
			cells = append(cells, row.Tier, row.Priority)
		}
		g.Add(cells...)
		if row.InForce < row.Nodes {
			g.Tint(5, view.Bad)
		}
		if len(row.Trouble) > 0 {
			g.Tint(6, view.Bad)
		}
	}
	p.Table(g, "No network policy exists.")
	for _, row := range l.Policies {
		for _, t := range row.Trouble {
			problem(p, refText(row.PolicyRef), t)
		}
	}
	for _, t := range l.Trouble {
		p.Printf("\n%s %s\n", view.Toned{Text: "!", Tone: view.Bad}, t)
	}
	notRead(p, l.Unread)
}

// PodPolicies is the output of `kubectl berth policy -o json`.
type PodPolicies struct {
	Namespace string                     `json:"namespace"`
	Name      string                     `json:"name"`
	Node      string                     `json:"node,omitempty"`
	Addresses []string                   `json:"addresses"`
	Ingress   []introspect.AppliedPolicy `json:"ingress"` // by the API's objects, in the order in which they are judged
	Egress    []introspect.AppliedPolicy `json:"egress"`
	// Attachments are the pod's, as its node has them: which policies are in force, and since when.
	Attachments []introspect.PolicyAttachment `json:"attachments"`
	// Denied are the counts of its policies, on its node. They have the packets of all pods of the node with these policies.
	Denied  []introspect.DeniedPackets `json:"denied"`
	Trouble []string                   `json:"trouble"` // problems, one sentence each
	Unread  []string                   `json:"unread"`
}

func newPolicy(p *program) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "policy [NAMESPACE/]POD",
		Short: "Show which network policies apply to a pod, and since when they are in force",
		Long: `Show the NetworkPolicies and ClusterNetworkPolicies that select a pod, by direction and in
order of evaluation, and query its node whether and since when they are in force. Exits with
2 if they are not, or if the node enforces other policies.`,
		Example:           "  kubectl berth policy shop/web-0",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion{p}.pod,
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, name, err := p.named("pod", args[0])
			if err != nil {
				return err
			}
			d, err := p.podPolicies(cmd.Context(), ns, name)
			if err != nil {
				return err
			}
			return out.finish(cmd, d, len(d.Trouble)+len(d.Unread) > 0, func(pr *view.Printer, _ bool) { writePodPolicies(pr, d, p) })
		},
	}
	out.register(cmd)
	return cmd
}

// readPod reads a pod that must exist.
func readPod(ctx context.Context, a *api, namespace, name string) (*corev1.Pod, error) {
	pod := a.pod(ctx, namespace, name)
	switch {
	case pod.Unread != "":
		return nil, fmt.Errorf("could not be read: %s", pod.Unread)
	case pod.Value == nil:
		return nil, fmt.Errorf("there is no pod %s/%s", namespace, name)
	}
	return pod.Value, nil
}

func (p *program) podPolicies(ctx context.Context, namespace, name string) (PodPolicies, error) {
	a, err := p.reach(ctx)
	if err != nil {
		return PodPolicies{}, err
	}
	pod, err := readPod(ctx, a, namespace, name)
	if err != nil {
		return PodPolicies{}, err
	}
	if pod.Spec.HostNetwork {
		return PodPolicies{}, fmt.Errorf("pod %s/%s is on the host's network, where network policies do not apply", namespace, name)
	}
	c := newPolicyCluster()
	c.namespaces(ctx, a)
	c.pod(pod)
	c.policies(ctx, a, namespace)
	d := PodPolicies{Namespace: namespace, Name: name, Node: pod.Spec.NodeName, Addresses: []string{}, Attachments: []introspect.PolicyAttachment{}, Denied: []introspect.DeniedPackets{}, Trouble: []string{}}
	d.Ingress, d.Egress = c.applied(namespace, name)
	for _, ip := range pod.Status.PodIPs {
		d.Addresses = append(d.Addresses, ip.IP)
	}
	if d.Node != "" {
		known, _, _ := c.resolver.Policies(types.NamespacedName{Namespace: namespace, Name: name})
		if err := p.askPolicies(ctx, a, string(known.UID), &d); err != nil {
			return PodPolicies{}, err
		}
	}
	d.Unread = a.unread.texts()
	return d, ctx.Err()
}

// askPolicies compares a pod's policies with what its node has in force.
func (p *program) askPolicies(ctx context.Context, a *api, uid string, d *PodPolicies) error {
	bad := func(format string, args ...any) { d.Trouble = append(d.Trouble, fmt.Sprintf(format, args...)) }
	its, ok := p.daemonPods(ctx, a, d.Node)[d.Node]
	switch {
	case !ok && a.unread.why("pods of berthd") != "":
		return nil
	case !ok:
		bad("no berthd pod runs on node %s", d.Node)
		return nil
	case !its.policies:
		bad("berthd of node %s does not enforce network policies: set networkPolicies.enabled in the chart's values", d.Node)
		return nil
	}
	nodes, err := p.nodeClient()
	if err != nil {
		return err
	}
	doc, err := nodes.policies(ctx, its)
	if err != nil {
		bad("berthd of node %s could not be queried: %v", d.Node, err)
		return nil
	}
	d.compare(doc, uid)
	return nil
}

// compare adds what a pod's node reports about it, and how that differs from what the API server has.
func (d *PodPolicies) compare(doc introspect.NetworkPolicies, uid string) {
	bad := func(format string, args ...any) { d.Trouble = append(d.Trouble, fmt.Sprintf(format, args...)) }
	for _, r := range doc.Denied {
		its := d.Egress
		if r.Direction == policy.Ingress.String() {
			its = d.Ingress
		}
		if slices.ContainsFunc(its, func(a introspect.AppliedPolicy) bool { return r.Names(a.PolicyRef) }) {
			d.Denied = append(d.Denied, r)
		}
	}
	for _, at := range doc.Attachments {
		if at.Namespace == d.Namespace && at.Pod == d.Name && at.UID == uid {
			d.Attachments = append(d.Attachments, at)
		}
	}
	switch {
	case !doc.Enabled:
		bad("berthd of node %s does not enforce network policies", d.Node)
	case len(d.Attachments) == 0 && len(d.Addresses) > 0:
		bad("node %s enforces no policies for this pod: berthd does not know it", d.Node)
	}
	for _, at := range d.Attachments {
		switch {
		case !at.Known:
			bad("berth-operator has not sent the pod's policies to node %s", d.Node)
		case !slices.Equal(at.Ingress, d.Ingress) || !slices.Equal(at.Egress, d.Egress):
			bad("node %s has other policies for the pod than the API server", d.Node)
		case !at.InForce:
			bad("the policies are not in force on node %s%s", d.Node, colon(doc.Failure))
		}
	}
	if doc.Enabled && !doc.Connected {
		bad("berthd of node %s is not connected to berth-operator%s", d.Node, colon(doc.ConnectError))
	}
}

func yesOrNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// colon appends a reason to a text, if there is one.
func colon(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func writePodPolicies(p *view.Printer, d PodPolicies, prog *program) {
	verdict := view.Toned{Text: "in force", Tone: view.Good}
	if len(d.Trouble) > 0 {
		verdict = view.Toned{Text: "PROBLEMS", Tone: view.Bad}
	}
	p.Printf("Policies of pod %s/%s on %s: %s\n", d.Namespace, d.Name, cmp.Or(d.Node, "no node"), verdict)
	g := view.NewGrid("DIRECTION", "TIER", "PRIORITY", "POLICY", "ISOLATES")
	for _, by := range []struct {
		direction policy.Direction
		list      []introspect.AppliedPolicy
	}{{policy.Ingress, d.Ingress}, {policy.Egress, d.Egress}} {
		for _, a := range by.list {
			g.Add(by.direction, a.Tier, a.Priority, refText(a.PolicyRef), yesOrNo(a.Isolates))
		}
	}
	p.Table(g, "No policy selects the pod: all connections are allowed.")
	if len(d.Attachments) > 0 {
		p.Section("On its node", view.GridOf(d.Attachments, func(a introspect.PolicyAttachment) []any {
			addrs := make([]string, len(a.Addresses))
			for i, addr := range a.Addresses {
				addrs[i] = addr.String()
			}
			return []any{strings.Join(addrs, " "), yesOrNo(a.InForce), view.Age(a.Since, prog.Now()), len(a.Ingress), len(a.Egress)}
		}, "ADDRESSES", "IN FORCE", "SINCE", "INGRESS", "EGRESS"), "")
	}
	if len(d.Denied) > 0 {
		p.Section("Denied packets on its node, of all pods with these policies", view.GridOf(d.Denied, func(r introspect.DeniedPackets) []any {
			names := make([]string, len(r.Policies))
			for i, ref := range r.Policies {
				names[i] = refText(ref)
			}
			return []any{r.Direction, strings.Join(names, ", "), r.Packets}
		}, "DIRECTION", "POLICIES", "PACKETS"), "")
	}
	for _, t := range d.Trouble {
		p.Printf("\n%s %s\n", view.Toned{Text: "!", Tone: view.Bad}, t)
	}
	notRead(p, d.Unread)
}
