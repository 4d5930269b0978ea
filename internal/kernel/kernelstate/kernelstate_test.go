package kernelstate

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// The text contains all objects of a namespace.
func TestParts(t *testing.T) {
	const name = "kernelstate"
	if err := ns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(name); err != nil {
			t.Error(err)
		}
	})
	got := map[string]string{}
	err := ns.Do(ns.Path(name), func() error {
		if err := fill(); err != nil {
			return err
		}
		for _, p := range Parts() {
			var b bytes.Buffer
			if err := p.Write(&b); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			got[p.Name] = b.String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for part, lines := range map[string][]string{
		"links.txt":      {"va type veth mtu 1400", "alias for a test", "    10.9.0.1/24 ", "    fd09::1/64 "},
		"routes.txt":     {"default via 10.9.0.254 dev va table 254 ", "10.8.0.0/16 via 10.9.0.254 dev va table 19003 proto 190", "unreachable 10.7.0.0/24", "fd08::/32 "},
		"rules.txt":      {"512: from all fwmark 0x3/0x3f lookup 19003 proto 190", "32766: from all lookup 254"},
		"neighbours.txt": {"10.9.0.9 dev va lladdr 02:00:00:00:00:09 state [permanent]"},
		"nftables.txt":   {"table inet mine {", "chain in { type filter hook 1 priority 7 policy drop", `"why #1"`, "[ cmp ", "data 0x0a090001", "[ counter", "set s type ipv4_addr", "    0a090007"},
		"iptables.txt":   {"-legacy: ", "iptables-nft: table ip filter has 1 rules"},
		"sysctls.txt":    {"net/ipv4/ip_forward = ", "net/ipv4/conf/va/rp_filter = "},
	} {
		for _, line := range lines {
			if !strings.Contains(got[part], line) {
				t.Errorf("%s lacks %q:\n%s", part, line, got[part])
			}
		}
	}
}

// fill makes objects of all kinds.
func fill() error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "va", MTU: 1400}, PeerName: "vb"}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	link, err := netlink.LinkByName("va")
	if err != nil {
		return err
	}
	peer, err := netlink.LinkByName("vb")
	if err != nil {
		return err
	}
	_, ten8, _ := net.ParseCIDR("10.8.0.0/16")
	_, ten7, _ := net.ParseCIDR("10.7.0.0/24")
	_, fd08, _ := net.ParseCIDR("fd08::/32")
	via := net.ParseIP("10.9.0.254")
	rule := netlink.NewRule()
	mask := uint32(0x3f)
	rule.Priority, rule.Mark, rule.Mask, rule.Table, rule.Protocol, rule.Family = 512, 3, &mask, 19003, 190, unix.AF_INET
	address := func(s string) *netlink.Addr {
		a, _ := netlink.ParseAddr(s)
		a.Flags = unix.IFA_F_NODAD
		return a
	}
	for _, err := range []error{
		netlink.LinkSetAlias(link, "for a test"), netlink.LinkSetUp(link), netlink.LinkSetUp(peer),
		netlink.AddrAdd(link, address("10.9.0.1/24")), netlink.AddrAdd(link, address("fd09::1/64")),
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ten8, Gw: via, Table: 19003, Protocol: 190}),
		netlink.RouteAdd(&netlink.Route{Dst: ten7, Type: unix.RTN_UNREACHABLE}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: fd08}),
		netlink.RuleAdd(rule),
		netlink.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: net.ParseIP("10.9.0.9"), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}, State: unix.NUD_PERMANENT}),
	} {
		if err != nil {
			return err
		}
	}
	return fillNftables()
}

func fillNftables() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	drop := nftables.ChainPolicyDrop
	mine := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "mine"})
	in := conn.AddChain(&nftables.Chain{Name: "in", Table: mine, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityRef(7), Policy: &drop})
	conn.AddRule(&nftables.Rule{Table: mine, Chain: in, UserData: userdata.AppendString(nil, userdata.TypeComment, "why #1"), Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{10, 9, 0, 1}}, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept},
	}})
	if err := conn.AddSet(&nftables.Set{Table: mine, Name: "s", KeyType: nftables.TypeIPAddr}, []nftables.SetElement{{Key: []byte{10, 9, 0, 7}}}); err != nil {
		return err
	}
	filter := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "filter"})
	forward := conn.AddChain(&nftables.Chain{Name: "FORWARD", Table: filter})
	info := xt.Comment("as iptables does")
	conn.AddRule(&nftables.Rule{Table: filter, Chain: forward, Exprs: []expr.Any{&expr.Match{Name: "comment", Info: &info}}})
	return conn.Flush()
}
