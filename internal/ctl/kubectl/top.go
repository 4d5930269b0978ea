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

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
)

// Top is the output of `kubectl berth top -o json`, fullest first.
type Top struct {
	Subnets []Subnet `json:"subnets"`
	ENIs    []ENI    `json:"enis"`
	Pools   []Pool   `json:"pools"`
	Nodes   []Use    `json:"nodes"`
	Unread  []string `json:"unread"`
}

// Subnet is Berth's use of a subnet, as reported by nodes. Only EC2 knows the addresses that others
// use and the free ones.
type Subnet struct {
	ID        string `json:"id"`
	CIDR      string `json:"cidr,omitempty"`
	Nodes     int    `json:"nodes"`
	ENIs      int    `json:"enis"`
	Addresses int    `json:"addresses"` // used by pods, warm, cooling, or being released
	Used      int    `json:"used"`      // of pods
}

// ENI is one interface of a node.
type ENI struct {
	Node        string `json:"node"`
	ID          string `json:"id"`
	DeviceIndex int    `json:"deviceIndex"`
	Subnet      string `json:"subnet"`
	Used        int    `json:"used"`
	Capacity    int    `json:"capacity"` // 0: not known
	Ready       bool   `json:"ready"`
	Reason      string `json:"reason,omitempty"` // why it is not ready
}

// Use is a node's use of its addresses.
type Use struct {
	Name string `json:"name"`
	Counts
	Blocks int `json:"blocks"`
}

func newTop(p *program) *cobra.Command {
	var out output
	var details bool
	var most int
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show subnets, ENIs, pools and nodes, fullest first",
		Long: `Show subnets, ENIs, pools and nodes, fullest first. In operator mode the command reads
NodeNetworks; in node mode, and with --details, it queries the nodes. Each table has 20 rows,
or as many as --most; JSON and YAML have all.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 1 {
				return fmt.Errorf("--most is %d, expected 1 or more", most)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), within, fmt.Errorf("not done within --timeout %v", within))
			defer cancel()
			o, err := p.gather(ctx, cmd, details)
			if err != nil {
				return err
			}
			t := topOf(o)
			return out.show(cmd, t, func(pr *view.Printer, wide bool) { writeTop(pr, t, most, wide) })
		},
	}
	cmd.Flags().BoolVar(&details, "details", false, "query the berthd of every node")
	cmd.Flags().IntVar(&most, "most", 20, "number of rows of each table")
	cmd.Flags().DurationVar(&within, "timeout", 2*time.Minute, "limit for the whole command")
	out.register(cmd)
	return cmd
}

// topOf sorts subnets, ENIs, pools and nodes by use. A node's own data takes precedence over its object.
func topOf(o objects) Top {
	t := Top{Subnets: []Subnet{}, ENIs: []ENI{}, Pools: poolsOf(o), Nodes: []Use{}, Unread: o.unread.texts()}
	for _, n := range nodesOf(o) {
		u := Use{Name: n.Name, Blocks: n.Blocks}
		if n.Addresses != nil {
			u.Counts = *n.Addresses
		}
		if n.Addresses != nil || n.Blocks > 0 {
			t.Nodes = append(t.Nodes, u)
		}
		if a, ok := o.answers[n.Name]; ok && a.err != nil {
			t.Unread = append(t.Unread, fmt.Sprintf("node %s: %v", n.Name, a.err))
		}
	}
	subnets := map[string]*Subnet{}
	at := func(id string) *Subnet {
		if subnets[id] == nil {
			subnets[id] = &Subnet{ID: id}
		}
		return subnets[id]
	}
	asked := map[string]bool{} // nodes whose own data takes precedence
	for name, a := range o.answers {
		if a.err == nil && len(a.doc.ENIs) > 0 {
			asked[name] = true
			t.addDocument(name, a.doc, at)
		}
	}
	for i := range o.networks {
		t.addNetwork(&o.networks[i], asked[o.networks[i].Name], at)
	}
	for _, s := range subnets {
		t.Subnets = append(t.Subnets, *s)
	}
	slices.SortFunc(t.Subnets, func(a, b Subnet) int { return cmp.Or(b.Used-a.Used, b.Addresses-a.Addresses, cmp.Compare(a.ID, b.ID)) })
	slices.SortFunc(t.ENIs, func(a, b ENI) int {
		return cmp.Or(b.Used*max(1, a.Capacity)-a.Used*max(1, b.Capacity), cmp.Compare(a.Node, b.Node), a.DeviceIndex-b.DeviceIndex)
	})
	slices.SortFunc(t.Pools, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(share(b.Blocks.Allocated, b.Blocks.Total), share(a.Blocks.Allocated, a.Blocks.Total)), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(t.Nodes, func(a, b Use) int {
		return cmp.Or(b.Waiting-a.Waiting, cmp.Compare(share(b.Used+b.Cooling, b.Capacity), share(a.Used+a.Cooling, a.Capacity)), b.Used-a.Used, cmp.Compare(a.Name, b.Name))
	})
	return t
}

func share[T int | int64](part, whole T) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func (t *Top) addDocument(node string, doc introspect.Document, subnet func(string) *Subnet) {
	here := map[string]bool{}
	for _, e := range doc.ENIs {
		t.ENIs = append(t.ENIs, ENI{node, e.ID, e.DeviceIndex, e.Subnet, e.Used, e.Capacity, e.Ready, e.Reason})
		s := subnet(e.Subnet)
		s.ENIs++
		s.Used += e.Used
		s.Addresses += max(e.Used, e.Prefixes*ipam.PrefixAddresses)
		here[e.Subnet] = true
	}
	// The lists that name the ENI of each warm or cooling address were dropped. If all ENIs
	// of the node are in one subnet, those addresses are in it too.
	if len(here) == 1 {
		for id := range here {
			s := subnet(id)
			extra := doc.Totals.Available + doc.Totals.Cooling + doc.Totals.NotReady + doc.Totals.Withdrawn
			s.Addresses += max(0, extra-max(0, prefixesOf(doc)*ipam.PrefixAddresses-doc.Totals.Allocated))
		}
	}
	for id := range here {
		subnet(id).Nodes++
	}
}

func prefixesOf(doc introspect.Document) (n int) {
	for _, e := range doc.ENIs {
		n += e.Prefixes
	}
	return n
}

// addNetwork adds a NodeNetwork; for a node that was queried, it adds only the CIDRs of subnets.
func (t *Top) addNetwork(n *v1alpha1.NodeNetwork, asked bool, subnet func(string) *Subnet) {
	counts, families := enisOf(n), policyOf(n).Families
	here := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(n.Status.ENI.ENIs)) {
		e := n.Status.ENI.ENIs[id]
		s := subnet(e.SubnetID)
		s.CIDR = cmp.Or(s.CIDR, e.SubnetCIDR, strings.Join(e.SubnetIPv6CIDRs, ",")) // an IPv6-only subnet has no IPv4 CIDR
		if asked {
			continue
		}
		capacity, has := 0, counts[id]
		if l := n.Status.ENI.Limits; l != nil {
			capacity = max(0, int(l.AddressesPerENI)-1)
		}
		t.ENIs = append(t.ENIs, ENI{Node: n.Name, ID: id, DeviceIndex: int(e.DeviceIndex), Subnet: e.SubnetID, Used: slices.Max(has.used[:]), Capacity: max(capacity, plan.Pods(families, has.all)), Ready: true})
		s.ENIs++
		s.Addresses += plan.Count(has.all)
		s.Used += has.used[ipfamily.IPv4]
		here[e.SubnetID] = true
	}
	for id := range here {
		subnet(id).Nodes++
	}
}

func writeTop(p *view.Printer, t Top, most int, wide bool) {
	subnets := view.GridOf(first(t.Subnets, most), func(s Subnet) []any {
		return []any{s.ID, s.Used, s.Addresses, s.ENIs, s.Nodes, s.CIDR}
	}, "SUBNET", "USED", "ADDRESSES", "ENIS", "NODES", "CIDR")
	enis := view.GridOf(first(t.ENIs, most), func(e ENI) []any {
		return []any{e.ID, percent(e.Used, e.Capacity), e.Used, e.Capacity, e.DeviceIndex, e.Subnet, e.Node, view.YesOrWhy(e.Ready, e.Reason)}
	}, "ENI", "USE", "USED", "CAPACITY", "INDEX", "SUBNET", "NODE", "READY")
	nodes := view.GridOf(first(t.Nodes, most), func(n Use) []any {
		return slices.Concat([]any{n.Name, percent(n.Used+n.Cooling, n.Capacity)}, n.Counts.cells(), []any{n.Capacity, n.Blocks})
	}, "NODE", "USE", "USED", "WARM", "COOLING", "WAITING", "CAPACITY", "BLOCKS")
	some := false
	section := func(title string, all int, g *view.Grid) {
		if all == 0 {
			return
		}
		if all > most {
			title += fmt.Sprintf(" (%d of %d)", most, all)
		}
		if some {
			p.Printf("\n")
		}
		some = true
		p.Printf("%s\n", view.Toned{Text: title, Tone: view.Title})
		p.Table(g, "")
	}
	section("Subnets", len(t.Subnets), subnets)
	section("ENIs", len(t.ENIs), enis)
	section("Pools", len(t.Pools), poolGrid(first(t.Pools, most), wide))
	section("Nodes", len(t.Nodes), nodes)
	if !some {
		p.Printf("No node has reported addresses.\n")
	}
	notRead(p, t.Unread)
}

func first[T any](list []T, most int) []T { return list[:min(len(list), most)] }
