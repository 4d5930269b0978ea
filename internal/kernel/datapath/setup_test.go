package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// run runs a program inside the namespace, as other software would.
func (s *space) run(command string) string {
	s.t.Helper()
	var out []byte
	s.in(func() (err error) {
		args := strings.Fields(command)
		if out, err = exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return err
	})
	return string(out)
}

// filter returns all of nftables with handles, which change when a rule is rewritten.
func (s *space) filter() string {
	s.t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(s.handle)))
	s.must(err)
	chains, err := conn.ListChains()
	s.must(err)
	var b strings.Builder
	for _, c := range chains {
		rules, err := conn.GetRules(c.Table, c)
		s.must(err)
		fmt.Fprintln(&b, c.Table.Name, c.Name)
		for _, r := range rules {
			fmt.Fprintln(&b, r.Handle, string(r.UserData))
		}
	}
	return b.String()
}

// routes6 returns a listing of IPv6 routes, sorted and without duplicates: if the tables change during a listing, the kernel
// starts it again and repeats routes.
func (s *space) routes6(table string) []string {
	s.t.Helper()
	return slices.Compact(slices.Sorted(strings.Lines(s.run("ip -6 route show table " + table))))
}

// policy returns all rules and routes as text, except the kernel's own IPv6 routes, which it adds asynchronously.
func (s *space) policy() string {
	s.t.Helper()
	routes6 := slices.DeleteFunc(s.routes6("all"), func(line string) bool { return strings.Contains(line, "proto kernel") })
	return s.run("ip rule") + s.run("ip -6 rule") + s.run("ip route show table all") + strings.Join(routes6, "")
}

func TestSetupAgainChangesNothing(t *testing.T) {
	v := newVPC(t)
	v.pod(podA)
	filter, policy := v.host.filter(), v.host.policy()
	for range 2 {
		v.setup()
		v.setUplink(v.uplink())
	}
	// A restarted daemon has nothing in memory and everything in the kernel.
	again := v.host.open()
	v.ok(again.Setup(ctx, v.settings()))
	v.ok(again.SetUplink(ctx, v.uplink()))
	if got := v.host.filter(); got != filter {
		t.Errorf("nftables before:\n%s\nafter:\n%s", filter, got)
	}
	if got := v.host.policy(); got != policy {
		t.Errorf("rules and routes before:\n%s\nafter:\n%s", policy, got)
	}
}

func TestSetupAfterDaemonRestartKeepsPodConnections(t *testing.T) {
	v := newVPC(t)
	b := v.pod(podB)
	v.router.serveTCP(":80")
	again := v.host.open()
	v.config.BlockMetadata = true // another ruleset, so the table is replaced
	v.ok(again.Setup(ctx, v.settings()))
	b.seenAs(peer+":80", podB) // the ENI's map entries are kept
	if uplinks := v.inventory().Uplinks; len(uplinks) != 1 || len(uplinks[0].Sources) != 2 {
		t.Errorf("ENIs after the restart = %+v, want one with two sources", uplinks)
	}
}

func TestSetupConverges(t *testing.T) {
	v := newVPC(t)
	b := v.pod(podB)
	v.router.serveTCP(":80")
	b.seenAs(onPrem+":80", podB)
	b.seenAs(peer+":80", podB)
	v.uplinks.ExcludeCIDRs = nil
	v.uplinks.LocalCIDRs = prefixes("10.0.0.0/22", "10.0.1.0/24") // nested; the peer is outside of both
	v.setup()
	b.seenAs(onPrem+":80", nodeAddr)
	b.seenAs(peer+":80", nodeAddr)
	for _, r := range v.inventory().Rules {
		if r.IPv6 && r.Priority != RuleUplink {
			t.Errorf("IPv6 rule left after IPv6 was disabled: %+v", r)
		}
	}
}

func TestSetupSetsAndChecksSysctls(t *testing.T) {
	v := newVPC(t)
	v.host.sysctl("net/ipv6/conf/eth1/accept_dad", "1") // as the kernel has it
	v.setUplink(v.uplink())
	for path, want := range map[string]string{
		"net/ipv4/ip_forward":             "1",
		"net/ipv4/conf/eth0/rp_filter":    "2",
		"net/ipv4/conf/eth1/rp_filter":    "2",
		"net/ipv6/conf/all/forwarding":    "1",
		"net/ipv6/conf/eth0/accept_ra":    "2",
		"net/ipv6/conf/eth1/accept_ra":    "0",
		"net/ipv6/conf/eth1/accept_dad":   "0",
		"net/ipv4/conf/all/rp_filter":     v.router.readSysctl("net/ipv4/conf/default/rp_filter"), // as it was
		"net/ipv4/conf/default/rp_filter": v.router.readSysctl("net/ipv4/conf/default/rp_filter"),
	} {
		if got := v.host.readSysctl(path); got != want {
			t.Errorf("sysctl %s = %s, want %s", path, got, want)
		}
	}
	v.host.sysctl("net/ipv6/conf/eth0/accept_ra", "0") // a network manager handles advertisements itself
	v.setup()
	if got := v.host.readSysctl("net/ipv6/conf/eth0/accept_ra"); got != "0" {
		t.Errorf("accept_ra of the primary link = %s, want 0 as before", got)
	}
	_, err := v.node.sysctls.set(v.settings(), nodeOwner, []rtnl.Sysctl{{Path: "net/ipv4/conf/none/rp_filter", Value: "2"}})
	if err == nil || !strings.Contains(err.Error(), "net.ipv4.conf.none.rp_filter = 2") {
		t.Errorf("Setup() error = %v, want the name of the sysctl", err)
	}
}

// If the kernel added the link-local address, as when a link comes up, duplicate address detection would take two
// minutes here, during which the node could not solicit the router.
func TestENIIPv6SkipsDuplicateAddressDetection(t *testing.T) {
	v := newVPC(t)
	v.host.sysctl("net/ipv6/conf/eth1/accept_dad", "1")
	v.host.sysctl("net/ipv6/conf/eth1/dad_transmits", "120")
	v.setUplink(v.uplink())
	v.host.run("ip link set eth1 down")
	v.host.run("ip link set eth1 up")
	v.host.ready("eth1")
}

// A distribution may enable strict rp_filter on all links.
func TestSetupOverridesStrictReversePathFilter(t *testing.T) {
	v := newVPC(t)
	v.host.sysctl("net/ipv4/conf/all/rp_filter", "1")
	v.host.sysctl("net/ipv4/conf/default/rp_filter", "1")
	b := v.pod(podB)
	b.serveTCP(":80")
	v.router.serveTCP(":80")
	b.seenAs(peer+":80", podB)
	b.seenAs(internet+":80", nodeAddr)
	v.router.seenAs(podB+":80", "10.0.0.1")
}

// dumpless is a VPC on a kernel that cannot list connections.
type dumpless struct{ VPC }

func (dumpless) replaced(*Node) ([]string, error) { return nil, errors.New("no list of connections") }

// Setup succeeds if connections cannot be listed.
func TestSetupWithoutConnectionListing(t *testing.T) {
	v := newVPC(t)
	v.host.run("nft flush ruleset")
	v.host.run("ip rule del priority 512")
	var log strings.Builder
	c := v.settings()
	c.Uplinks, c.Log = dumpless{v.uplinks}, slog.New(slog.NewTextHandler(&log, nil))
	v.ok(v.host.open().Setup(ctx, c))
	v.host.run("nft list table arp berth")
	if rules := v.host.run("ip rule"); !strings.Contains(rules, "512:") || !strings.Contains(log.String(), "no list of connections") {
		t.Errorf("rules:\n%slog:\n%s\nwant rule 512 and a warning about connections", rules, log.String())
	}
}

func TestSetupErrors(t *testing.T) {
	v := newVPC(t)
	stranger := net.HardwareAddr{2, 0, 0, 0, 0, 99}
	c := v.settings()
	c.Uplinks = VPC{PrimaryMAC: stranger, PrimaryIPv4: v.uplinks.PrimaryIPv4, LocalCIDRs: v.uplinks.LocalCIDRs}
	if err := v.node.Setup(ctx, c); !errors.Is(err, ErrNoLink) {
		t.Errorf("Setup() error = %v, want ErrNoLink", err)
	}
	e := v.uplink()
	e.MAC = stranger
	if err := v.node.SetUplink(ctx, e); !errors.Is(err, ErrNoLink) {
		t.Errorf("SetUplink() error = %v, want ErrNoLink", err)
	}
	e = v.uplink()
	e.ID = "eni-3"
	if err := v.node.SetUplink(ctx, e); err == nil || !strings.Contains(err.Error(), "taken by ENI eni-2") {
		t.Errorf("SetUplink() error = %v, want the name of the other ENI", err)
	}
	if err := v.host.open().SetUplink(ctx, v.uplink()); !errors.Is(err, ErrNotSetUp) {
		t.Errorf("SetUplink() error = %v, want ErrNotSetUp", err)
	}
}

func TestStateOfOtherSoftwareIsKept(t *testing.T) {
	v := newVPC(t)
	h := v.host
	h.run("ip rule add priority 512 to 10.9.0.0/16 lookup main")
	h.run("ip rule add priority 1536 fwmark 0x1/0x3f lookup 19001")
	h.run("ip route add 10.9.9.9/32 dev eth0 table 19000")
	h.run("ip route add 10.9.9.0/24 dev eth1 table 19001 proto static")
	h.run("nft add table ip others")
	h.run("nft add chain ip others c { type filter hook forward priority 0 ; policy accept ; }")
	h.run("nft add rule ip others c ip saddr 192.0.2.1 drop")
	wire(h, "bthfoo", v.router, "bthbar")
	wire(h, "mybridge", v.router, "other")
	theirs := func() string {
		rules := slices.DeleteFunc(strings.Split(h.run("ip rule"), "\n"), func(line string) bool { return strings.Contains(line, "proto 190") })
		return fmt.Sprint(rules) + h.run("ip route show table 19000 10.9.9.9") +
			h.run("ip route show table 19001 10.9.9.0/24") + h.run("nft list table ip others") +
			fmt.Sprint(h.link("bthfoo").Attrs().HardwareAddr, h.link("bthfoo").Attrs().Flags)
	}
	before := theirs()
	p := v.pod(podA)
	v.setup()
	v.uplinks.MarkShift = 16
	v.setup()
	v.remove(p)
	if _, err := v.node.Repair(ctx, Desired{Config: v.settings()}); err != nil {
		t.Fatal(err)
	}
	v.ok(v.node.RemoveUplink(ctx, 1))
	if got := theirs(); got != before {
		t.Errorf("state of other software before:\n%s\nafter:\n%s", before, got)
	}
}

// A node with ENIs keeps the rules and routes of branches (package plug/routedvlan), although they have the same
// protocol.
func TestBranchStateIsKept(t *testing.T) {
	v := newVPC(t)
	h := v.host
	for _, table := range []int{StrictTable, StandardTable, BranchTableBase + 1, lastTable} {
		h.run(fmt.Sprintf("ip route add 10.9.9.9/32 dev eth0 table %d proto %d", table, Protocol))
		h.run(fmt.Sprintf("ip route add default dev eth0 table %d proto %d", table, Protocol))
	}
	for _, priority := range []int{RuleBranchPast, RuleBranchOut, RuleBranchIn, RuleBranchSource, RuleBranchNone, RuleLocal, RuleBranchPod, RuleBranchStandard} {
		h.run(fmt.Sprintf("ip rule add priority %d iif eth1 lookup %d protocol %d", priority, StrictTable, Protocol))
	}
	branches := func() (text string) {
		for _, what := range []string{"ip rule show", "ip route show table all"} {
			for line := range strings.Lines(h.run(what)) {
				if strings.Contains(line, "iif eth1") || strings.Contains(line, "10.9.9.9") || strings.Contains(line, "default dev eth0") {
					text += line
				}
			}
		}
		return text
	}
	before := branches()
	v.setup()
	if _, err := v.node.Repair(ctx, Desired{Config: v.settings()}); err != nil {
		t.Fatal(err)
	}
	if got := branches(); got != before || strings.Count(got, "\n") != 16 {
		t.Errorf("state of branches before:\n%s\nafter:\n%s", before, got)
	}
}

func TestAddressesMoveBetweenENIs(t *testing.T) {
	v := newVPC(t)
	b := v.pod(podB)
	v.router.serveTCP(":80")
	policy := v.host.policy()
	e := v.uplink()
	var many []netip.Addr
	for a := netip.MustParseAddr("10.0.100.1"); len(many) < 700; a = a.Next() { // more than fit into one message
		many = append(many, a)
	}
	e.Addresses = many
	v.setUplink(e)
	// The kernel resizes a map asynchronously, and meanwhile may list it without some entries (Linux:
	// nft_rhash_walk).
	sources := func() int { return len(v.inventory().Uplinks[0].Sources) }
	within(t, "702 sources", func() bool { return sources() == 702 })
	if got := v.host.policy(); got != policy {
		t.Errorf("new addresses changed routes or rules, before:\n%s\nafter:\n%s", policy, got)
	}
	e.Addresses = nil
	within(t, "two sources", func() bool { v.setUplink(e); return sources() == 2 })

	// Another ENI takes over the address.
	wire(v.host, "eth2", v.router, "r2")
	other := Uplink{ID: "eni-3", MAC: v.host.link("eth2").Attrs().HardwareAddr, Number: 2,
		Subnet: prefixes("10.0.0.0/24")[0], Addresses: addrs("10.0.100.1")}
	v.setUplink(other)
	e.Addresses = addrs("10.0.100.1")
	within(t, "address of the first ENI", func() bool { // the map may still be shrinking
		v.setUplink(e)
		return !slices.ContainsFunc(v.inventory().Uplinks, func(i UplinkInfo) bool {
			return i.Number == 2 && len(i.Sources) != 0 || i.Number == 1 && len(i.Sources) != 3
		})
	})
	b.seenAs(peer+":80", podB)

	for range 2 {
		for _, i := range []int{1, 2} {
			v.ok(v.node.RemoveUplink(ctx, i))
		}
	}
	if uplinks := v.inventory().Uplinks; len(uplinks) != 0 {
		t.Errorf("ENIs after their removal = %+v, want none", uplinks)
	}
	if strings.Contains(v.host.filter(), "eni_1") {
		t.Error("the chain of a removed ENI still exists")
	}
}

func TestENILinkSettings(t *testing.T) {
	v := newVPC(t, func(v *vpc) { v.config.MTU = 1400 })
	h := v.host
	l := h.link("eth1").Attrs()
	if l.MTU != 1400 {
		t.Errorf("MTU of the ENI's link = %d, want 1400", l.MTU)
	}
	h.must(h.nl.LinkSetDown(rtnl.LinkRef(l.Index))) // removes the routes too
	h.must(h.nl.AddrDel(rtnl.LinkRef(l.Index), &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(netip.MustParseAddr(eniAddr)))}))
	v.setUplink(v.uplink())
	b := v.pod(podB)
	v.router.serveTCP(":80")
	b.seenAs(peer+":80", podB)
	if got := b.link("eth0").Attrs().MTU; got != 1400 {
		t.Errorf("MTU in the pod = %d, want 1400", got)
	}
}
