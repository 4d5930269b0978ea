package policytable

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/policy"
)

// Refused packets are logged with direction, addresses, protocol and ports, and counted by the policies that refuse them.
func TestRefusedPacketsAreLoggedAndCounted(t *testing.T) {
	a, b, c := pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2"), pair("10.0.3.2", "fd00:3::2")
	w := newWorld(t, [][2]netip.Addr{a, b, c})
	table := New(w.node)
	log, err := table.OpenLog()
	must(t, err)
	t.Cleanup(func() { _ = log.Close() })
	if _, err := New(w.node).OpenLog(); err == nil {
		t.Error("two have the log at once")
	}
	closed := isolated()
	denies := &policy.Policy{Ref: policy.Ref{Name: "no-sctp"}, Tier: policy.Admin}
	denies.Rules[policy.Egress] = []policy.Rule{
		{Action: policy.Deny, AnyPeer: true, Ports: []policy.Ports{{Protocol: unix.IPPROTO_SCTP, First: 1, Last: 65535}}},
	}
	must(t, table.Apply([]Pod{
		{Addrs: a[:], Policies: []*policy.Policy{closed}},
		{Addrs: b[:], Policies: []*policy.Policy{denies}},
	}, noElements, nil))
	var want []Denied
	for family := range 2 {
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			f := policy.Flow{Source: c[family], Destination: a[family], Protocol: protocol, Port: 80}
			w.send(t, f, firstPort+1)
			want = append(want, Denied{Direction: policy.Ingress, Flow: f, SourcePort: firstPort + 1})
		}
		f := policy.Flow{Source: b[family], Destination: c[family], Protocol: unix.IPPROTO_SCTP, Port: 81}
		w.send(t, f, firstPort+2)
		want = append(want, Denied{Direction: policy.Egress, Flow: f, SourcePort: firstPort + 2})
	}
	var got []Denied
	for len(got) < len(want) {
		list, err := log.Receive()
		must(t, err)
		got = append(got, list...)
	}
	for _, list := range [][]Denied{want, got} { // processors log independently of each other
		slices.SortFunc(list, func(a, b Denied) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
	counts, err := table.Refused()
	must(t, err)
	slices.SortFunc(counts, func(a, b Refused) int { return int(a.Direction-b.Direction)*2 + len(a.Policies) - len(b.Policies) })
	if diff := cmp.Diff([]Refused{
		{policy.Ingress, nil, 4}, {policy.Ingress, []policy.Ref{closed.Ref}, 4},
		{policy.Egress, nil, 2}, {policy.Egress, []policy.Ref{denies.Ref}, 2},
	}, counts); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	done := make(chan error)
	go func() {
		_, err := log.Receive()
		done <- err
	}()
	must(t, log.Close())
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed log ends with %v", err)
	}
	must(t, table.Remove())
}

func pair(v4, v6 string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
}

// logged is a packet as the kernel logs it.
func logged(t testing.TB, prefix string, packet []byte) []byte {
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: 1, Data: []byte{0x08, 0, 2, 0}}, // NFULA_PACKET_HDR
		{Type: attrPrefix, Data: append([]byte(prefix), 0)},
		{Type: attrPayload, Data: packet},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ip4 and ip6 are headers of packets with some protocol and content.
func ip4(protocol byte, offset uint16, content ...byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, byte(offset >> 8), byte(offset), 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	return append(b, content...)
}

func ip6(next byte, content ...byte) []byte {
	b := append([]byte{6 << 4, 0, 0, 0, 0, 0, next, 64}, netip.MustParseAddr("fd00::1").AsSlice()...)
	b = append(b, netip.MustParseAddr("fd00::2").AsSlice()...)
	return append(b, content...)
}

var ports = []byte{0x04, 0x01, 0, 80, 0, 0, 0, 0}

func TestLoggedPacketsAreRead(t *testing.T) {
	four := policy.Flow{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.2")}
	six := policy.Flow{Source: netip.MustParseAddr("fd00::1"), Destination: netip.MustParseAddr("fd00::2")}
	with := func(f policy.Flow, protocol uint8, port uint16) policy.Flow {
		f.Protocol, f.Port = protocol, port
		return f
	}
	extension := func(next byte) []byte { return []byte{next, 0, 0, 0, 0, 0, 0, 0} }
	for _, c := range []struct {
		name, prefix string
		packet       []byte
		want         Denied
		ok           bool
	}{
		{"UDP", "berth-policy ingress", ip4(17, 0, ports...), Denied{Flow: with(four, 17, 80), SourcePort: 1025}, true},
		{"outgoing", "berth-policy egress", ip4(6, 0, ports...), Denied{Direction: policy.Egress, Flow: with(four, 6, 80), SourcePort: 1025}, true},
		{"ICMP has no ports", "berth-policy ingress", ip4(1, 0, ports...), Denied{Flow: with(four, 1, 0)}, true},
		{"a later fragment", "berth-policy ingress", ip4(17, 185, ports...), Denied{Flow: with(four, 17, 0)}, true},
		{"cut off", "berth-policy ingress", ip4(17, 0, 1), Denied{Flow: with(four, 17, 0)}, true},
		{"options", "berth-policy ingress", func() []byte {
			b := ip4(17, 0, append([]byte{1, 1, 1, 1}, ports...)...)
			b[0] = 0x46
			return b
		}(), Denied{Flow: with(four, 17, 80), SourcePort: 1025}, true},
		{"IPv6", "berth-policy ingress", ip6(6, ports...), Denied{Flow: with(six, 6, 80), SourcePort: 1025}, true},
		{"extension headers", "berth-policy ingress", ip6(0, slices.Concat(extension(43), extension(60), extension(132), ports)...), Denied{Flow: with(six, 132, 80), SourcePort: 1025}, true},
		{"a first fragment", "berth-policy ingress", ip6(44, append([]byte{17, 0, 0, 1, 0, 0, 0, 0}, ports...)...), Denied{Flow: with(six, 17, 80), SourcePort: 1025}, true},
		{"a later fragment of IPv6", "berth-policy ingress", ip6(44, append([]byte{17, 0, 5, 1, 0, 0, 0, 0}, ports...)...), Denied{Flow: with(six, 17, 0)}, true},
		{"an extension header that is cut off", "berth-policy ingress", ip6(60, 6, 200, 0, 0, 0, 0, 0, 0), Denied{Flow: with(six, 6, 0)}, true},
		{"in a tunnel", "berth-policy tunnelled", ip6(17, append([]byte{0x15, 0xb3, 0x15, 0xb3, 0, 0, 0, 0}, ip4(6, 0, ports...)...)...), Denied{Direction: policy.Egress, Flow: with(four, 6, 80), SourcePort: 1025, Tunnelled: true}, true},
		{"an empty tunnel", "berth-policy tunnelled", ip4(17, 0, ports...), Denied{Direction: policy.Egress, Flow: with(four, 17, 0), Tunnelled: true}, false},
		{"another's", "other", ip4(17, 0, ports...), Denied{}, false},
		{"no packet", "berth-policy ingress", []byte{0x45}, Denied{}, false},
		{"neither version", "berth-policy ingress", make([]byte, 60), Denied{}, false},
		{"a header that is too short", "berth-policy ingress", append([]byte{0x41}, ip4(17, 0, ports...)[1:]...), Denied{Flow: with(four, 17, 0)}, false},
	} {
		got, ok := parse(logged(t, c.prefix, c.packet))
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: got %+v, %t; want %+v, %t", c.name, got, ok, c.want, c.ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(logged(f, "berth-policy ingress", ip4(17, 0, ports...)))
	f.Add(logged(f, "berth-policy egress", ip6(0, append([]byte{6, 0, 0, 0, 0, 0, 0, 0}, ports...)...)))
	f.Add(logged(f, "berth-policy tunnelled", ip4(17, 0, append(slices.Clone(ports), ip4(6, 0, ports...)...)...)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, ok := parse(data); ok && (!d.Source.IsValid() || d.Source.Is4() != d.Destination.Is4()) {
			t.Errorf("read without addresses: %+v", d)
		}
	})
}
