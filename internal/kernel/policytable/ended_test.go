package policytable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/policy"
)

// isolated is a policy that accepts connections from some networks only.
func isolated(from ...netip.Prefix) *policy.Policy {
	p := &policy.Policy{Ref: policy.Ref{Namespace: "red", Name: "isolated"}, Tier: policy.Namespaced, Isolates: [2]bool{true, false}}
	p.Rules[policy.Ingress] = []policy.Rule{{Blocks: from, AnyPort: true}}
	return p
}

// noElements are sets without elements.
func noElements(policy.SetID, func(policy.Element)) {}

// A connection ends when a policy begins to forbid it, whichever side sends next, and cannot go on as one of the other
// direction. Connections that stay allowed go on, and once the policy allows it again so do datagrams of the same ports.
func TestForbiddenConnectionsEnd(t *testing.T) {
	addrs := [][2]netip.Addr{}
	for _, text := range [][2]string{{"10.0.1.2", "fd00:1::2"}, {"10.0.2.2", "fd00:2::2"}, {"10.0.3.2", "fd00:3::2"}} {
		addrs = append(addrs, [2]netip.Addr{netip.MustParseAddr(text[0]), netip.MustParseAddr(text[1])})
	}
	w := newWorld(t, addrs)
	ofNode, ofPod := New(w.node), NewInside(openNetns(t, w.hosts[addrs[0][0]].path), w.node, []string{"eth0"})
	for _, c := range []struct {
		name   string
		family int
		table  *Table
	}{{"IPv4", 0, ofNode}, {"IPv6", 1, ofNode}, {"IPv4 in the pod", 0, ofPod}, {"IPv6 in the pod", 1, ofPod}} {
		family, table := c.family, c.table
		t.Run(c.name, func(t *testing.T) {
			server, client, friend := addrs[0][family], addrs[1][family], addrs[2][family]
			open := isolated(netip.PrefixFrom(client, client.BitLen()), netip.PrefixFrom(friend, client.BitLen()))
			closed := isolated(netip.PrefixFrom(friend, client.BitLen()))
			enforce := func(p *policy.Policy) int {
				t.Helper()
				pods := []Pod{{Addrs: []netip.Addr{server}, Policies: []*policy.Policy{p}}}
				must(t, table.Apply(pods, noElements, nil))
				return end(t, table, func(f policy.Flow) bool {
					return f.Destination != server || policy.Decide(pods[0].Policies, policy.Ingress, f, nil).Allowed
				})
			}
			enforce(open)
			listener, err := ns.Listen(w.hosts[server].path, netip.AddrPortFrom(server, 80))
			must(t, err)
			t.Cleanup(func() { _ = listener.Close() })
			datagrams, err := ns.ListenPacket(w.hosts[server].path, netip.AddrPortFrom(server, 53))
			must(t, err)
			t.Cleanup(func() { _ = datagrams.Close() })
			dial := func(from netip.Addr, network string, port uint16) (near, far net.Conn) {
				t.Helper()
				near, err := ns.Dial(context.Background(), w.hosts[from].path, network, netip.AddrPortFrom(server, port), from)
				must(t, err)
				t.Cleanup(func() { _ = near.Close() })
				if network == "tcp" {
					far, err = listener.Accept()
					must(t, err)
					t.Cleanup(func() { _ = far.Close() })
				}
				return near, far
			}
			near, far := dial(client, "tcp", 80)
			quietNear, quietFar := dial(client, "tcp", 80)
			kept, keptFar := dial(friend, "tcp", 80)
			query, _ := dial(client, "udp", 53)
			pass(t, near, far)
			pass(t, quietFar, quietNear)
			from := ask(t, query, datagrams)
			if n := enforce(open); n != 0 {
				t.Fatalf("%d connections ended that are allowed", n)
			}
			pass(t, near, far)

			if n := enforce(closed); n != 3 {
				t.Errorf("%d connections ended, want 3", n)
			}
			ends(t, near)     // the client sends next
			ends(t, quietFar) // the server does
			pass(t, kept, keptFar)
			conn, err := table.open()
			must(t, err)
			set := familyName(endedSet, []int{unix.AF_INET, unix.AF_INET6}[family])
			known, err := conn.GetSetElements(&nftables.Set{Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: Name}, Name: set})
			must(t, err)
			for _, e := range known {
				answer, _ := decode([]int{unix.AF_INET, unix.AF_INET6}[family], e.Key)
				if want := map[uint8]time.Duration{unix.IPPROTO_TCP: endedFor, unix.IPPROTO_UDP: endedUDPFor}[answer.Protocol]; e.Timeout != want && e.Timeout != 0 {
					t.Errorf("answers of protocol %d are recognized for %s, want %s", answer.Protocol, e.Timeout, want)
				}
			}
			before := refused(t, table)
			if _, err := datagrams.WriteToUDPAddrPort([]byte("late"), from); err != nil && !errors.Is(err, unix.EPERM) {
				t.Fatal(err)
			}
			for after := before; after == before; { // the answer is refused, and counted
				after = refused(t, table)
			}
			if n := enforce(closed); n != 0 {
				t.Errorf("%d connections ended again", n)
			}
			enforce(open)
			ask(t, query, datagrams)
			must(t, table.Remove())
		})
	}
}

// A flow that nobody answers is judged by its first packet, as a connection is: packets after it pass until End finds it forbidden.
// Each packet of a refused flow is refused.
func TestFlowsWithoutAnswers(t *testing.T) {
	pods := [][2]netip.Addr{pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2"), pair("10.0.3.2", "fd00:3::2")}
	w := newWorld(t, pods)
	ofNode, ofPod := New(w.node), NewInside(openNetns(t, w.hosts[pods[0][0]].path), w.node, []string{"eth0"})
	for i, table := range []*Table{ofNode, ofNode, ofPod, ofPod} {
		server, client, friend := pods[0][i%2], pods[1][i%2], pods[2][i%2]
		t.Run(fmt.Sprint(server, []string{" on the node", " in the pod"}[i/2]), func(t *testing.T) {
			apply := func(from ...netip.Prefix) {
				t.Helper()
				must(t, table.Apply([]Pod{{Addrs: []netip.Addr{server}, Policies: []*policy.Policy{isolated(from...)}}}, noElements, nil))
			}
			datagrams, err := ns.ListenPacket(w.hosts[server].path, netip.AddrPortFrom(server, 53))
			must(t, err)
			t.Cleanup(func() { _ = datagrams.Close() })
			must(t, datagrams.SetReadDeadline(time.Now().Add(patience)))
			send := func(from netip.Addr) func() {
				near, err := ns.Dial(context.Background(), w.hosts[from].path, "udp", netip.AddrPortFrom(server, 53), from)
				must(t, err)
				t.Cleanup(func() { _ = near.Close() })
				return func() {
					_, err := near.Write([]byte(from.String()))
					must(t, err)
				}
			}
			arrives := func() {
				t.Helper()
				b := make([]byte, 64)
				n, _, err := datagrams.ReadFromUDPAddrPort(b)
				must(t, err)
				if string(b[:n]) != friend.String() {
					t.Errorf("a datagram of %s arrives", b[:n])
				}
			}
			apply(netip.PrefixFrom(friend, friend.BitLen()))
			before, forbidden, allowed := refused(t, table), send(client), send(friend)
			for range 3 {
				forbidden()
			}
			allowed()
			arrives()
			if n := refused(t, table) - before; n != 3 {
				t.Errorf("%d datagrams were refused, want 3", n)
			}
			apply()
			allowed()
			arrives()
			if n := end(t, table, func(f policy.Flow) bool { return f.Destination != server }); n != 1 {
				t.Fatalf("%d flows ended, want 1", n)
			}
			before = refused(t, table)
			for allowed(); refused(t, table) == before; { // it is refused, and counted
			}
			must(t, table.Remove())
		})
	}
}

// end ends connections that allowed rejects. They are listed while the table is locked, as for a change, which they do not hold up.
func end(t *testing.T, table *Table, allowed func(policy.Flow) bool) int {
	t.Helper()
	table.mu.Lock()
	list, err := table.Connections()
	table.mu.Unlock()
	must(t, err)
	n, err := table.End(list, allowed)
	must(t, err)
	return n
}

const patience = 30 * time.Second

// pass sends a byte from one end of a connection to the other.
func pass(t *testing.T, from, to net.Conn) {
	t.Helper()
	must(t, from.SetDeadline(time.Now().Add(patience)))
	must(t, to.SetDeadline(time.Now().Add(patience)))
	_, err := from.Write([]byte("x"))
	must(t, err)
	_, err = to.Read(make([]byte, 1))
	must(t, err)
}

// ends waits until a connection that sends is reset.
func ends(t *testing.T, c net.Conn) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	if _, err := c.Write([]byte("x")); err != nil {
		return
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the connection goes on: %v", err)
	}
}

func isTimeout(err error) bool {
	n, ok := err.(net.Error) //nolint:errorlint // as the network package returns it
	return ok && n.Timeout()
}

// ask sends a datagram, answers it and returns where it came from.
func ask(t *testing.T, c net.Conn, server *net.UDPConn) netip.AddrPort {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	must(t, server.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write([]byte("question"))
	must(t, err)
	_, from, err := server.ReadFromUDPAddrPort(make([]byte, 64))
	must(t, err)
	_, err = server.WriteToUDPAddrPort([]byte("answer"), from)
	must(t, err)
	_, err = c.Read(make([]byte, 64))
	must(t, err)
	return from
}

// A refused packet that belongs to no state of its connection is not answered by a reset, which would end the connection if the pod
// began it. Others are.
func TestInvalidPacketsAreNotReset(t *testing.T) {
	pod, server := pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2")
	w := newWorld(t, [][2]netip.Addr{pod, server})
	table := New(w.node)
	must(t, table.Apply([]Pod{{Addrs: pod[:], Policies: []*policy.Policy{isolated()}}}, noElements, nil))
	for i := range pod {
		invalid, valid := tcp(server[i], pod[i], 2000+uint16(i), syn|ack), tcp(server[i], pod[i], 3000+uint16(i), ack)
		before := refused(t, table)
		for _, p := range [][]byte{invalid, valid} {
			seal(p)
			must(t, ns.Do(w.hosts[server[i]].path, func() error { return sendRaw(server[i], p) }))
		}
		deadline := time.Now().Add(patience)
		for reset := false; !reset; {
			w.mu.Lock()
			reset = w.came[3000+uint16(i)]
			if w.came[2000+uint16(i)] {
				t.Errorf("%s: an invalid packet is reset", server[i])
			}
			w.mu.Unlock()
			if time.Now().After(deadline) {
				t.Fatalf("%s: a packet of a connection is not reset", server[i])
			}
		}
		if n := refused(t, table) - before; n != 2 {
			t.Errorf("%s: %d packets were refused, want 2", server[i], n)
		}
	}
	must(t, table.Remove())
}
