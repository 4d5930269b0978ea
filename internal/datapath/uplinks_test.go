package datapath

import (
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// elsewhere are the uplinks of a node whose pods' packets leave by links that others
// plug: none of its own.
type elsewhere struct{}

func (elsewhere) kind() string                                         { return "elsewhere" }
func (elsewhere) validate() error                                      { return nil }
func (elsewhere) ipv6() bool                                           { return true }
func (elsewhere) links(*Node, []netlink.Link) ([]netlink.Link, error)  { return nil, nil }
func (elsewhere) rules(int) []netlink.Rule                             { return nil }
func (elsewhere) owns(netlink.Rule) bool                               { return true }
func (elsewhere) addTo(*ruleset, string)                               {}
func (elsewhere) entries(*Node, *nftables.Conn) (uplinkEntries, error) { return nil, nil }
func (elsewhere) follow(*Node) error                                   { return nil }
func (elsewhere) none() Carriers                                       { return nothing{} }
func (elsewhere) clear(*Node) ([]string, error)                        { return nil, nil }

type nothing struct{}

func (nothing) restore(*Node) ([]string, error)         { return nil, nil }
func (nothing) tidy(*Node, Inventory) ([]string, error) { return nil, nil }

// A further implementation of Uplinks needs no word in those that there are: what they
// left goes, and comes again with them.
func TestFurtherUplinks(t *testing.T) {
	v := newVPC(t)
	for name, before := range map[string]Wanted{
		"ENIs":   {Config: v.settings(), Carriers: UplinkList{v.uplink()}},
		"blocks": {Config: Config{Uplinks: Routed{ExportTable: 119, IPv6: true}}, Carriers: BlockList{block("b", block4)}},
	} {
		n := v.host.open()
		v.ok(n.Setup(ctx, before.Config))
		_, err := n.Repair(ctx, before)
		v.host.must(err)
		further := Wanted{Config: Config{Uplinks: elsewhere{}}}
		v.ok(n.Setup(ctx, further.Config))
		inv, err := n.Inventory(ctx)
		v.host.must(err)
		rules := slices.ContainsFunc(inv.Rules, func(r RuleInfo) bool { return r.Priority != RulePod })
		if len(inv.Uplinks)+len(inv.Blocks) > 0 || rules {
			t.Errorf("%s: Setup left %+v", name, inv)
		}
		if did, err := n.Repair(ctx, further); err != nil || len(did) > 0 {
			t.Errorf("%s: a repair did %v, %v", name, did, err)
		}
		if err := n.SetUplink(ctx, v.uplink()); err == nil {
			t.Errorf("%s: an ENI is taken where there is no VPC", name)
		}
		v.ok(n.Setup(ctx, before.Config))
		_, err = n.Repair(ctx, before)
		v.host.must(err)
		if inv, err = n.Inventory(ctx); err != nil || len(inv.Uplinks)+len(inv.Blocks) != 1 {
			t.Errorf("%s: they did not come again: %+v, %v", name, inv, err)
		}
	}
}
