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

// eniOf returns an ENI whose MAC address, like its ID, ends in n.
func eniOf(n byte, primary string, secondary ...string) cloud.ENI {
	return cloud.ENI{ID: fmt.Sprintf("eni-%d", n), MAC: net.HardwareAddr{2, 0, 0, 0, 0, n}, SubnetID: "subnet-1",
		Primary: netip.MustParseAddr(primary), Addresses: addrs(secondary...)}
}

// all returns the facts of some ENIs.
func all(enis ...cloud.ENI) (out []facts) {
	for _, e := range enis {
		out = append(out, factsOf(e, "test"))
	}
	return out
}

// observed takes a listing of all ENIs of the node.
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
		says   string // empty: it fits
	}{
		{"new ones", cloud.HostPrefixes(addrs("10.0.0.6", "10.0.0.7")), subnet1, ""},
		{"a new prefix", prefixes("10.0.1.32/28"), subnet1, ""},
		{"in a subnet that is not known", cloud.HostPrefixes(addrs("10.9.0.6")), nil, ""},
		{"one that another is giving back", cloud.HostPrefixes(addrs("10.0.0.22")), subnet1, ""},
		{"its primary", cloud.HostPrefixes(addrs("10.0.0.6", "10.0.0.4")), subnet1, "primary address of eni-1"},
		{"another's primary", cloud.HostPrefixes(addrs("10.0.0.20")), subnet1, "primary address of eni-2"},
		{"one that it has", cloud.HostPrefixes(addrs("10.0.0.5")), subnet1, "of eni-1 already"},
		{"another's", cloud.HostPrefixes(addrs("10.0.0.21")), subnet1, "of eni-2 already"},
		{"one of its prefix", cloud.HostPrefixes(addrs("10.0.1.17")), subnet1, "of eni-1 already"},
		{"a prefix with addresses in use", prefixes("10.0.0.16/28"), subnet1, "eni-2"},
		{"outside of the subnet", cloud.HostPrefixes(addrs("10.9.0.6")), subnet1, "not of its subnet"},
		{"larger than the subnet", prefixes("10.0.0.0/16"), subnet1, "not of its subnet"},
		{"one twice", cloud.HostPrefixes(addrs("10.0.0.6", "10.0.0.6")), subnet1, "named twice"},
		{"an IPv6 prefix", prefixes("2001:db8:0:0:1::/80"), subnet6, ""},
		{"IPv6 of a subnet whose IPv6 is not known", prefixes("2001:db8:9::/80"), subnet1, ""},
		{"IPv6 of another subnet", prefixes("2001:db8:0:1:1::/80"), subnet6, "AssignIpv6Addresses"},
		{"an IPv6 prefix larger than the subnet", prefixes("2001:db8::/56"), subnet6, "not of its subnet"},
		{"IPv6 of another's prefix", cloud.HostPrefixes(addrs("2001:db8:0:0:2::7")), subnet6, "of eni-2 already"},
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
		t.Errorf("got %v, want a transient error that says %q", err, says)
	}
}

func TestRepliesToCreations(t *testing.T) {
	q := cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Addresses: 1}, Tags: map[string]string{TagCreatedAt: "now"}}
	for _, tt := range []struct {
		name   string
		change func(e *cloud.ENI)
		says   string
	}{
		{"as asked", func(*cloud.ENI) {}, ""},
		{"tags are left out", func(e *cloud.ENI) { e.Tags = nil }, ""},
		{"tags are empty, as of a reply without them", func(e *cloud.ENI) { e.Tags = map[string]string{} }, ""},
		{"on this instance, as a repeat finds it", func(e *cloud.ENI) { e.Attachment = &cloud.Attachment{InstanceID: "i-1"} }, ""},
		{"on another instance", func(e *cloud.ENI) { e.Attachment = &cloud.Attachment{InstanceID: "i-2"} }, "i-2"},
		{"in another subnet", func(e *cloud.ENI) { e.SubnetID = "subnet-2" }, "subnet-2"},
		{"of another type", func(e *cloud.ENI) { e.Type = cloud.InterfaceTrunk }, "is of type trunk, asked for interface"},
		{"with IPv6, which its subnet gives by itself", func(e *cloud.ENI) { e.IPv6 = addrs("2001:db8::5") }, ""},
		{"with more IPv6 than that", func(e *cloud.ENI) { e.IPv6 = addrs("2001:db8::5", "2001:db8::6") }, "has 2 IPv6 addresses"},
		{"with an IPv6 prefix that was not asked for", func(e *cloud.ENI) { e.IPv6Prefixes = prefixes("2001:db8:0:0:5::/80") }, "1 IPv6 prefixes"},
		{"with another's IPv6", func(e *cloud.ENI) { e.IPv6 = addrs("2001:db8:0:0:2::5") }, "of eni-2 already"},
		{"too many addresses", func(e *cloud.ENI) { e.Addresses = addrs("10.0.0.31", "10.0.0.32") }, "has 2 addresses"},
		{"none", func(e *cloud.ENI) { e.Addresses = nil }, "has 0 addresses"},
		{"its primary for pods", func(e *cloud.ENI) { e.Addresses = addrs("10.0.0.30") }, "primary address for pods"},
		{"another's address", func(e *cloud.ENI) { e.Addresses = addrs("10.0.0.5") }, "of eni-1 already"},
		{"another's primary", func(e *cloud.ENI) { e.Primary = netip.MustParseAddr("10.0.0.4") }, "primary address of eni-1"},
		{"another's MAC address", func(e *cloud.ENI) { e.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 1} }, "MAC address of eni-1"},
		{"one that was there", func(e *cloud.ENI) { e.ID = "eni-1" }, "eni-1 existed before"},
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
	wantUnfit(t, judge(v, subnet1, false).created(shown, q), "") // a listing was faster than the repeat

	wantUnfit(t, judge(aView(), nil, true).created(shown, q), "is IPv6-only")

	q.Addresses = 2
	shown.Addresses = addrs("10.0.0.31", "10.0.0.31")
	wantUnfit(t, judge(v, subnet1, false).created(shown, q), "named twice")
}

func TestRepliesToAttachments(t *testing.T) {
	c := judge(aView(), nil, false)
	wantUnfit(t, c.attached(c.view.enis["eni-2"], "attach-2"), "")
	wantUnfit(t, c.attached(c.view.enis["eni-2"], "attach-1"), "that of eni-1")
}

// Addresses of another node of the process are refused in both kinds of replies that have addresses.
func TestRepliesWithAddressesOfOtherNodes(t *testing.T) {
	c := judge(aView(), subnet1, false)
	c.elsewhere = func(subnet string, p netip.Prefix) string {
		if subnet == "subnet-1" && p == cloud.HostPrefix(netip.MustParseAddr("10.0.0.31")) {
			return "eni-9"
		}
		return ""
	}
	wantUnfit(t, c.assigned(c.view.enis["eni-1"], cloud.HostPrefixes(addrs("10.0.0.31"))), "another node's")
	e := eniOf(3, "10.0.0.30", "10.0.0.31")
	q := cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Addresses: 1}}
	wantUnfit(t, c.created(e, q), "another node's")
	e.Primary, e.Addresses, q.Addresses = e.Addresses[0], nil, 0
	wantUnfit(t, c.created(e, q), "another node's")
}
