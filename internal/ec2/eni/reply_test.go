package eni

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
)

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// eniOf returns an ENI whose ID and MAC address end in n.
func eniOf(n byte, primary string, secondary ...string) cloud.ENI {
	return cloud.ENI{ID: fmt.Sprintf("eni-%d", n), MAC: net.HardwareAddr{2, 0, 0, 0, 0, n}, SubnetID: "subnet-1",
		Primary: netip.MustParseAddr(primary), Addresses: addrs(secondary...)}
}

// all returns the facts of the given ENIs.
func all(enis ...cloud.ENI) (out []facts) {
	for _, e := range enis {
		out = append(out, factsOf(e, "test"))
	}
	return out
}

// observed merges a listing of all ENIs of the node.
func (v *view) observed(at int, enis ...cloud.ENI) {
	v.merge(all(enis...), unix(at), func(*known) bool { return true })
}

// aView returns a node with two ENIs; an address of the second is being released.
func aView() *view {
	v := newView(time.Minute, 0)
	one, two := eniOf(1, "10.0.0.4", "10.0.0.5"), eniOf(2, "10.0.0.20", "10.0.0.21", "10.0.0.22")
	one.Prefixes = prefixes("10.0.1.16/28")
	two.IPv6Prefixes = prefixes("2001:db8:0:0:2::/80")
	one.Attachment = &cloud.Attachment{ID: "attach-1", InstanceID: "i-1"}
	v.enis["eni-1"], v.enis["eni-2"] = newKnown(factsOf(one, "test")), newKnown(factsOf(two, "test"))
	v.enis["eni-2"].releasing[cloud.HostPrefix(two.Addresses[1])] = time.Unix(1, 0)
	return v
}

var (
	subnet1 = prefixes("10.0.0.0/22")
	subnet6 = prefixes("10.0.0.0/22", "2001:db8::/64")
)

// judge returns the replies of a node with one subnet.
func judge(v *view, blocks []netip.Prefix, native bool) *replies {
	c := &replies{view: v, subnets: placement.NewCatalog(nil, nil).Subnets, elsewhere: func(string, netip.Prefix) string { return "" }, instance: "i-1"}
	s := cloud.Subnet{ID: "subnet-1", IPv6Native: native}
	if len(blocks) > 0 {
		s.CIDR, s.IPv6 = blocks[0], blocks[1:]
	}
	c.subnets.Learn(s)
	return c
}

func TestRepliesToAssignments(t *testing.T) {
	for _, tt := range []struct {
		name   string
		given  []netip.Prefix
		subnet []netip.Prefix
		says   string // empty if valid
	}{
		{"new addresses", cloud.HostPrefixes(addrs("10.0.0.6", "10.0.0.7")), subnet1, ""},
		{"new prefix", prefixes("10.0.1.32/28"), subnet1, ""},
		{"address in an unknown subnet", cloud.HostPrefixes(addrs("10.9.0.6")), nil, ""},
		{"address that another ENI is releasing", cloud.HostPrefixes(addrs("10.0.0.22")), subnet1, ""},
		{"primary address of the ENI", cloud.HostPrefixes(addrs("10.0.0.6", "10.0.0.4")), subnet1, "primary address of eni-1"},
		{"primary address of another ENI", cloud.HostPrefixes(addrs("10.0.0.20")), subnet1, "primary address of eni-2"},
		{"address of the ENI", cloud.HostPrefixes(addrs("10.0.0.5")), subnet1, "already belongs to eni-1"},
		{"address of another ENI", cloud.HostPrefixes(addrs("10.0.0.21")), subnet1, "already belongs to eni-2"},
		{"address in a prefix of the ENI", cloud.HostPrefixes(addrs("10.0.1.17")), subnet1, "already belongs to eni-1"},
		{"prefix with addresses in use", prefixes("10.0.0.16/28"), subnet1, "eni-2"},
		{"address outside the subnet", cloud.HostPrefixes(addrs("10.9.0.6")), subnet1, "not in its subnet"},
		{"prefix larger than the subnet", prefixes("10.0.0.0/16"), subnet1, "not in its subnet"},
		{"duplicate address", cloud.HostPrefixes(addrs("10.0.0.6", "10.0.0.6")), subnet1, "named twice"},
		{"IPv6 prefix", prefixes("2001:db8:0:0:1::/80"), subnet6, ""},
		{"IPv6 prefix, unknown IPv6 block", prefixes("2001:db8:9::/80"), subnet1, ""},
		{"IPv6 prefix of another subnet", prefixes("2001:db8:0:1:1::/80"), subnet6, "AssignIpv6Addresses"},
		{"IPv6 prefix larger than the subnet", prefixes("2001:db8::/56"), subnet6, "not in its subnet"},
		{"IPv6 address in a prefix of another ENI", cloud.HostPrefixes(addrs("2001:db8:0:0:2::7")), subnet6, "already belongs to eni-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := judge(aView(), tt.subnet, false)
			wantUnfit(t, c.assigned(c.view.enis["eni-1"], tt.given), tt.says)
		})
	}
}

func wantUnfit(t *testing.T, err error, says string) {
	t.Helper()
	switch {
	case says == "" && err != nil:
		t.Error(err)
	case says != "" && (cloud.ClassOf(err) != cloud.Transient || !strings.Contains(err.Error(), says)):
		t.Errorf("error = %v, want a transient one containing %q", err, says)
	}
}

func TestRepliesToCreations(t *testing.T) {
	q := cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Addresses: 1}, Tags: map[string]string{TagCreatedAt: "now"}}
	for _, tt := range []struct {
		name   string
		change func(e *cloud.ENI)
		says   string
	}{
		{"as requested", func(*cloud.ENI) {}, ""},
		{"without tags", func(e *cloud.ENI) { e.Tags = nil }, ""},
		{"empty tags", func(e *cloud.ENI) { e.Tags = map[string]string{} }, ""},
		{"attached to this instance, after a repeated call", func(e *cloud.ENI) { e.Attachment = &cloud.Attachment{InstanceID: "i-1"} }, ""},
		{"attached to another instance", func(e *cloud.ENI) { e.Attachment = &cloud.Attachment{InstanceID: "i-2"} }, "i-2"},
		{"in another subnet", func(e *cloud.ENI) { e.SubnetID = "subnet-2" }, "subnet-2"},
		{"another type", func(e *cloud.ENI) { e.Type = cloud.InterfaceTrunk }, "is of type trunk, want interface"},
		{"IPv6 address added by the subnet", func(e *cloud.ENI) { e.IPv6 = addrs("2001:db8::5") }, ""},
		{"two unrequested IPv6 addresses", func(e *cloud.ENI) { e.IPv6 = addrs("2001:db8::5", "2001:db8::6") }, "has 2 IPv6 addresses"},
		{"unrequested IPv6 prefix", func(e *cloud.ENI) { e.IPv6Prefixes = prefixes("2001:db8:0:0:5::/80") }, "1 IPv6 prefixes"},
		{"IPv6 address of another ENI", func(e *cloud.ENI) { e.IPv6 = addrs("2001:db8:0:0:2::5") }, "already belongs to eni-2"},
		{"too many addresses", func(e *cloud.ENI) { e.Addresses = addrs("10.0.0.31", "10.0.0.32") }, "has 2 addresses"},
		{"no addresses", func(e *cloud.ENI) { e.Addresses = nil }, "has 0 addresses"},
		{"primary address for pods", func(e *cloud.ENI) { e.Addresses = addrs("10.0.0.30") }, "primary address for pods"},
		{"address of another ENI", func(e *cloud.ENI) { e.Addresses = addrs("10.0.0.5") }, "already belongs to eni-1"},
		{"primary address of another ENI", func(e *cloud.ENI) { e.Primary = netip.MustParseAddr("10.0.0.4") }, "primary address of eni-1"},
		{"MAC address of another ENI", func(e *cloud.ENI) { e.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 1} }, "MAC address of eni-1"},
		{"existing ENI", func(e *cloud.ENI) { e.ID = "eni-1" }, "eni-1 existed before"},
		{"other tags", func(e *cloud.ENI) { e.Tags[TagCreatedAt] = "then" }, TagCreatedAt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := eniOf(3, "10.0.0.30", "10.0.0.31")
			e.Tags = map[string]string{TagCreatedAt: "now"}
			tt.change(&e)
			wantUnfit(t, judge(aView(), subnet1, false).created(e, q), tt.says)
		})
	}
	v := aView()
	shown := eniOf(3, "10.0.0.30", "10.0.0.31")
	shown.Tags = q.Tags
	v.enis["eni-3"] = newKnown(factsOf(shown, "test"))
	wantUnfit(t, judge(v, subnet1, false).created(shown, q), "") // a listing showed it before the repeated call returned

	wantUnfit(t, judge(aView(), nil, true).created(shown, q), "is IPv6-only")

	q.Addresses = 2
	shown.Addresses = addrs("10.0.0.31", "10.0.0.31")
	wantUnfit(t, judge(v, subnet1, false).created(shown, q), "named twice")
}

func TestRepliesToAttachments(t *testing.T) {
	c := judge(aView(), nil, false)
	wantUnfit(t, c.attached(c.view.enis["eni-2"], "attach-2"), "")
	wantUnfit(t, c.attached(c.view.enis["eni-2"], "attach-1"), "belongs to eni-1")
}

// Addresses of another node of the process are rejected in replies to assignments and creations.
func TestRepliesWithAddressesOfOtherNodes(t *testing.T) {
	c := judge(aView(), subnet1, false)
	c.elsewhere = func(subnet string, p netip.Prefix) string {
		if subnet == "subnet-1" && p == cloud.HostPrefix(netip.MustParseAddr("10.0.0.31")) {
			return "eni-9"
		}
		return ""
	}
	wantUnfit(t, c.assigned(c.view.enis["eni-1"], cloud.HostPrefixes(addrs("10.0.0.31"))), "of another node")
	e := eniOf(3, "10.0.0.30", "10.0.0.31")
	q := cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Addresses: 1}}
	wantUnfit(t, c.created(e, q), "of another node")
	e.Primary, e.Addresses, q.Addresses = e.Addresses[0], nil, 0
	wantUnfit(t, c.created(e, q), "of another node")
}
