package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
)

// NodeDetails is the output of `kubectl berth node -o json`.
type NodeDetails struct {
	Node
	Conditions []introspect.Condition `json:"conditions"` // the daemon's, then the NodeNetwork's
	Document   *introspect.Document   `json:"document,omitempty"`
	Unasked    string                 `json:"unasked,omitempty"` // reason why the daemon's document is missing
	Requests   []string               `json:"requests"`          // names of BlockRequests
	Ports      []NIC                  `json:"ports"`             // NICs in VPCs of pods on the node, by namespace and name
	EgressPods []EgressClient         `json:"egressPods"`        // pods on the node that use or request Egresses, by namespace and name
	Events     []Event                `json:"events"`            // Berth's events about the Node, oldest first
	Unread     []string               `json:"unread"`
}

func newNode(p *program) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "node NODE",
		Short: "Show a node: its berthd, addresses, ENIs or blocks, conditions and events",
		Long: `Show a node: its berthd, ENIs, blocks or NICs in VPCs, conditions and events; with
-o wide, also each address and each client of an Egress. The command queries the node itself,
and shows its objects if it does not answer. Exits with 2 on a problem.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion{p}.node,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := p.nodeDetails(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return out.finish(cmd, d, len(d.Trouble)+len(d.Unread) > 0, func(pr *view.Printer, wide bool) { writeNode(pr, d, p, wide) })
		},
	}
	out.register(cmd)
	return cmd
}

func (p *program) nodeDetails(ctx context.Context, name string) (NodeDetails, error) {
	a, err := p.reach(ctx)
	if err != nil {
		return NodeDetails{}, err
	}
	node := a.node(ctx, name)
	network := a.network(ctx, name)
	f := nodeFacts{name: name, now: p.Now(), node: node.Value, network: network.Value}
	daemons := p.daemonPods(ctx, a, name)
	if d, ok := daemons[name]; ok {
		f.daemon = &d
	}
	if node.Absent() && network.Absent() && f.daemon == nil {
		return NodeDetails{}, fmt.Errorf("there is no Node %q", name)
	}
	if f.daemon == nil || f.daemon.mode == diagnose.PoolMode {
		f.blocks = a.blocks(ctx, name)
		f.requests = a.requests(ctx, name)
	}
	o := objects{now: f.now, daemons: daemons, clients: a.egressClients(ctx, query{"fieldSelector": "spec.nodeName=" + name}), nics: a.nics(ctx, podnicsPath, query{"fieldSelector": "status.nodeName=" + name})}
	if len(o.nics) > 0 {
		o.vpcs, o.pods = a.vpcs(ctx), a.podsOfNICs(ctx, o.nics)
	}
	if len(o.nics)+len(o.clients) > 0 {
		o.operator.pods = p.operatorPods(ctx, a)
	}
	o.unread = a.unread
	f.clients, f.nics = clientRows(o), o.nicRows()
	d := NodeDetails{Conditions: []introspect.Condition{}, Requests: []string{}, Ports: f.nics, EgressPods: f.clients, Events: []Event{}}
	if f.daemon != nil {
		nodes, err := p.nodeClient()
		if err != nil {
			return NodeDetails{}, err
		}
		doc, err := nodes.document(ctx, *f.daemon)
		f.answer = &answer{doc: doc, err: err}
		if err != nil {
			d.Unasked = err.Error()
		} else {
			d.Document = &doc
			d.Conditions = append(d.Conditions, doc.Conditions...)
		}
	} else {
		d.Unasked = "no berthd pod runs there"
	}
	if n := network.Value; n != nil {
		d.Conditions = append(d.Conditions, conditionsOf(n.Status.Conditions)...)
	}
	for _, r := range f.requests {
		d.Requests = append(d.Requests, r.Name)
	}
	events, _ := a.events(ctx, "", "Node", name)
	for _, e := range events {
		if ofBerth(e) {
			d.Events = append(d.Events, eventOf(e))
		}
	}
	slices.SortStableFunc(d.Events, func(a, b Event) int { return a.Last.Compare(b.Last) })
	f.unread = a.unread
	d.Node, d.Unread = f.row(), a.unread.texts()
	return d, nil
}

func writeNode(p *view.Printer, d NodeDetails, prog *program, wide bool) {
	now := prog.Now()
	name := d.Name
	if d.InstanceID != "" && d.InstanceID != name {
		name += " (" + strings.TrimSpace(d.InstanceType+" "+d.InstanceID) + ")"
	}
	p.Printf("Node %s in %s mode: %s\n", name, cmp.Or(string(d.Mode), "unknown"), verdictOf(d.Node))
	if d.Daemon.Pod != "" {
		p.Printf("berthd %s, pod %s, %s\n", d.Daemon.Version, d.Daemon.Pod, view.Count(int(d.Daemon.Restarts), "restart"))
	}
	switch c := d.Addresses; {
	case d.Document != nil:
		p.Printf("%s\n", view.Totals(*d.Document))
	case c != nil:
		p.Printf("%d used, %d warm, %d cooling; %s waiting, according to its object\n", c.Used, c.Warm, c.Cooling, view.Count(c.Waiting, "pod"))
	}
	for _, t := range d.Trouble {
		p.Printf("%s %s\n", view.Toned{Text: "!", Tone: view.Bad}, t)
	}
	if d.Unasked != "" {
		p.Printf("%s %s\n", view.Toned{Text: "! the node's own data is missing:", Tone: view.Warn}, d.Unasked)
	}
	if d.Document != nil {
		if wide {
			view.Addresses(p, *d.Document)
		}
		view.Supply(p, *d.Document)
	}
	if len(d.Ports) > 0 {
		p.Section("NICs in VPCs", nicGrid(d.Ports, false, wide), "")
		explain(p, d.Ports)
	}
	if clients := d.EgressPods; len(clients) > 0 {
		if !wide {
			clients = unwell(clients)
		}
		p.Section("Clients of Egresses", clientGrid(clients, false), fmt.Sprintf("No problem with %s.", view.Count(len(d.EgressPods), "pod")))
		explain(p, clients)
	}
	view.Conditions(p, "Conditions", d.Conditions, now)
	if len(d.Events) > 0 {
		p.Section("Events", eventGrid(d.Events, now, wide), "")
	}
	notRead(p, d.Unread)
}

// verdictOf summarizes a row in a few words.
func verdictOf(n Node) view.Toned {
	switch {
	case len(n.Trouble) > 0:
		return view.Toned{Text: "UNHEALTHY", Tone: view.Bad}
	case n.Short:
		return view.Toned{Text: "short of addresses", Tone: view.Warn}
	default:
		return view.Toned{Text: "healthy", Tone: view.Good}
	}
}
