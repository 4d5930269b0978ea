package egressclient

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

func addrsOf(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func nets(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func gw(id int, chosen bool, list ...string) Gateway {
	return Gateway{ID: id, Addrs: addrsOf(list...), Ending: !chosen, Chosen: chosen}
}

func one(e Egress) Setup {
	e.Name = "ns/one"
	return Setup{Link: "eth0", MTU: 1500, Addrs: addrsOf("10.1.0.2"), Port: 5555, ClusterNetworks: nets("10.0.0.0/8"), Egresses: []Egress{e}}
}

// nodeLocal is one, of a pod that reaches IPv6 as its node.
func nodeLocal(e Egress) Setup {
	s := one(e)
	s.NodeLocal = netip.MustParseAddr("fd00::ac:5")
	return s
}

// The routes of a pod, by what its Egresses are.
func TestRoutes(t *testing.T) {
	a, b := gw(1, true, "10.1.1.2"), gw(2, true, "10.1.2.2")
	d := nets("203.0.113.0/24")
	beneath := "route unreachable 203.0.113.0/24 in table 117"
	for name, c := range map[string]struct {
		setup Setup
		want  []string
	}{
		"two gateways": {one(Egress{Destinations: d, Gateways: []Gateway{b, a}}), []string{
			beneath, "route 203.0.113.0/24 via 10.1.1.2 in table 117", "route 0.0.0.0/0 via 10.1.1.2 in table 11701", "route 0.0.0.0/0 via 10.1.2.2 in table 11702"}},
		"no gateway": {one(Egress{Destinations: d}), []string{beneath}},
		"the first ends": {one(Egress{Destinations: d, Gateways: []Gateway{gw(1, false, "10.1.1.2"), b}}), []string{
			beneath, "route 203.0.113.0/24 via 10.1.2.2 in table 117", "route 0.0.0.0/0 via 10.1.1.2 in table 11701", "route 0.0.0.0/0 via 10.1.2.2 in table 11702"}},
		"all end": {one(Egress{Destinations: d, Gateways: []Gateway{gw(1, false, "10.1.1.2")}}), []string{
			beneath, "route 203.0.113.0/24 via 10.1.1.2 in table 117", "route 0.0.0.0/0 via 10.1.1.2 in table 11701"}},
		"gateways of the other family":      {one(Egress{Destinations: d, Gateways: []Gateway{gw(1, true, "fd01::2")}}), []string{beneath}},
		"a destination of the other family": {one(Egress{Destinations: nets("2001:db8::/32"), Gateways: []Gateway{a}}), nil},
		"a destination of a family of the node's": {nodeLocal(Egress{Destinations: nets("2001:db8::/32", "::/0", "203.0.113.0/24"), Gateways: []Gateway{gw(1, true, "10.1.1.2", "fd01::2")}, Service: addrsOf("10.96.0.9", "fd02::9"), OriginatingOnly: true}), []string{
			beneath, "route 203.0.113.0/24 via 10.96.0.9 in table 117", "route unreachable 2001:db8::/32 in table 117", "route unreachable ::/0 in table 118"}},
		"a default route": {one(Egress{Destinations: nets("0.0.0.0/0"), Gateways: []Gateway{a}}), []string{
			"route unreachable 0.0.0.0/0 in table 118", "route 0.0.0.0/0 via 10.1.1.2 in table 118", "route 0.0.0.0/0 via 10.1.1.2 in table 11701"}},
		"a Service": {one(Egress{Destinations: d, Gateways: []Gateway{{Addrs: a.Addrs}}, Service: addrsOf("10.96.0.9")}), []string{
			beneath, "route 203.0.113.0/24 via 10.96.0.9 in table 117"}},
		"a Service without gateways": {one(Egress{Destinations: d, Service: addrsOf("10.96.0.9")}), []string{beneath}},
		"answers go their own way, no gateway": {one(Egress{Destinations: d, OriginatingOnly: true}), []string{
			beneath, "route 203.0.113.0/24 via 192.0.0.8 in table 117"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range newPlan(c.setup, 1500, nil).routes {
				got = append(got, r.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// The rules of a pod are those of Coil's design, in order, with rules for gateways, further interfaces, and tunnel
// ends within destinations.
func TestRules(t *testing.T) {
	s := one(Egress{Destinations: nets("10.1.1.0/24", "::/0"), Gateways: []Gateway{gw(1, true, "10.1.1.2"), gw(2, true, "10.1.2.2")}, OriginatingOnly: true})
	s.Others = addrsOf("10.9.0.2")
	var got []string
	for _, r := range newPlan(s, 1500, []string{"eth1"}).rules {
		got = append(got, r.String())
	}
	want := []string{
		"rule 1790 from 10.9.0.2/32 goto 2047", "rule 1791 oif eth1 goto 2047",
		"rule 1795 fwmark 0x1000000/0x1000000 lookup 254",
		"rule 1800 to 169.254.0.0/16 lookup 254", "rule 1800 to 224.0.0.0/4 lookup 254",
		"rule 1810 to 10.1.1.2/32 lookup 254",
		"rule 1850 fwmark 0x10000/0xff0000 lookup 11701", "rule 1850 fwmark 0x20000/0xff0000 lookup 11702",
		"rule 1900 lookup 117", "rule 2000 to 10.0.0.0/8 lookup 254", "rule 2047 nop",
		"rule 2099 from 10.9.0.2/32 goto 2150", "rule 2099 oif eth1 goto 2150", "rule 2100 lookup 118", "rule 2150 nop",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, r := range newPlan(s, 1500, []string{"eth1"}).rules {
		if back := rtnl.RuleOf(r.Kernel()); back != r {
			t.Errorf("%s is read as %s", r, back)
		}
	}
	// Of the node's family all is as without gateways, where an Egress has destinations of it.
	s.NodeLocal, s.ClusterNetworks = netip.MustParseAddr("fd00::ac:5"), append(s.ClusterNetworks, netip.MustParsePrefix("fd01::/16"))
	got = got[:0]
	for _, r := range newPlan(s, 1500, nil).rules {
		if r.Family == unix.AF_INET6 {
			got = append(got, r.String())
		}
	}
	if want := []string{"rule 1800 to fe80::/10 lookup 254", "rule 1900 lookup 117", "rule 2000 to fd01::/16 lookup 254", "rule 2100 lookup 118"}; !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	s.Egresses[0].Destinations = s.Egresses[0].Destinations[:1]
	if p := newPlan(s, 1500, nil); slices.ContainsFunc(p.rules, func(r rtnl.Rule) bool { return r.Family == unix.AF_INET6 }) {
		t.Errorf("without destinations of IPv6 there are rules of it: %v", p.rules)
	}
	for range 100 {
		s.ClusterNetworks = append(s.ClusterNetworks, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(len(s.ClusterNetworks)), 0, 0}), 16))
	}
	if list := newPlan(s, 1500, nil).rules; !slices.IsSortedFunc(list, func(a, b rtnl.Rule) int { return a.Priority - b.Priority }) || len(list) < 100 {
		t.Errorf("with a hundred networks of the cluster: %v", list)
	}
}

// The result does not depend on the order of the lists.
func TestOrderDoesNotMatter(t *testing.T) {
	s := one(Egress{Destinations: nets("203.0.113.0/24"), Gateways: []Gateway{gw(1, true, "10.1.1.2"), gw(2, true, "10.1.2.2")}})
	s.Egresses = append(s.Egresses, Egress{Name: "ns/two", Destinations: nets("0.0.0.0/0"), Gateways: []Gateway{gw(3, true, "10.1.3.2")}})
	r := s
	r.Egresses = []Egress{s.Egresses[1], s.Egresses[0]}
	r.Egresses[1].Gateways = []Gateway{s.Egresses[0].Gateways[1], s.Egresses[0].Gateways[0]}
	a, errA := newFilter(s, loosened{})
	b, errB := newFilter(r, loosened{})
	if errA != nil || errB != nil || a.summary() != b.summary() {
		t.Errorf("filters differ: %v, %v\n%s\n%s", errA, errB, a.summary(), b.summary())
	}
	if x, y := fmt.Sprint(newPlan(s, 1500, nil)), fmt.Sprint(newPlan(r, 1500, nil)); x != y {
		t.Errorf("plans differ:\n%s\n%s", x, y)
	}
}

// A change of the Setup changes the filter's tag if and only if nftables depends on it.
func TestFilterFollowsTheSetup(t *testing.T) {
	base := func() Setup {
		return one(Egress{Destinations: nets("203.0.113.0/24"), Gateways: []Gateway{gw(1, true, "10.1.1.2"), gw(2, true, "10.1.2.2")}})
	}
	tag := func(s Setup) string {
		f, err := newFilter(s, loosened{})
		if err != nil {
			t.Fatal(err)
		}
		return f.Tag
	}
	for name, c := range map[string]struct {
		change  func(*Setup)
		differs bool
	}{
		"a gateway ends":          {func(s *Setup) { s.Egresses[0].Gateways[0] = gw(1, false, "10.1.1.2") }, true},
		"a gateway's ID":          {func(s *Setup) { s.Egresses[0].Gateways[1].ID = 9 }, true},
		"a gateway's address":     {func(s *Setup) { s.Egresses[0].Gateways[1].Addrs = addrsOf("10.1.2.3") }, true},
		"port":                    {func(s *Setup) { s.Port = 6666 }, true},
		"answers their own way":   {func(s *Setup) { s.Egresses[0].OriginatingOnly = true }, true},
		"another destination":     {func(s *Setup) { s.Egresses[0].Destinations = nets("192.0.2.0/24") }, false},
		"source port":             {func(s *Setup) { s.Egresses[0].SourcePortAuto = true }, false},
		"networks of the cluster": {func(s *Setup) { s.ClusterNetworks = nil }, false},
	} {
		s := base()
		c.change(&s)
		if got := tag(s) != tag(base()); got != c.differs {
			t.Errorf("%s: the filter differs %t, want %t", name, got, c.differs)
		}
	}
	f, err := newFilter(base(), loosened{4, 1})
	if err != nil || portIn(f.summary()) != 5555 || loosenedIn(f.summary()) != (loosened{}) {
		t.Errorf("port %d, %v, %v", portIn(f.summary()), loosenedIn(f.summary()), err)
	}
	s := base()
	s.Egresses[0].OriginatingOnly = true
	if f, err = newFilter(s, loosened{4, 1}); err != nil || loosenedIn(f.summary()) != (loosened{4, 1}) {
		t.Errorf("%v, %v", loosenedIn(f.summary()), err)
	}
}

// Each of n gateways is chosen with the probability 1/n.
func TestChooser(t *testing.T) {
	e := Egress{Name: "ns/e", Gateways: []Gateway{gw(1, true, "10.1.1.2"), gw(2, true, "10.1.2.2"), gw(3, false, "10.1.3.2"), gw(4, true, "10.1.4.2")}}
	c := e.chooser(0, unix.AF_INET)
	if len(c.Rules) != 3 || len(e.chooser(0, unix.AF_INET6).Rules) != 0 {
		t.Errorf("rules: %v, %v", c.Rules, e.chooser(0, unix.AF_INET6))
	}
}

// Errors name the invalid field.
func TestValidate(t *testing.T) {
	good := func() Setup {
		return one(Egress{Destinations: nets("203.0.113.0/24"), Gateways: []Gateway{gw(1, true, "10.1.1.2")}})
	}
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Setup{}).Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Setup){
		"Link":                          func(s *Setup) { s.Link = "a/b" },
		"Port is 0":                     func(s *Setup) { s.Port = 0 },
		"Addrs is empty":                func(s *Setup) { s.Addrs = nil },
		"one address of a family":       func(s *Setup) { s.Addrs = addrsOf("10.1.0.2", "10.1.0.3") },
		"MTU of 1300 bytes leaves 1252": func(s *Setup) { s.Addrs, s.MTU = addrsOf("fd01::2"), 1300 },
		"host bits":                     func(s *Setup) { s.Egresses[0].Destinations = nets("203.0.113.1/24") },
		"ID 0":                          func(s *Setup) { s.Egresses[0].Gateways[0].ID = 0 },
		"ID 256":                        func(s *Setup) { s.Egresses[0].Gateways[0].ID = 256 },
		"ID 1, as one of ns/one":        func(s *Setup) { s.Egresses[0].Gateways = append(s.Egresses[0].Gateways, gw(1, true, "10.1.1.3")) },
		"is listed twice":               func(s *Setup) { s.Egresses = append(s.Egresses, Egress{Name: "ns/one"}) },
		"gateway 1 has addresses":       func(s *Setup) { s.Egresses[0].Gateways[0].Addrs = addrsOf("10.1.1.2", "10.1.1.3") },
		"Service":                       func(s *Setup) { s.Egresses[0].Service = addrsOf("10.96.0.1", "10.96.0.2") },
	} {
		s := good()
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestRemovalStops removes the rule that looks up the default table, and routes, before what protects other packets
// from them. An error ends it.
func TestRemovalStops(t *testing.T) {
	p := newPlan(one(Egress{Destinations: nets("0.0.0.0/0"), Gateways: []Gateway{gw(1, true, "10.1.1.2")}}), 1500, nil)
	var did []string
	k := &kernel{at: &tunnel.Namespace{}, before: func(what string) error {
		did = append(did, what)
		return errors.New("no buffer space")
	}}
	was := state{rules: p.rules, routes: p.desired(nil)}
	if err := errors.Join(k.removeRules(was, plan{}), k.removeRoutes(was, plan{})); err == nil {
		t.Error("no error")
	}
	if want := []string{"remove rule 2100 lookup 118", "remove route unreachable 0.0.0.0/0 in table 118"}; !slices.Equal(did, want) {
		t.Errorf("attempted %q, want %q", did, want)
	}
}
