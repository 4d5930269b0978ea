package kubectl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
)

// Egresses is the output of `kubectl berth egresses -o json`.
type Egresses struct {
	Egresses []Egress       `json:"egresses"` // by namespace and name
	Strays   []EgressClient `json:"strays"`   // clients that need attention and that no Egress lists; empty if Egresses are named
	Unread   []string       `json:"unread"`
}

// Egress is one Egress, with its gateways and what is wrong with its clients.
type Egress struct {
	Namespace      string                 `json:"namespace"`
	Name           string                 `json:"name"`
	Destinations   []string               `json:"destinations"`
	TunnelTo       string                 `json:"tunnelTo,omitempty"` // Gateways or Service
	Desired        int32                  `json:"desired"`            // number of gateways
	ReadyGateways  int32                  `json:"readyGateways"`
	Clients        int32                  `json:"clients"`
	RefusedClients int32                  `json:"refusedClients"`
	Available      string                 `json:"available"` // True, False or Unknown
	Reason         string                 `json:"reason,omitempty"`
	ServiceIPs     []string               `json:"serviceIPs"`
	Gateways       []EgressGateway        `json:"gateways"` // that clients may have tunnels to
	Conditions     []introspect.Condition `json:"conditions"`
	Troubled       []EgressClient         `json:"troubled"` // clients that need attention, by namespace and name
	Trouble        []string               `json:"trouble"`  // problems, one sentence each
	unread         bool                   // Egresses could not be read: only its clients are known
}

// EgressGateway is a gateway pod.
type EgressGateway struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	Ending    bool     `json:"ending"` // draining: it serves its connections, but gets no new ones
}

func newEgresses(p *program) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "egresses [[NAMESPACE/]EGRESS...]",
		Short: "Show Egresses, their gateways, and clients with problems",
		Long: `Show all Egresses, or those named: whether they are available, their gateways, how many
pods use them, and the pods that need attention, with the reason and what to do. For named
Egresses, or with -o wide, also conditions and gateways. Exits with 2 on a problem.`,
		Example: `  kubectl berth egresses
  kubectl berth egresses egress/internet`,
		ValidArgsFunction: completion{p}.egress,
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := p.egressList(cmd, args)
			if err != nil {
				return err
			}
			return out.finish(cmd, list, len(list.Unread)+len(list.Strays) > 0 || slices.ContainsFunc(list.Egresses, Egress.unwell), func(pr *view.Printer, wide bool) {
				writeEgresses(pr, list, p, wide, wide || len(args) > 0)
			})
		},
	}
	out.register(cmd)
	return cmd
}

func (p *program) egressList(cmd *cobra.Command, args []string) (Egresses, error) {
	ctx := cmd.Context()
	ids := make([]string, len(args))
	for i, arg := range args {
		namespace, name, err := p.named("egress", arg)
		if err != nil {
			return Egresses{}, err
		}
		ids[i] = namespace + "/" + name
	}
	a, err := p.reach(ctx)
	if err != nil {
		return Egresses{}, err
	}
	o := objects{now: p.Now(), egresses: a.egresses(ctx), clients: a.egressClients(ctx, nil), daemons: p.daemonPods(ctx, a, ""), operator: operatorObjects{pods: p.operatorPods(ctx, a)}}
	o.unread = a.unread
	rows := egressRows(o)
	out := Egresses{Strays: []EgressClient{}, Unread: a.unread.texts()}
	if len(args) == 0 {
		out.Strays = strays(o, rows)
	}
	out.Egresses, err = choose(a, "Egress", "Egresses", rows, ids, Egress.id)
	return out, cmp.Or(err, ctx.Err())
}

// egressRows returns all Egresses, including those that pods name and that do not exist, by
// namespace and name.
func egressRows(o objects) []Egress {
	rows := map[string]*Egress{}
	for i := range o.egresses {
		row := egressOf(&o.egresses[i])
		rows[row.id()] = row
	}
	for _, id := range wanted(o.clients) {
		if rows[id] == nil {
			rows[id] = missingEgress(id, o.unread.why("Egresses") != "")
		}
	}
	for _, c := range clientRows(o) {
		for _, id := range slices.Concat(c.Egresses, c.Refused) {
			if row := rows[id]; row != nil && row.concerns(c) {
				row.Troubled = append(row.Troubled, c)
			}
		}
	}
	out := []Egress{}
	for _, row := range rows {
		row.judge()
		out = append(out, *row)
	}
	slices.SortFunc(out, func(a, b Egress) int { return cmp.Compare(a.id(), b.id()) })
	return out
}

func (e Egress) id() string   { return e.Namespace + "/" + e.Name }
func (e Egress) unwell() bool { return len(e.Trouble) > 0 }

// concerns reports whether a client's problem is about this Egress. A missing gateway is a
// problem of the Egress, not of every client.
func (e Egress) concerns(c EgressClient) bool {
	switch c.Diagnosis.Verdict {
	case diagnose.NoGateway:
		return false
	case diagnose.EgressRefused:
		return slices.Contains(c.Refused, e.id())
	default:
		return !c.Diagnosis.OK && slices.Contains(c.Egresses, e.id())
	}
}

// newEgress returns a row whose lists are empty, not null.
func newEgress(namespace, name string) *Egress {
	return &Egress{
		Namespace: namespace, Name: name, Destinations: []string{}, Available: string(metav1.ConditionUnknown),
		ServiceIPs: []string{}, Gateways: []EgressGateway{}, Conditions: []introspect.Condition{}, Troubled: []EgressClient{}, Trouble: []string{},
	}
}

func missingEgress(id string, unread bool) *Egress {
	namespace, name, _ := strings.Cut(id, "/")
	row := newEgress(namespace, name)
	row.unread = unread
	if !unread {
		row.Trouble = append(row.Trouble, "the Egress does not exist, and pods name it")
	}
	return row
}

func egressOf(e *v1alpha1.Egress) *Egress {
	st := e.Status
	row := newEgress(e.Namespace, e.Name)
	row.TunnelTo, row.Desired, row.ReadyGateways, row.Clients, row.RefusedClients = string(e.Spec.TunnelTo), ptr.Deref(e.Spec.Replicas, 1), st.ReadyGateways, st.Clients, st.RefusedClients
	row.Destinations, row.ServiceIPs = append(row.Destinations, e.Spec.Destinations...), append(row.ServiceIPs, st.ServiceIPs...)
	row.Conditions = conditionsOf(st.Conditions)
	for _, g := range st.Gateways {
		row.Gateways = append(row.Gateways, EgressGateway{Name: g.Name, Addresses: append([]string{}, g.Addresses...), Ending: g.Ending})
	}
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionAvailable); c != nil {
		row.Available, row.Reason = string(c.Status), c.Reason
	}
	return row
}

// judge sets Trouble by conditions and clients.
func (e *Egress) judge() {
	if len(e.Trouble) > 0 { // it does not exist
		return
	}
	if e.unread { // only its clients are known
		e.Trouble = append(e.Trouble, summary(e.Troubled, "pods")...)
		return
	}
	known := map[string]introspect.Condition{}
	for _, c := range e.Conditions {
		known[c.Type] = c
	}
	if _, looked := known[v1alpha1.ConditionAvailable]; !looked {
		e.Trouble = append(e.Trouble, "berth-operator has not reported on it")
	}
	for _, kind := range []string{v1alpha1.ConditionAvailable, v1alpha1.ConditionServiceReady, v1alpha1.ConditionClientsReady} {
		c, is := known[kind]
		switch {
		case !is || c.Status == string(metav1.ConditionTrue):
		case c.Reason == v1alpha1.EgressNoReplicas && e.Clients == 0: // not needed
		case kind == v1alpha1.ConditionClientsReady && len(e.Troubled) > 0: // reported by the clients
		default:
			e.Trouble = append(e.Trouble, fmt.Sprintf("%s is %s (%s): %s: %s", kind, c.Status, c.Reason, c.Message, diagnose.EgressRemedy(c.Reason)))
		}
	}
	e.Trouble = append(e.Trouble, summary(e.Troubled, "pods")...)
}

func writeEgresses(p *view.Printer, list Egresses, prog *program, wide, whole bool) {
	p.Table(egressGrid(list.Egresses, wide), "No Egress exists.")
	for _, e := range list.Egresses {
		for _, t := range e.Trouble {
			problem(p, e.id(), t)
		}
	}
	table := func(rows []EgressClient) *view.Grid { return clientGrid(rows, false) }
	for _, e := range list.Egresses {
		if whole && !e.unread {
			view.Conditions(p, "Conditions of "+e.id(), e.Conditions, prog.Now())
			p.Section("Gateways of "+e.id(), gatewayGrid(e.Gateways), "No gateway accepts connections.")
		}
		writeAttention(p, "Clients of "+e.id(), "client", e.Troubled, wide, table)
	}
	writeAttention(p, "Other clients", "client", list.Strays, wide, table)
	notRead(p, list.Unread)
}

func egressGrid(egresses []Egress, wide bool) *view.Grid {
	head := []string{"EGRESS", "DESTINATIONS", "GATEWAYS", "CLIENTS", "REFUSED", "AVAILABLE"}
	if wide {
		head = append(head, "TUNNELS TO", "SERVICE")
	}
	g := view.NewGrid(head...)
	for _, e := range egresses {
		counts := []any{fmt.Sprintf("%d/%d", e.ReadyGateways, e.Desired), e.Clients, e.RefusedClients}
		if e.unread {
			counts = []any{"", "", ""}
		}
		row := slices.Concat([]any{e.id(), strings.Join(e.Destinations, " ")}, counts, []any{stateOf(e.Available, e.Reason)})
		if wide {
			row = append(row, e.TunnelTo, strings.Join(e.ServiceIPs, " "))
		}
		g.Add(row...)
		if e.ReadyGateways < e.Desired {
			g.Tint(2, view.Warn)
		}
		if e.RefusedClients > 0 {
			g.Tint(4, view.Warn)
		}
		if e.Available != string(metav1.ConditionTrue) {
			g.Tint(5, view.Bad)
		}
	}
	return g
}

func gatewayGrid(gateways []EgressGateway) *view.Grid {
	return view.GridOf(gateways, func(w EgressGateway) []any {
		return []any{w.Name, strings.Join(w.Addresses, " "), view.YesOrWhy(!w.Ending, "draining")}
	}, "GATEWAY", "ADDRESSES", "NEW CONNECTIONS")
}
