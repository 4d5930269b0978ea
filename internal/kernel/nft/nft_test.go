package nft

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns/nstest"
)

var (
	addresses4 = &nftables.Set{Name: "addresses4", KeyType: nftables.TypeIPAddr}
	pairs6     = &nftables.Set{Name: "pairs6", KeyType: nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeMark), Concatenation: true}
	pairs4     = &nftables.Set{Name: "pairs4", KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr), Concatenation: true}
	targets6   = &nftables.Set{Name: "targets6", KeyType: nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetProto, nftables.TypeInetService), Concatenation: true}
	ends4      = &nftables.Set{Name: "ends4", KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInetService), Concatenation: true}
	ways4      = &nftables.Set{Name: "ways4", KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict, IsMap: true}
)

// words are rules and their text as printed by nft(8).
var words = []struct {
	rule Exprs
	text string
}{
	{Join(Meta(expr.MetaKeyIIFNAME), Is([]byte("tap")...)), `iifname "tap*"`},
	{Join(Meta(expr.MetaKeyOIFNAME), IsNot(LinkName("eth0")...)), `oifname != "eth0"`},
	{Family(unix.AF_INET), "meta nfproto ipv4"},
	{Family(unix.AF_INET6), "meta nfproto ipv6"},
	{Protocol(unix.IPPROTO_TCP), "meta l4proto tcp"},
	{UDPTo(5555), "udp dport 5555"},
	{SourceIs(netip.MustParseAddr("192.0.2.1")), "ip saddr 192.0.2.1"},
	{SourceIs(netip.MustParseAddr("2001:db8::1")), "ip6 saddr 2001:db8::1"},
	{DestinationIs(netip.MustParseAddr("192.0.2.1")), "ip daddr 192.0.2.1"},
	{DestinationIs(netip.MustParseAddr("2001:db8::1")), "ip6 daddr 2001:db8::1"},
	{SourceIn(netip.MustParsePrefix("fe80::/10")), "ip6 saddr fe80::/10"},
	{SourceIn(netip.MustParsePrefix("100.64.0.0/10")), "ip saddr 100.64.0.0/10"},
	{DestinationIn(netip.MustParsePrefix("127.0.0.0/8")), "ip daddr 127.0.0.0/8"},
	{DestinationIn(netip.MustParsePrefix("2001:db8::/33")), "ip6 daddr 2001:db8::/33"},
	{PortsTo(unix.IPPROTO_SCTP, 80, 80), "sctp dport 80"},
	{PortsTo(unix.IPPROTO_TCP, 0, 65535), "tcp dport 0-65535"},
	{SourceIsLocal(), "fib saddr type local"},
	{Join(Family(unix.AF_INET), SourceAndDestination(unix.AF_INET), In(pairs4)), "ip saddr . ip daddr @pairs4"},
	{Join(Family(unix.AF_INET6), DestinationAndPort(unix.AF_INET6), In(targets6)), "ip6 daddr . meta l4proto . th dport @targets6"},
	{Join(Family(unix.AF_INET), Endpoints(unix.AF_INET), In(ends4)), "ip saddr . ip daddr . meta l4proto . th sport . th dport @ends4"},
	{Join(ICMPType(), Is(11)), "icmp type time-exceeded"},
	{Join(ICMPv6Type(), Is(2)), "icmpv6 type packet-too-big"},
	{CtDirection(Original), "ct direction original"},
	{CtDirection(Reply), "ct direction reply"},
	{CtState(expr.CtStateBitNEW), "ct state new"},
	{CtState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), "ct state established,related"},
	{CtState(expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED), "ct state invalid,untracked"},
	{CtStatus(CtSeenReply | CtConfirmed), "ct status seen-reply,confirmed"},
	{CtStatus(CtSNAT | CtDNAT), "ct status snat,dnat"},
	{OneOf(3), "numgen random mod 3 0"},
	{Over(10, 50), "limit rate over 10/second burst 50 packets"},
	{Marked(0x80), "meta mark & 0x00000080 == 0x00000080"},
	{NotMarked(0x3f), "meta mark & 0x0000003f != 0x0000003f"},
	{CtMarked(0x80), "ct mark & 0x00000080 == 0x00000080"},
	{Join(CtMark(0xff0000), IsNot(Word(0)...)), "ct mark & 0x00ff0000 != 0x00000000"},
	{SetMark(0x120000, 0xff0000), "meta mark set meta mark & 0xff12ffff | 0x00120000"},
	{SetWholeMark(117), "meta mark set 0x00000075"},
	{SetCtMark(0x120000, 0xff0000), "ct mark set ct mark & 0xff12ffff | 0x00120000"},
	{Join(Family(unix.AF_INET), Source(unix.AF_INET), In(addresses4)), "ip saddr @addresses4"},
	{Join(Family(unix.AF_INET), Destination(unix.AF_INET), NotIn(addresses4)), "ip daddr != @addresses4"},
	{Join(Family(unix.AF_INET), Destination(unix.AF_INET), VerdictOf(ways4)), "ip daddr vmap @ways4"},
	{Join(Family(unix.AF_INET), NextHop(unix.AF_INET), In(addresses4)), "meta nfproto ipv4 rt ip nexthop @addresses4"},
	{Join(Family(unix.AF_INET6), NextHop(unix.AF_INET6), CtMarkBeside(unix.AF_INET6, 0xff0000), In(pairs6)), "meta nfproto ipv6 rt ip6 nexthop . ct mark & 0x00ff0000 @pairs6"},
	{Join(Protocol(unix.IPPROTO_TCP), Transport(13, 1), Mask(0x17), IsNot(2)), "tcp flags != syn / fin,syn,rst,ack"},
	{Join(Count(), Drop()), "counter packets 0 bytes 0 drop"},
	{CountAs("counted"), `counter name "counted"`},
	{Accept(), "accept"},
	{GoTo("elsewhere"), "goto elsewhere"},
	{Jump("elsewhere"), "jump elsewhere"},
	{Return(), "return"},
	{Notrack(), "notrack"},
	{Join(Protocol(unix.IPPROTO_TCP), Reset()), "meta l4proto tcp reject with tcp reset"},
	{Reject(unix.NFT_REJECT_ICMPX_NO_ROUTE), "reject with icmpx no-route"},
	{Join(Family(unix.AF_INET6), SNATTo(netip.MustParseAddr("2001:db8::1"))), "meta nfproto ipv6 snat ip6 to 2001:db8::1 fully-random"},
	{Masquerade(), "masquerade"},
	{MasqueradeFullyRandom(), "masquerade fully-random"},
}

// nft(8) prints each rule, as read from the kernel, in its documented syntax.
func TestRulesAsPrintedByNFT(t *testing.T) {
	path := nstest.New(t, "nftwords")
	in, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	conn, err := nftables.New(nftables.WithNetNSFd(int(in)))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		if got := listed(t, conn, path, w.rule); got != w.text {
			t.Errorf("nft prints %s, want %s", got, w.text)
		}
	}
}

// listed adds a rule in a namespace and returns it as printed by nft(8).
func listed(t *testing.T, conn *nftables.Conn, path string, rule Exprs) string {
	t.Helper()
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "words"}
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	for _, s := range []*nftables.Set{addresses4, pairs6, pairs4, targets6, ends4, ways4} {
		own := *s
		own.Table = table
		if err := conn.AddSet(&own, nil); err != nil {
			t.Fatal(err)
		}
	}
	conn.AddObj(&nftables.NamedObj{Table: table, Name: "counted", Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
	conn.AddChain(&nftables.Chain{Name: "elsewhere", Table: table})
	chain := &nftables.Chain{Name: "c", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter}
	for _, e := range rule {
		switch e.(type) {
		case *expr.NAT, *expr.Masq:
			chain.Type, chain.Hooknum = nftables.ChainTypeNAT, nftables.ChainHookPostrouting
		case *expr.Notrack:
			chain.Hooknum, chain.Priority = nftables.ChainHookPrerouting, nftables.ChainPriorityRaw
		}
	}
	conn.AddChain(chain)
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
	if err := conn.Flush(); err != nil {
		return err.Error()
	}
	out, err := exec.Command("nsenter", "--net="+path, "nft", "list", "chain", "inet", "words", "c").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) < 5 {
		return string(out)
	}
	return strings.TrimSpace(lines[3])
}

// Goroutines may change tables in parallel, each by its own connection. The race detector finds what they share.
func TestTablesInParallel(t *testing.T) {
	const tables, sets = 4, 100
	ids := make(chan uint32, tables*sets)
	var all sync.WaitGroup
	for range tables {
		all.Go(func() {
			conn := &nftables.Conn{} // only queues
			table := Table{Family: nftables.TableFamilyINet, Name: "parallel"}
			for i := range sets {
				table.Sets = append(table.Sets, Set{Set: &nftables.Set{Name: fmt.Sprint("s", i), KeyType: nftables.TypeIPAddr}})
			}
			if err := table.Replace(conn); err != nil {
				t.Error(err)
			}
			for _, s := range table.Sets {
				ids <- s.ID
			}
		})
	}
	all.Wait()
	close(ids)
	seen := map[uint32]bool{0: true}
	for id := range ids {
		if seen[id] {
			t.Fatalf("ID %d is zero, or that of another set", id)
		}
		seen[id] = true
	}
}

func TestIntervals(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"10.0.0.0/16", "0a000000 0a010000!"},
		{"10.0.0.5/32", "0a000005 0a000006!"},
		{"240.0.0.0/4", "f0000000"}, // no address follows the last one
		{"0.0.0.0/0", "00000000"},
		{"2001:db8::/32", "20010db8000000000000000000000000 20010db9000000000000000000000000!"},
	} {
		var got []string
		for _, e := range Intervals([]netip.Prefix{netip.MustParsePrefix(c.in)}) {
			s := fmt.Sprintf("%x", e.Key)
			if e.IntervalEnd {
				s += "!"
			}
			got = append(got, s)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("Intervals(%s) = %s, want %s", c.in, s, c.want)
		}
	}
}

// Networks of one family, without those that another one contains.
func TestDisjoint(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "[]"},
		{"10.1.0.0/16 10.0.0.0/16", "[10.0.0.0/16 10.1.0.0/16]"},
		{"10.0.5.0/24 10.0.0.0/8 10.255.0.0/16 2001:db8::/32 10.0.0.0/8 11.0.0.0/8", "[10.0.0.0/8 11.0.0.0/8]"},
		{"10.0.0.7/16 10.0.0.0/16", "[10.0.0.0/16]"},
		{"0.0.0.0/0 10.0.0.0/8 192.168.0.0/16", "[0.0.0.0/0]"},
	} {
		var in []netip.Prefix
		for _, p := range strings.Fields(c.in) {
			in = append(in, netip.MustParsePrefix(p))
		}
		if got := fmt.Sprint(Disjoint(in, unix.AF_INET)); got != c.want {
			t.Errorf("Disjoint(%s) = %s, want %s", c.in, got, c.want)
		}
	}
}
