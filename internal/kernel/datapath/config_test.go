package datapath

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// validated asserts that each edit of a valid value is rejected with an error that begins with its name.
func validated[T interface{ Validate() error }](t *testing.T, good T, edits map[string]func(*T)) {
	t.Helper()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for field, edit := range edits {
		v := good
		edit(&v)
		if err := v.Validate(); err == nil || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("error %v does not begin with %q", err, field)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	good := VPC{PrimaryMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, PrimaryIPv4: netip.MustParseAddr(nodeAddr), LocalCIDRs: prefixes("10.0.0.0/16")}
	if good.ipv6() {
		t.Error("IPv6 is on without an IPv6 CIDR")
	}
	vpc := func(edit func(*VPC)) func(*Config) {
		return func(c *Config) {
			u := good
			edit(&u)
			c.Uplinks = u
		}
	}
	validated(t, Config{Uplinks: good}, map[string]func(*Config){
		"PrimaryMAC":        vpc(func(u *VPC) { u.PrimaryMAC = nil }),
		"PrimaryIPv4: want": vpc(func(u *VPC) { u.PrimaryIPv4 = netip.Addr{} }),
		"PrimaryIPv4: want the source address for SNAT of NodeLocal": vpc(func(u *VPC) {
			u.ExternalSNAT, u.PrimaryIPv4, u.NodeLocal = true, netip.Addr{}, prefixes("169.254.172.0/22")
		}),
		"NodeLocal":        vpc(func(u *VPC) { u.NodeLocal = []netip.Prefix{{}} }),
		"PrimaryIPv4 2001": vpc(func(u *VPC) { u.PrimaryIPv4 = netip.MustParseAddr(nodeAddr6) }),
		"PrimaryIPv6 10":   vpc(func(u *VPC) { u.PrimaryIPv6 = netip.MustParseAddr(nodeAddr) }),
		"LocalCIDRs":       vpc(func(u *VPC) { u.LocalCIDRs = nil }),
		"ExcludeCIDRs":     vpc(func(u *VPC) { u.ExcludeCIDRs = []netip.Prefix{{}} }),
		"MTU":              func(c *Config) { c.MTU = 70000 },
		"MarkShift":        vpc(func(u *VPC) { u.MarkShift = 25 }),
		"Uplinks":          func(c *Config) { c.Uplinks = nil },
	})
	good.ExternalSNAT, good.PrimaryIPv4 = true, netip.Addr{}
	if err := (Config{Uplinks: good}).Validate(); err != nil {
		t.Errorf("with external SNAT no source address is needed: %v", err)
	}
}

func TestMarksKeepToTheirBits(t *testing.T) {
	if MarkPrimary&MarkOutside != 0 || (MarkPrimary|MarkOutside)&MarkUplink != 0 || MarkUplink != MaxUplink+3 || BranchIn&BranchOut != BranchAny || BranchAny <= MaxUplink {
		t.Error("the mark's fields overlap")
	}
	c := VPC{MarkShift: 24, PrimaryIPv4: netip.MustParseAddr(nodeAddr)}
	for _, r := range nodeRules(c) {
		if r.Mask != nil && *r.Mask&^uint32(0xff<<24) != 0 {
			t.Errorf("rule %s reaches beyond its eight bits", describeRule(r))
		}
	}
}

func TestENIValidate(t *testing.T) {
	good := Uplink{ID: "e", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Number: 1, Subnet: prefixes("10.0.0.0/24")[0],
		Addresses: addrs(podA), Prefixes: prefixes(eniPrefix, eniPrefix6)}
	if gw := good.gateway4().String(); gw != "10.0.0.1" {
		t.Errorf("gateway %s, want the subnet's first address", gw)
	}
	validated(t, good, map[string]func(*Uplink){
		"MAC":         func(e *Uplink) { e.MAC = nil },
		"Number":      func(e *Uplink) { e.Number = 0 },
		"Number 61":   func(e *Uplink) { e.Number = MaxUplink + 1 },
		"Subnet":      func(e *Uplink) { e.Subnet = netip.Prefix{} },
		"Addresses":   func(e *Uplink) { e.Addresses = []netip.Addr{{}} },
		"Prefixes":    func(e *Uplink) { e.Prefixes = prefixes("10.0.0.0/27") },
		"Prefixes: 1": func(e *Uplink) { e.Prefixes = prefixes("10.0.0.5/28") },
	})
}

// A rule is there once for each IP family of the node; with external SNAT there is none for connections
// that are SNATed.
func TestRulesPerFamily(t *testing.T) {
	c := VPC{PrimaryIPv4: netip.MustParseAddr(nodeAddr), LocalCIDRs: prefixes("10.0.0.0/16")}
	count := func(c VPC, family, priority int) (n int) {
		for _, r := range nodeRules(c) {
			if r.Family == family && r.Priority == priority {
				n++
			}
		}
		return n
	}
	if count(c, unix.AF_INET6, RulePod) != 0 {
		t.Error("IPv6 rules on an IPv4 node")
	}
	if count(c, unix.AF_INET, RuleOutside) != 1 {
		t.Error("no rule for what is SNATed")
	}
	c.ExternalSNAT, c.LocalCIDRs = true, prefixes("10.0.0.0/16", "2001:db8::/56")
	if count(c, unix.AF_INET, RuleOutside) != 0 {
		t.Error("a rule for SNAT although it is external")
	}
	if count(c, unix.AF_INET6, RulePod) != 1 {
		t.Error("no IPv6 rule on a dual-stack node")
	}
}
