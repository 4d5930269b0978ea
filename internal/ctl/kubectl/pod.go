package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/node/introspect"
)

// PodDetails is the output of `kubectl berth pod -o json`.
type PodDetails struct {
	Namespace   string                  `json:"namespace"`
	Name        string                  `json:"name"`
	Node        string                  `json:"node,omitempty"`
	Phase       string                  `json:"phase"`
	Addresses   []string                `json:"addresses"` // in the pod's status
	Diagnosis   diagnose.Diagnosis      `json:"diagnosis"`
	NICs        []NIC                   `json:"nics"`                   // in VPCs, by interface
	Egress      *EgressClient           `json:"egressClient,omitempty"` // nil if the pod uses no Egress
	Attachments []introspect.Attachment `json:"attachments"`            // as recorded on its node
	Waiting     []introspect.Waiting    `json:"waiting"`
	Events      []Event                 `json:"events"` // Berth's events and events about its sandbox, oldest first
	Unread      []string                `json:"unread"`
}

func newPod(p *program) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "pod [NAMESPACE/]POD",
		Short: "Explain why a pod has no address, or check the one that it has",
		Long: `Explain why a pod has no address or lacks a NIC, and what to do. For a pod that has an
address, show the address with its ENI or block, policy rules and age; NICs in VPCs with
port, addresses, MAC address, host and what they wait for; and the Egresses that the pod
uses, with the gateways of its tunnels. The node compares link, addresses, neighbours and
routes with the kernel, as CNI CHECK does.

Exits with 2 if the pod needs attention.`,
		Example: `  kubectl berth pod shop/web-0
  kubectl berth pod -n shop web-0 -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion{p}.pod,
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, name, err := p.named("pod", args[0])
			if err != nil {
				return err
			}
			d, err := p.podDetails(cmd.Context(), ns, name)
			if err != nil {
				return err
			}
			return out.finish(cmd, d, !d.Diagnosis.OK, func(pr *view.Printer, wide bool) { writePod(pr, d, p, wide) })
		},
	}
	out.register(cmd)
	return cmd
}

func (p *program) podDetails(ctx context.Context, namespace, name string) (PodDetails, error) {
	a, err := p.reach(ctx)
	if err != nil {
		return PodDetails{}, err
	}
	pod := a.pod(ctx, namespace, name)
	switch {
	case pod.Unread != "":
		return PodDetails{}, fmt.Errorf("could not be read: %s", pod.Unread)
	case pod.Value == nil:
		return PodDetails{}, fmt.Errorf("there is no pod %s/%s", namespace, name)
	}
	f, err := p.facts(ctx, a, pod.Value)
	if err != nil {
		return PodDetails{}, err
	}
	d := PodDetails{
		Namespace: namespace, Name: name, Node: pod.Value.Spec.NodeName, Phase: string(pod.Value.Status.Phase), Addresses: []string{},
		Diagnosis: diagnose.Pod(f), NICs: []NIC{}, Attachments: []introspect.Attachment{}, Waiting: []introspect.Waiting{}, Events: []Event{}, Unread: a.unread.texts(),
	}
	for _, ip := range pod.Value.Status.PodIPs {
		d.Addresses = append(d.Addresses, ip.IP)
	}
	if f.NICs.Value != nil {
		for i := range *f.NICs.Value {
			o := &(*f.NICs.Value)[i]
			d.NICs = append(d.NICs, nicOf(o, f.OfNIC(o)))
		}
	}
	if o := diagnose.EgressClientOf(f); o != nil {
		if c := clientOf(o, *f.OfEgress()); c.uses() {
			d.Egress = &c
		}
	}
	if v := f.View.Value; v != nil {
		d.Attachments, d.Waiting = append(d.Attachments, v.Attachments...), append(d.Waiting, v.Waiting...)
	}
	for _, e := range f.Events {
		if ofBerth(e) || e.Reason == "FailedCreatePodSandBox" {
			d.Events = append(d.Events, eventOf(e))
		}
	}
	return d, nil
}

// facts reads only the inputs that the diagnosis needs: a pod without a node does not depend
// on Berth yet.
func (p *program) facts(ctx context.Context, a *api, pod *corev1.Pod) (diagnose.Facts, error) {
	f := diagnose.Facts{Now: p.Now(), Pod: pod}
	if !pod.Spec.HostNetwork {
		a.nicFacts(ctx, pod, &f)
	}
	a.egressFacts(ctx, pod, &f)
	if pod.Spec.NodeName == "" || pod.Spec.HostNetwork {
		if membership.Annotated(pod.Annotations) {
			f.Operators = p.operatorsNow(ctx, a)
		}
		return f, nil
	}
	node := pod.Spec.NodeName
	f.Events, _ = a.events(ctx, pod.Namespace, "Pod", pod.Name)
	f.Events = slices.DeleteFunc(f.Events, func(e corev1.Event) bool { // events of an earlier pod with the same name
		return e.InvolvedObject.UID != "" && e.InvolvedObject.UID != pod.UID
	})
	slices.SortStableFunc(f.Events, func(x, y corev1.Event) int { return diagnose.EventTime(x).Compare(diagnose.EventTime(y)) })
	f.Node = a.node(ctx, node)
	daemons := p.daemonPods(ctx, a, node)
	d, ok := daemons[node]
	switch {
	case ok:
		f.Daemon = diagnose.Of(d.facts())
		if err := p.askAbout(ctx, d, pod, &f); err != nil {
			return f, err
		}
	case a.unread.why("pods of berthd") != "":
		f.Daemon = diagnose.Unread[diagnose.Daemon]("the berthd pod of the node is unknown")
		f.View = diagnose.Unread[introspect.Pod](f.Daemon.Unread)
	}
	mode := diagnose.NodeMode
	if ok {
		mode = d.mode
	}
	switch mode {
	case diagnose.OperatorMode:
		f.NodeNetwork = a.network(ctx, node)
	case diagnose.PoolMode:
		f.Pools = listFact(a, "AddressPools", a.pools(ctx))
		f.Requests = listFact(a, "BlockRequests", a.requests(ctx, node))
	case diagnose.NodeMode, diagnose.PortMode, diagnose.EgressMode:
	}
	if mode != diagnose.NodeMode || f.NICs.Value != nil || f.EgressClient.Value != nil || membership.Annotated(pod.Annotations) {
		f.Operators = p.operatorsNow(ctx, a)
	}
	return f, nil
}

// operatorsNow counts the pods of berth-operator.
func (p *program) operatorsNow(ctx context.Context, a *api) diagnose.Fact[diagnose.Operators] {
	pods := p.operatorPods(ctx, a) // pods may append to a.unread
	return operatorsFact(objects{operator: operatorObjects{pods: pods}, unread: a.unread})
}

// listFact returns a list as a fact, which is unread if reading the list failed.
func listFact[T any](a *api, what string, list []T) diagnose.Fact[[]T] {
	if why := a.unread.why(what); why != "" {
		return diagnose.Unread[[]T](why)
	}
	return diagnose.Of(list)
}

// askAbout queries the pod's node about the pod.
func (p *program) askAbout(ctx context.Context, d daemon, pod *corev1.Pod, f *diagnose.Facts) error {
	nodes, err := p.nodeClient()
	if err != nil {
		return err
	}
	view, err := nodes.pod(ctx, d, pod.Namespace, pod.Name)
	if err != nil {
		f.View = diagnose.Unread[introspect.Pod](err.Error())
		return nil
	}
	f.View = diagnose.Of(view)
	if doc, err := nodes.document(ctx, d); err != nil {
		f.Document = diagnose.Unread[introspect.Document](err.Error())
	} else {
		f.Document = diagnose.Of(doc)
	}
	if !d.policies {
		return nil
	}
	if doc, err := nodes.policies(ctx, d); err != nil {
		f.Policies = diagnose.Unread[introspect.NetworkPolicies](err.Error())
	} else {
		f.Policies = diagnose.Of(doc)
	}
	return nil
}

func writePod(p *view.Printer, d PodDetails, prog *program, wide bool) {
	now := prog.Now()
	p.Printf("Pod %s/%s on %s: %s\n", d.Namespace, d.Name, cmp.Or(d.Node, "no node"), view.Toned{Text: string(d.Diagnosis.Verdict), Tone: toneOf(d.Diagnosis.OK)})
	p.Printf("%s\n", d.Diagnosis.Summary)
	if d.Diagnosis.Remedy != "" {
		p.Printf("What to do: %s\n", d.Diagnosis.Remedy)
	}
	if d.Diagnosis.See != "" {
		p.Printf("See %s\n", d.Diagnosis.See)
	}
	if len(d.NICs) > 0 {
		p.Section("NICs in VPCs", nicGrid(d.NICs, true, wide), "")
		explain(p, d.NICs)
	}
	if d.Egress != nil {
		p.Section("Egresses", clientGrid([]EgressClient{*d.Egress}, true), "")
		explain(p, []EgressClient{*d.Egress})
	}
	writeAttachments(p, d, now, wide)
	if len(d.Events) > 0 {
		p.Section("Events", eventGrid(d.Events, now, wide), "")
	}
	notRead(p, d.Unread)
}

// writeAttachments prints the pod's attachments on its node.
func writeAttachments(p *view.Printer, d PodDetails, now time.Time, wide bool) {
	if len(d.Attachments) > 0 {
		g := view.NewGrid("ADDRESS", "IPV6", "INTERFACE", "FROM", "POOL", "LINK", "MTU", "SINCE", "STATE", "PATH")
		for _, a := range d.Attachments {
			path := "not checked"
			switch {
			case a.Fault != "":
				path = a.Fault
			case a.Checked:
				path = "intact"
			}
			g.Add(view.Text(a.Address), view.Text(a.IPv6), a.Interface, a.Group(), a.Pool, a.HostLink, a.MTU, view.Age(a.Since, now), a.State, path)
			if a.Checked && a.Fault != "" {
				g.Tint(9, view.Bad)
			}
		}
		p.Section("On its node", g, "")
	}
	var nics []introspect.NIC
	for _, a := range d.Attachments {
		nics = append(nics, a.NICs...)
	}
	if len(nics) > 0 {
		p.Section("Ports of its VPC", view.NICs(nics), "")
	}
	writeTunnels(p, d.Attachments)
	for _, a := range d.Attachments {
		if len(a.Rules) == 0 {
			continue
		}
		p.Section("Policy rules for packets of "+a.Address.String(), view.GridOf(a.Rules, func(r string) []any { return []any{r} }, "RULE"), "")
		if !wide {
			break
		}
	}
}

// writeTunnels prints a pod's tunnels to gateways, or states that the pod is a gateway.
func writeTunnels(p *view.Printer, attachments []introspect.Attachment) {
	for _, a := range attachments {
		switch e := a.Egress; {
		case e == nil:
		case e.Forward:
			p.Printf("\nThe pod is a gateway of an Egress: its node forwards packets in its network namespace.\n")
		case len(e.Egresses) > 0:
			p.Section("Tunnels to gateways", view.Tunnels(*e), "")
		}
	}
}
