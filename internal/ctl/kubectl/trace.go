package kubectl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/resolve"
)

// Trace is the output of `kubectl berth trace -o json`.
type Trace struct {
	From     TraceEnd     `json:"from"`
	To       TraceEnd     `json:"to"`
	Protocol string       `json:"protocol"`
	Port     uint16       `json:"port,omitempty"` // 0: one that no rule names
	Allowed  bool         `json:"allowed"`        // by the API's objects, in all families
	Agree    bool         `json:"agree"`          // the nodes say the same
	Flows    []TracedFlow `json:"flows"`          // one an IP family
	Trouble  []string     `json:"trouble"`        // how nodes differ, one sentence each
	Unread   []string     `json:"unread"`
}

// TraceEnd is one end of a connection.
type TraceEnd struct {
	Namespace   string       `json:"namespace,omitempty"` // of the pod; empty: no pod has the address
	Pod         string       `json:"pod,omitempty"`
	Node        string       `json:"node,omitempty"` // of the pod, or the node whose address it is
	HostNetwork bool         `json:"hostNetwork,omitempty"`
	Addresses   []netip.Addr `json:"addresses"`
}

// TracedFlow is a connection between addresses of one family.
type TracedFlow struct {
	Source      netip.Addr  `json:"source"`
	Destination netip.Addr  `json:"destination"`
	Allowed     bool        `json:"allowed"`
	Egress      TracedSide  `json:"egress"`  // of the source's policies
	Ingress     TracedSide  `json:"ingress"` // of the destination's policies
	flow        policy.Flow // for nodes
}

// TracedSide is what the policies of one end decide, by the API's objects and by the pod's node.
type TracedSide struct {
	introspect.PolicyDecision
	Isolating []introspect.PolicyRef     `json:"isolating,omitempty"` // the NetworkPolicies that isolate the pod
	NodeOwn   bool                       `json:"nodeOwn,omitempty"`   // a node always reaches its own pods
	Node      *introspect.PolicyDecision `json:"node,omitempty"`      // nil: not asked
}

func newTrace(p *program) *cobra.Command {
	var out output
	var port uint16
	var protocol string
	cmd := &cobra.Command{
		Use:   "trace FROM TO",
		Short: "Explain whether network policies allow a connection",
		Long: `Explain whether network policies allow a connection, and which rule decides: according to
the API server's objects, and to the policies in force on the nodes of both pods. FROM and TO
are [NAMESPACE/]POD or an IP address. Policies match connections after the translation by
Services, so name a pod behind the Service, and the port of the pod.

Without --port, the connection is to a port that no rule names. Exits with 2 if a node's
result differs, or if a node could not be queried.`,
		Example: `  kubectl berth trace shop/web-0 shop/db-0 --port 5432
  kubectl berth trace shop/web-0 192.0.2.7 --port 443`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completion{p}.ends,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := p.trace(cmd.Context(), args[0], args[1], protocol, port)
			if err != nil {
				return err
			}
			return out.finish(cmd, t, len(t.Trouble)+len(t.Unread) > 0, func(pr *view.Printer, _ bool) { writeTrace(pr, t) })
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "destination port of the connection, after the translation by Services")
	cmd.Flags().StringVar(&protocol, "protocol", "tcp", "protocol: tcp, udp, sctp or icmp")
	_ = cmd.RegisterFlagCompletionFunc("protocol", func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return starting([]string{"tcp", "udp", "sctp", "icmp"}, typed)
	})
	out.register(cmd)
	return cmd
}

// protocolNumber returns the number of a protocol for a family (https://www.iana.org/assignments/protocol-numbers).
func protocolNumber(name string, of netip.Addr) (uint8, error) {
	switch strings.ToLower(name) {
	case "tcp":
		return 6, nil
	case "udp":
		return 17, nil
	case "sctp":
		return 132, nil
	case "icmp":
		if of.Is4() {
			return 1, nil
		}
		return 58, nil
	}
	return 0, fmt.Errorf("--protocol is %q, expected tcp, udp, sctp or icmp", name)
}

func (p *program) trace(ctx context.Context, from, to, protocol string, port uint16) (Trace, error) {
	if _, err := protocolNumber(protocol, netip.Addr{}); err != nil {
		return Trace{}, err
	}
	if port != 0 && strings.EqualFold(protocol, "icmp") {
		return Trace{}, errors.New("--port is set, but icmp has no ports")
	}
	a, err := p.reach(ctx)
	if err != nil {
		return Trace{}, err
	}
	c := newPolicyCluster()
	c.namespaces(ctx, a)
	c.readNodes(ctx, a)
	t := Trace{Protocol: strings.ToLower(protocol), Port: port, Allowed: true, Agree: true, Flows: []TracedFlow{}, Trouble: []string{}}
	if t.From, err = p.end(ctx, a, c, "from", from); err != nil {
		return Trace{}, err
	}
	if t.To, err = p.end(ctx, a, c, "to", to); err != nil {
		return Trace{}, err
	}
	var in []string
	for _, e := range []TraceEnd{t.From, t.To} {
		if e.Pod != "" && !e.HostNetwork {
			in = append(in, e.Namespace)
		}
	}
	if len(in) > 0 {
		c.policies(ctx, a, in...)
	}
	if err := t.judge(c); err != nil {
		return Trace{}, err
	}
	if err := p.askBoth(ctx, a, &t); err != nil {
		return Trace{}, err
	}
	t.Agree = len(t.Trouble) == 0
	t.Unread = a.unread.texts()
	return t, ctx.Err()
}

// end reads one end of a connection: a pod by name, or the pod or node that has an address.
func (p *program) end(ctx context.Context, a *api, c *policyCluster, what, arg string) (TraceEnd, error) {
	addr, err := netip.ParseAddr(arg)
	if err == nil {
		return c.endAt(ctx, a, addr.Unmap())
	}
	ns, name, err := p.named("pod", arg)
	if err != nil {
		return TraceEnd{}, fmt.Errorf("%s: %w or an IP address", what, err)
	}
	pod, err := readPod(ctx, a, ns, name)
	if err != nil {
		return TraceEnd{}, err
	}
	e := c.endOf(pod)
	if len(e.Addresses) == 0 {
		return TraceEnd{}, fmt.Errorf("pod %s/%s has no address", ns, name)
	}
	return e, nil
}

func (c *policyCluster) endOf(pod *corev1.Pod) TraceEnd {
	c.pod(pod)
	e := TraceEnd{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork, Addresses: []netip.Addr{}}
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			e.Addresses = append(e.Addresses, addr)
		}
	}
	return e
}

// endAt finds who has an address. The API server finds pods by their first address; a further one takes a look at all.
func (c *policyCluster) endAt(ctx context.Context, a *api, addr netip.Addr) (TraceEnd, error) {
	e := TraceEnd{Node: c.nodes[addr], Addresses: []netip.Addr{addr}}
	if e.Node != "" {
		return e, nil
	}
	var found *corev1.Pod
	look := func(pod *corev1.Pod) {
		if p, ok := resolve.ReadPod(pod); ok && slices.Contains(p.Addrs, addr) {
			found = pod
		}
	}
	for _, q := range []query{{"fieldSelector": "status.podIP=" + addr.String()}, nil} {
		if found == nil {
			pages(ctx, a, "pods", podsOfAll, q, func() {}, look)
		}
	}
	if found != nil {
		e = c.endOf(found)
		e.Addresses = []netip.Addr{addr}
	}
	return e, ctx.Err()
}

// judge decides by the API's objects, for each family that both ends have.
func (t *Trace) judge(c *policyCluster) error {
	for _, source := range t.From.Addresses {
		for _, destination := range t.To.Addresses {
			if source.Is4() != destination.Is4() {
				continue
			}
			f := TracedFlow{Source: source, Destination: destination, flow: policy.Flow{Source: source, Destination: destination, Port: t.Port}}
			var err error
			if f.flow.Protocol, err = protocolNumber(t.Protocol, source); err != nil {
				return err
			}
			j := c.resolver.Judge(f.flow)
			f.Egress = c.side(policy.Egress, j.Source, j.Egress)
			f.Ingress = c.side(policy.Ingress, j.Destination, j.Ingress)
			if t.From.Node != "" && t.From.Node == t.To.Node && (t.From.Pod == "" || t.From.HostNetwork) && !f.Ingress.Allowed {
				f.Ingress = TracedSide{PolicyDecision: introspect.PolicyDecision{Namespace: f.Ingress.Namespace, Pod: f.Ingress.Pod, Allowed: true}, NodeOwn: true}
			}
			f.Allowed = f.Egress.Allowed && f.Ingress.Allowed
			t.Allowed = t.Allowed && f.Allowed
			t.Flows = append(t.Flows, f)
		}
	}
	if len(t.Flows) == 0 {
		return errors.New("FROM and TO have no address of the same family")
	}
	return nil
}

func (c *policyCluster) side(of policy.Direction, pod *types.NamespacedName, d policy.Decision) TracedSide {
	s := TracedSide{PolicyDecision: introspect.DecisionOf(of, d)}
	if pod == nil {
		return s
	}
	s.Namespace, s.Pod = pod.Namespace, pod.Name
	if !d.Isolated {
		return s
	}
	_, list, _ := c.resolver.Policies(*pod)
	for _, p := range list {
		if p.Isolates[of] {
			s.Isolating = append(s.Isolating, policyRef(p.Ref))
		}
	}
	return s
}

// askBoth compares the decisions with those of the pods' nodes.
func (p *program) askBoth(ctx context.Context, a *api, t *Trace) error {
	bad := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(t.Trouble, text) {
			t.Trouble = append(t.Trouble, text)
		}
	}
	for _, name := range slices.Compact([]string{t.From.Node, t.To.Node}) {
		var ask []*TracedFlow
		for i := range t.Flows {
			if f := &t.Flows[i]; f.Egress.of(t.From, name) || f.Ingress.of(t.To, name) {
				ask = append(ask, f)
			}
		}
		if len(ask) == 0 {
			continue
		}
		d, ok := p.daemonPods(ctx, a, name)[name]
		switch {
		case !ok && a.unread.why("pods of berthd") != "":
			continue
		case !ok:
			bad("no berthd pod runs on node %s", name)
			continue
		case !d.policies:
			bad("berthd of node %s does not enforce network policies: set networkPolicies.enabled in the chart's values", name)
			continue
		}
		nodes, err := p.nodeClient()
		if err != nil {
			return err
		}
		for _, f := range ask {
			j, err := nodes.judge(ctx, d, f.flow)
			switch {
			case err != nil:
				bad("berthd of node %s could not be queried: %v", name, err)
			case !j.Enabled:
				bad("berthd of node %s does not enforce network policies", name)
			default:
				if f.Egress.of(t.From, name) {
					f.Egress.compare(policy.Egress, name, j.Egress, bad)
				}
				if f.Ingress.of(t.To, name) {
					f.Ingress.compare(policy.Ingress, name, j.Ingress, bad)
				}
				if j.Failure != "" {
					bad("the kernel of node %s may judge otherwise: %s", name, j.Failure)
				}
			}
		}
	}
	return nil
}

// of reports whether a node judges this side of a connection.
func (s TracedSide) of(e TraceEnd, node string) bool {
	return e.Node == node && s.Pod != "" && !s.NodeOwn
}

// compare adds a node's answer.
func (s *TracedSide) compare(of policy.Direction, node string, d introspect.PolicyDecision, bad func(format string, args ...any)) {
	s.Node = &d
	direction := strings.ToLower(of.String())
	switch its := d.Namespace + "/" + d.Pod; {
	case d.Pod == "":
		bad("node %s enforces no policies for pod %s/%s: berthd does not know it", node, s.Namespace, s.Pod)
	case its != s.Namespace+"/"+s.Pod:
		bad("on node %s the address belongs to pod %s", node, its)
	case d.Allowed != s.Allowed:
		bad("%s: by the API server's objects it is %s (%s), on node %s it is %s (%s)", direction, verdictText(s.Allowed), s.because(of), node, verdictText(d.Allowed), TracedSide{PolicyDecision: d}.because(of))
	case (d.Policy == nil) != (s.Policy == nil) || d.Policy != nil && (*d.Policy != *s.Policy || d.Rule != s.Rule) || d.Isolated != s.Isolated:
		bad("%s: node %s decides by another rule: %s", direction, node, TracedSide{PolicyDecision: d}.because(of))
	}
}

func verdictText(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// because says what decides.
func (s TracedSide) because(of policy.Direction) string {
	switch {
	case s.NodeOwn:
		return "a node always reaches its own pods"
	case s.Policy != nil:
		text := fmt.Sprintf("%s, spec.%s[%d]", refText(*s.Policy), strings.ToLower(of.String()), s.Rule)
		if s.RuleName != "" {
			text += fmt.Sprintf(" (%s)", s.RuleName)
		}
		return text
	case s.Isolated && len(s.Isolating) > 0:
		names := make([]string, len(s.Isolating))
		for i, r := range s.Isolating {
			names[i] = refText(r)
		}
		return "no rule of " + strings.Join(names, ", ") + " accepts it"
	case s.Isolated:
		return "no rule of the NetworkPolicies that select the pod accepts it"
	case s.Pod == "":
		return "not a pod with policies"
	}
	return "no policy decides"
}

// text names an end.
func (e TraceEnd) text() string {
	switch {
	case e.Pod != "":
		return e.Namespace + "/" + e.Pod + " on " + e.Node
	case e.Node != "":
		return e.Addresses[0].String() + " of node " + e.Node
	}
	return e.Addresses[0].String()
}

func writeTrace(p *view.Printer, t Trace) {
	what := strings.ToUpper(t.Protocol)
	if t.Port != 0 {
		what += fmt.Sprintf(" port %d", t.Port)
	}
	p.Printf("%s to %s, %s: %s\n", t.From.text(), t.To.text(), what, view.Toned{Text: verdictText(t.Allowed), Tone: toneOf(t.Allowed)})
	asked := false
	g := view.NewGrid("SOURCE", "DESTINATION", "DIRECTION", "POD", "DECISION", "BY", "ITS NODE")
	for _, f := range t.Flows {
		for _, by := range []struct {
			direction policy.Direction
			side      TracedSide
		}{{policy.Egress, f.Egress}, {policy.Ingress, f.Ingress}} {
			pod, node := "", ""
			asked = asked || by.side.Node != nil
			if by.side.Pod != "" {
				pod = by.side.Namespace + "/" + by.side.Pod
			}
			if by.side.Node != nil {
				node = verdictText(by.side.Node.Allowed)
			}
			g.Add(f.Source, f.Destination, by.direction, pod, verdictText(by.side.Allowed), by.side.because(by.direction), node)
			g.Tint(4, toneOf(by.side.Allowed))
			if by.side.Node != nil && by.side.Node.Allowed != by.side.Allowed {
				g.Tint(6, view.Bad)
			}
		}
	}
	p.Table(g, "")
	if asked && t.Agree {
		p.Printf("The kernel of each pod's node has the policies that decide.\n")
	}
	for _, text := range t.Trouble {
		p.Printf("\n%s %s\n", view.Toned{Text: "!", Tone: view.Bad}, text)
	}
	notRead(p, t.Unread)
}
