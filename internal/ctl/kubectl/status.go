package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
)

// listed is the maximum number of rows for which tables include healthy rows.
const listed = 50

// leaseName is the Lease that the leading operator holds.
const leaseName = "berth-operator"

func newStatus(p *program) *cobra.Command {
	var out output
	var details, every bool
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of Berth in the whole cluster, and all problems",
		Long: `Show nodes, addresses, pools, VPCs, Egresses, versions and all problems.

In operator mode, the command reads the nodes' objects. In node mode, it queries every
berthd. With address pools, it shows the blocks of nodes, but not their addresses; with
VPC ports, it shows the NICs. --details queries every node in all modes. Nodes that enforce
network policies are always queried.

For more than 50 nodes the table lists only those with problems; --all lists all. JSON
and YAML list all nodes. Exits with 2 on a problem.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), within, fmt.Errorf("not done within --timeout %v", within))
			defer cancel()
			release := make(chan *SettingsState, 1)
			go func() { release <- releaseState(ctx, p) }()
			o, err := p.gather(ctx, cmd, details)
			if err != nil {
				return err
			}
			s := statusOf(o)
			s.Settings = <-release
			s.Settings.Programs = programDrift(o)
			return out.finish(cmd, s, !s.Healthy, func(pr *view.Printer, wide bool) { writeStatus(pr, s, wide, every) })
		},
	}
	cmd.Flags().BoolVar(&details, "details", false, "query the berthd of every node")
	cmd.Flags().BoolVar(&every, "all", false, "list every node, however many")
	cmd.Flags().DurationVar(&within, "timeout", 2*time.Minute, "limit for the whole command; nodes not queried by then are marked as such")
	out.register(cmd)
	return cmd
}

// gather reads objects from the API server, and queries the nodes that have none, or all
// nodes with details.
func (p *program) gather(ctx context.Context, cmd *cobra.Command, details bool) (objects, error) {
	o, err := p.read(ctx)
	if err != nil {
		return objects{}, err
	}
	var ask []daemon
	for _, name := range slices.Sorted(maps.Keys(o.daemons)) {
		if d := o.daemons[name]; details || d.mode == diagnose.NodeMode || d.policies {
			ask = append(ask, d)
		}
	}
	if len(ask) > 0 {
		nodes, err := p.nodeClient()
		if err != nil {
			return objects{}, err
		}
		done, end := p.progress(cmd, len(ask))
		o.answers = nodes.documents(ctx, ask, done)
		end()
	}
	return o, nil
}

// read lists Berth's objects.
func (p *program) read(ctx context.Context) (objects, error) {
	a, err := p.reach(ctx)
	if err != nil {
		return objects{}, err
	}
	o := objects{now: p.Now()}
	a.atOnce(
		func(a *api) { o.nodes = a.nodes(ctx) },
		func(a *api) { o.daemons = p.daemonPods(ctx, a, "") },
		func(a *api) { o.networks = a.networks(ctx) },
		func(a *api) { o.pools = a.pools(ctx) },
		func(a *api) { o.blocks = a.blocks(ctx, "") },
		func(a *api) { o.requests = a.requests(ctx, "") },
		func(a *api) { o.vpcs = a.vpcs(ctx) },
		func(a *api) { o.nics = a.nics(ctx, podnicsPath, nil) },
		func(a *api) { o.egresses = a.egresses(ctx) },
		func(a *api) { o.clients = a.egressClients(ctx, nil) }, // pods may name Egresses that do not exist
	)
	if o.needOperator() {
		o.operator.pods = p.operatorPods(ctx, a)
		o.operator.lease = a.lease(ctx, p.daemons)
	}
	if len(enforcing(o.daemons)) > 0 {
		c := newPolicyCluster()
		if c.policies(ctx, a); c.namesPorts() {
			c.namespaces(ctx, a)
			c.pods(ctx, a)
		}
		o.operator.policies = c
	}
	o.unread = a.unread
	return o, ctx.Err()
}

func writeStatus(p *view.Printer, s Status, wide, every bool) {
	head(p, s)
	g := view.NewGrid(nodeHead(s, wide)...)
	hidden := 0
	for _, n := range s.Nodes {
		if len(s.Nodes) > listed && !every && len(n.Trouble) == 0 && !n.Short {
			hidden++
			continue
		}
		addNode(g, s, n, wide)
	}
	p.Section("Nodes", g, fmt.Sprintf("No problem on %s.", view.Count(hidden, "node")))
	if hidden > 0 && g.Len() > 0 {
		p.Printf("%s without problems: --all lists them.\n", view.Count(hidden, "more node"))
	}
	if len(s.Pools) > 0 {
		p.Section("Pools", poolGrid(s.Pools, wide), "")
	}
	if len(s.VPCs) > 0 {
		p.Section("VPCs", vpcGrid(s.VPCs, wide), "")
	}
	if len(s.Egresses) > 0 {
		p.Section("Egresses", egressGrid(s.Egresses, wide), "")
	}
	troubles(p, s)
	notRead(p, s.Unread)
}

// troubles prints all problems, one line each.
func troubles(p *view.Printer, s Status) {
	some := false
	say := func(what string, lines []string) {
		for _, t := range lines {
			p.Printf("\n%s %s", view.Toned{Text: "! " + what + ":", Tone: view.Bad}, t)
			some = true
		}
	}
	for _, n := range s.Nodes {
		say(n.Name, n.Trouble)
	}
	for _, pool := range s.Pools {
		say("pool "+pool.Name, pool.Trouble)
	}
	for _, v := range s.VPCs {
		say("VPC "+v.Name, v.Trouble)
	}
	for _, e := range s.Egresses {
		say("Egress "+e.id(), e.Trouble)
	}
	if some {
		p.Printf("\n")
	}
}

// head prints a summary of the cluster.
func head(p *view.Printer, s Status) {
	modes := make([]string, 0, len(s.Modes))
	for _, m := range s.Modes {
		modes = append(modes, string(m))
	}
	versions := make([]string, 0, len(s.Versions))
	for _, v := range s.Versions {
		versions = append(versions, fmt.Sprintf("%s on %s", v.Version, view.Count(v.Nodes, "node")))
	}
	verdict := view.Toned{Text: "healthy", Tone: view.Good}
	if !s.Healthy {
		verdict = view.Toned{Text: "UNHEALTHY", Tone: view.Bad}
	}
	p.Printf("Berth in %s mode: %s\n", cmp.Or(strings.Join(modes, " and "), "unknown"), verdict)
	t := s.Totals
	p.Printf("%s, %d without problems; berthd %s\n", view.Count(t.Nodes, "node"), t.Healthy, cmp.Or(strings.Join(versions, ", "), "version unknown"))
	if o := s.Operator; o != nil {
		p.Printf("Operator: %d of %s ready; the leader is %s\n", o.Ready, view.Count(o.Pods, "pod"), cmp.Or(o.Leader, "unknown"))
	}
	s.Settings.write(p)
	if t.Unknown < t.Nodes {
		p.Printf("Addresses: %d used, %d warm, %d cooling", t.Used, t.Warm, t.Cooling)
		if t.Unknown > 0 {
			p.Printf(" on %s", view.Count(t.Nodes-t.Unknown, "node"))
		}
		p.Printf("; %s waiting, %s short of addresses\n", view.Count(t.Waiting, "pod"), view.Count(t.Short, "node"))
	} else if t.Short > 0 {
		p.Printf("%s short of addresses\n", view.Count(t.Short, "node"))
	}
	for _, why := range s.Trouble {
		p.Printf("%s %s\n", view.Toned{Text: "!", Tone: view.Bad}, why)
	}
}

func nodeHead(s Status, wide bool) []string {
	h := []string{"NODE", "READY", "BERTHD", "USED", "WARM", "COOLING", "WAITING"}
	if slices.Contains(s.Modes, diagnose.PoolMode) {
		h = append(h, "BLOCKS")
	}
	if len(s.VPCs) > 0 {
		h = append(h, "NICS")
	}
	if s.egress() {
		h = append(h, "CLIENTS")
	}
	h = append(h, "TROUBLE")
	if wide {
		h = append(h, "MODE", "VERSION", "RESTARTS", "NEEDED", "CAPACITY", "ENIS", "INSTANCE", "TYPE", "ZONE", "POD")
	}
	return h
}

// egress reports whether there are Egresses, or pods that use or request one.
func (s Status) egress() bool {
	return len(s.Egresses) > 0 || slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.Clients > 0 })
}

func addNode(g *view.Grid, s Status, n Node, wide bool) {
	state := "missing"
	switch {
	case n.Daemon.Ready:
		state = "ready"
	case n.Daemon.Pod != "":
		state = "not ready"
	}
	row := append([]any{n.Name, yesNo(n.Ready), state}, n.Addresses.cells()...)
	if slices.Contains(s.Modes, diagnose.PoolMode) {
		row = append(row, n.Blocks)
	}
	if len(s.VPCs) > 0 {
		row = append(row, n.NICs)
	}
	if s.egress() {
		row = append(row, n.Clients)
	}
	what := "none"
	if len(n.Trouble) > 0 {
		what = view.Count(len(n.Trouble), "problem")
	} else if n.Short {
		what = "short of addresses"
	}
	row = append(row, what)
	last := len(row) - 1
	if wide {
		var needed, capacity any = "", ""
		if c := n.Addresses; c != nil {
			needed, capacity = c.Needed, c.Capacity
		}
		row = append(row, n.Mode, n.Daemon.Version, n.Daemon.Restarts, needed, capacity, n.ENIs, n.InstanceID, n.InstanceType, n.Zone, n.Daemon.Pod)
	}
	g.Add(row...)
	if n.Ready != "True" {
		g.Tint(1, view.Bad)
	}
	if state != "ready" {
		g.Tint(2, view.Bad)
	}
	if n.Addresses != nil && n.Addresses.Waiting > 0 {
		g.Tint(6, view.Warn)
	}
	if len(n.Trouble) > 0 {
		g.Tint(last, view.Bad)
	} else if n.Short {
		g.Tint(last, view.Warn)
	}
}
