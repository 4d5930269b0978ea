package policytable

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/policy"
)

// Answers of ended connections are recognized however the table is replaced: after a restart, a repair, or when other software has removed it.
// Those that are allowed again are not.
func TestEndedConnectionsOutliveTheTable(t *testing.T) {
	pod, client := pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2")
	w := newWorld(t, [][2]netip.Addr{pod, client})
	table := New(w.node)
	open := isolated(netip.PrefixFrom(client[0], 32), netip.PrefixFrom(client[1], 128))
	enforce := func(p *policy.Policy) {
		t.Helper()
		pods := []Pod{{Addrs: pod[:], Policies: []*policy.Policy{p}}}
		must(t, table.Apply(pods, noElements, nil))
		end(t, table, func(f policy.Flow) bool {
			return !slices.Contains(pod[:], f.Destination) || policy.Decide(pods[0].Policies, policy.Ingress, f, nil).Allowed
		})
	}
	expect := func(when string, want int) {
		t.Helper()
		conn, err := table.open()
		must(t, err)
		for _, family := range families {
			known, err := conn.GetSetElements(endedHandle(family))
			must(t, err)
			if len(known) != want {
				t.Errorf("%s: %d answers are recognized, want %d", when, len(known), want)
			}
			for _, e := range known {
				if e.Expires > endedUDPFor || e.Expires < endedUDPFor-time.Minute {
					t.Errorf("%s: an answer is recognized for another %s", when, e.Expires)
				}
			}
		}
	}
	enforce(open)
	for i := range pod {
		datagrams, err := ns.ListenPacket(w.hosts[pod[i]].path, netip.AddrPortFrom(pod[i], 53))
		must(t, err)
		t.Cleanup(func() { _ = datagrams.Close() })
		query, err := ns.Dial(t.Context(), w.hosts[client[i]].path, "udp", netip.AddrPortFrom(pod[i], 53), client[i])
		must(t, err)
		t.Cleanup(func() { _ = query.Close() })
		ask(t, query, datagrams)
	}
	enforce(isolated())
	expect("at first", 1)
	remove := func() {
		t.Helper()
		conn, err := table.open()
		must(t, err)
		conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: Name})
		must(t, conn.Flush())
		table.Forget()
		enforce(isolated())
	}
	remove()
	expect("after other software removed the table", 1)
	table.Forget()
	enforce(isolated())
	expect("after a repair", 1)
	table = New(w.node)
	enforce(isolated())
	expect("after a restart", 1)
	remove()
	expect("after both", 1)
	enforce(open)
	table.Forget()
	enforce(isolated())
	expect("after they were allowed", 0)
	must(t, table.Remove())
}

// Large sets are filled before the transaction that switches policies, also when the table is replaced. Nothing of the old table stays.
func TestLargeSetsAreFilledBefore(t *testing.T) {
	w := newWorld(t, nil)
	pod := pair("10.0.1.2", "fd00:1::2")
	s := newSets()
	s.note("pods-1", true, from(mostMerged+500)...)
	s.note("pods-2", true, from(mostMerged+700)...)
	accepting := func(name string, id policy.SetID) *policy.Policy {
		p := isolated()
		p.Name, p.Rules[policy.Ingress][0] = name, policy.Rule{Peers: []policy.SetID{id}, AnyPort: true}
		return p
	}
	first, second := accepting("first", "pods-1"), accepting("second", "pods-2")
	table := New(w.node)
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(w.node)})
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	generation := func() uint32 { // counts transactions
		t.Helper()
		answer, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
		})
		must(t, err)
		attributes, err := netlink.NewAttributeDecoder(answer[0].Data[4:])
		must(t, err)
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				return attributes.Uint32()
			}
		}
		t.Fatal("the kernel does not tell its generation")
		return 0
	}
	generations := func(do func()) uint32 {
		before := generation()
		do()
		return generation() - before
	}
	apply := func(policies ...*policy.Policy) {
		t.Helper()
		must(t, table.Apply([]Pod{{Addrs: pod[:], Policies: policies}}, s.Elements, s.changed))
		s.changed = policy.SetChanges{}
	}
	check := func(when string, policies ...*policy.Policy) {
		t.Helper()
		var expected []Expected
		for _, p := range policies {
			for _, a := range append(from(mostMerged+700), pod[0], netip.MustParseAddr("10.0.7.7")) {
				id := p.Rules[policy.Ingress][0].Peers[0]
				expected = append(expected, Expected{id, policy.Element{Addr: a}, s.Has(id, policy.Element{Addr: a})})
			}
		}
		if err := table.Compare(pod[:], expected); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		conn, err := table.open()
		must(t, err)
		kernel, err := conn.GetSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: Name})
		must(t, err)
		if len(kernel) != len(table.have.flat().sets) {
			t.Errorf("%s: the kernel has %d sets, want %d", when, len(kernel), len(table.have.flat().sets))
		}
	}
	apply(first)
	check("small enough", first)
	table.atOnce = 600
	if n := generations(func() { apply(first, second) }); n < 3 {
		t.Errorf("a large set came in %d transactions", n)
	}
	check("with a new policy", first, second)
	s.note("pods-2", false, from(1)...)
	s.note("pods-2", true, pod[0])
	must(t, table.ApplyElements(s.Elements, s.changed))
	s.changed = policy.SetChanges{}
	check("with another element", first, second)
	s.note("pods-2", false, append(from(5), pod[0])...)
	s.note("pods-2", true, netip.MustParseAddr("10.0.7.7"))
	s.changed = policy.SetChanges{"pods-2": {Whole: true}}
	must(t, table.ApplyElements(s.Elements, s.changed))
	s.changed = policy.SetChanges{}
	check("told again", first, second)
	for range 2 {
		table = New(w.node)
		table.atOnce = 600
		if n := generations(func() { apply(first, second) }); n < 5 {
			t.Errorf("a table with large sets came in %d transactions", n)
		}
		check("after a restart", first, second)
	}
	apply(second)
	check("without a policy", second)
	table.atOnce = mostAtOnce
	table.Forget()
	apply(second)
	check("after a repair", second)
	for name := range table.have.aliases {
		t.Errorf("set %s has another name", strings.TrimSpace(name))
	}
	must(t, table.Remove())
}

// A change that the kernel rejects for its size leaves the table known: the next one has both changes, and only these.
func TestRefusedChangesAreAddedToTheNextOne(t *testing.T) {
	w := newWorld(t, nil)
	pod, peer := pair("10.0.1.2", "fd00:1::2"), netip.MustParseAddr("10.0.9.9")
	table := New(w.node)
	s := newSets()
	s.note("pods-1", true, peer)
	p := isolated()
	p.Rules[policy.Ingress][0] = policy.Rule{Peers: []policy.SetID{"pods-1"}, AnyPort: true}
	pods := []Pod{{Addrs: pod[:], Policies: []*policy.Policy{p}}}
	must(t, table.Apply(pods, s.Elements, nil))
	s.changed = policy.SetChanges{}
	s.note("pods-1", true, from(mostMerged)...)
	s.note("pods-1", false, peer)
	table.disconnect()
	var err error
	table.conn, err = nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(int(w.node)), nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetWriteBuffer(1) }))
	must(t, err)
	if err := table.Apply(pods, s.Elements, s.changed); !errors.Is(err, unix.EMSGSIZE) {
		t.Fatalf("the kernel takes a message beyond its buffer: %v", err)
	}
	must(t, table.Compare(pod[:], []Expected{{"pods-1", policy.Element{Addr: peer}, true}, {"pods-1", policy.Element{Addr: from(1)[0]}, false}}))
	if err := table.ApplyElements(s.Elements, nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("elements change while the kernel lacks earlier changes: %v", err)
	}
	must(t, table.Apply(pods, s.Elements, nil))
	must(t, table.Compare(pod[:], []Expected{{"pods-1", policy.Element{Addr: peer}, false}, {"pods-1", policy.Element{Addr: from(1)[0]}, true}}))
	must(t, table.Remove())
}
