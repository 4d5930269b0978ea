package coil

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Rules of Berth's Egresses, and of others, have the same priorities as Coil's.
func TestRulesOfClients(t *testing.T) {
	to := rtnl.IPNet(netip.MustParsePrefix("10.0.0.0/8"))
	for name, tt := range map[string]struct {
		rule netlink.Rule
		want bool
	}{
		"link-local":         {netlink.Rule{Priority: 1800, Dst: to, Table: unix.RT_TABLE_MAIN}, true},
		"destinations":       {netlink.Rule{Priority: 1900, Table: 117}, true},
		"third network":      {netlink.Rule{Priority: 2002, Dst: to, Table: unix.RT_TABLE_MAIN}, true},
		"default":            {netlink.Rule{Priority: 2100, Table: 118}, true},
		"replies":            {netlink.Rule{Priority: 1000, Mark: 4, Table: 1004}, true},
		"Berth's":            {netlink.Rule{Priority: 1900, Table: 117, Protocol: uint8(rtnl.Protocol)}, false},
		"another table":      {netlink.Rule{Priority: 1900, Table: 99}, false},
		"another mark":       {netlink.Rule{Priority: 1000, Mark: 5, Table: 1004}, false},
		"without mark":       {netlink.Rule{Priority: 1000, Table: 1000}, false},
		"network of others":  {netlink.Rule{Priority: 2003, Dst: to, Table: unix.RT_TABLE_MAIN}, false},
		"main to everywhere": {netlink.Rule{Priority: 2000, Table: unix.RT_TABLE_MAIN}, false},
	} {
		if got := isEgressRule(tt.rule); got != tt.want {
			t.Errorf("%s: isEgressRule() = %t, want %t", name, got, tt.want)
		}
	}
}

// Coil makes tunnels only when a pod starts, so that a client that Berth created cannot be Coil's.
func TestClientsThatBerthCreatedStay(t *testing.T) {
	rec := attachment.Record{HostLink: "bth0123456789", Lease: attachment.Lease{IPv4: netip.MustParseAddr("10.72.0.3")}}
	blocks, known := []netip.Prefix{netip.MustParsePrefix("10.72.0.0/28")}, form{version: 2}
	n := &Node{}
	if _, why := n.former(rec, known, blocks); why != "" {
		t.Errorf("a pod without Egress stays Berth's: %s", why)
	}
	rec.Egress = &attachment.Egress{Egresses: []attachment.UsedEgress{{Namespace: "internet", Name: "nat"}}}
	if _, why := n.former(rec, known, blocks); !strings.Contains(why, "uses an Egress of Berth") {
		t.Errorf("a client of Berth: %q, want that it cannot be Coil's", why)
	}
}

// A client without a name is replaced, since berthd would not find its Egress. Others keep running; the plan says when they
// change their gateway, and that this can be undone.
func TestPlanOfClients(t *testing.T) {
	client := pod{Egress: egressUse{client: true, inForce: true}}
	client.Container, client.Link.Index, client.Pool, client.Addrs = "c", 1, "default", []netip.Addr{netip.MustParseAddr("10.72.0.3")}
	if fate, why := client.fate(); fate != migrate.Replace || !strings.Contains(why, "uses an Egress of Coil") {
		t.Errorf("fate of a client without name = %s, %q", fate, why)
	}
	client.Pod, client.Netns.Path = attachment.Pod{Namespace: "shop", Name: "web"}, "/run/netns/web"
	if fate, _ := client.fate(); fate != migrate.Adopt {
		t.Errorf("fate of a client = %s, want %s", fate, migrate.Adopt)
	}
	for _, inForce := range []bool{true, false} {
		client.Egress.inForce = inForce
		p := (state{pods: []pod{client}}).decide(migrate.Coil, DefaultNetwork)
		if len(p.Steps) != 3 || p.Steps[1].Name != stepEgress || p.Steps[1].Done == inForce || p.Steps[1].Final || !p.Steps[2].Final {
			t.Errorf("steps with Coil's tunnels in force %t = %+v", inForce, p.Steps)
		}
	}
}
