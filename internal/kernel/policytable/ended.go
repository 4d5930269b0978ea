package policytable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// Connection is a connection in connection tracking, after the translation of its destination: as its destination sees it.
type Connection struct {
	policy.Flow
	SourcePort uint16
}

// tracking lists and ends the connections of a network namespace. Its socket stays open, because closing it delays changes of nftables:
// see Table.connection.
type tracking struct {
	ns netns.NsHandle

	mu     sync.Mutex // held while the socket or the network namespace is used
	h      *netlink.Handle
	closed bool // for good
}

// use calls do with the open socket.
func (k *tracking) use(do func(h *netlink.Handle) error) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return rtnl.ErrNoNetns
	}
	if k.h == nil {
		h, err := netlink.NewHandleAt(k.ns, unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		k.h = h
	}
	if err = do(k.h); err != nil {
		k.reset() // drops unread answers
	}
	return err
}

// reset closes the socket, with mu held.
func (k *tracking) reset() {
	if k.h != nil {
		k.h.Close()
		k.h = nil
	}
}

// close closes the socket until its next use or, with forGood, permanently.
func (k *tracking) close(forGood bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reset()
	k.closed = k.closed || forGood
}

// Connections lists all connections. It takes 10 ms or more, and does not delay changes of the table.
func (k *tracking) Connections() (list []Connection, err error) {
	err = k.use(func(h *netlink.Handle) error {
		flows, err := rtnl.Whole(func() ([]*netlink.ConntrackFlow, error) {
			return h.ConntrackTableList(netlink.ConntrackTable, unix.AF_UNSPEC) // takes as long as one family
		})
		if err != nil {
			return fmt.Errorf("list connections: %w", err)
		}
		for _, f := range flows {
			list = append(list, connectionOf(f))
		}
		return nil
	})
	return list, err
}

// End ends those connections of a list that allowed rejects, and returns their number. It is called after policies have changed in
// the kernel, which does not judge existing connections again. Afterwards, their next packet is judged as a first one. Their replies
// are recognized for half an hour (UDP: three minutes), so that none begins a connection in the other direction. TCP connections are
// reset. Connections of programs of the node itself continue.
func (t *Table) End(list []Connection, allowed func(policy.Flow) bool) (ended int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err = t.use(func(h *netlink.Handle) error {
		ended, err = t.end(h, list, allowed)
		return err
	})
	return ended, err
}

func (t *Table) end(h *netlink.Handle, list []Connection, allowed func(policy.Flow) bool) (int, error) {
	skip, err := t.compile.inside.notJudged(h)
	if err != nil {
		return 0, err
	}
	refused := map[int]refusals{unix.AF_INET: {}, unix.AF_INET6: {}}
	for _, c := range list {
		if !skip(c.Flow) && !allowed(c.Flow) {
			refused[rtnl.FamilyOf(c.Source)][c] = true
		}
	}
	ended := 0
	for _, family := range families {
		if err := t.recognize(family, refused[family], allowed); err != nil {
			return ended, err
		}
		if len(refused[family]) == 0 {
			continue
		}
		n, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(family), refused[family])
		if err != nil {
			return ended, fmt.Errorf("end connections: %w", err)
		}
		ended += int(n)
	}
	return ended, nil
}

// addresses returns the addresses of a network namespace.
func addresses(h *netlink.Handle) (map[netip.Addr]bool, error) {
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	own := map[netip.Addr]bool{}
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			own[addr.Unmap()] = true
		}
	}
	return own, nil
}

func connectionOf(f *netlink.ConntrackFlow) Connection {
	source, _ := netip.AddrFromSlice(f.Forward.SrcIP)
	destination, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
	return Connection{
		policy.Flow{Source: source.Unmap(), Destination: destination.Unmap(), Protocol: f.Forward.Protocol, Port: f.Reverse.SrcPort},
		f.Forward.SrcPort,
	}
}

// refusals are the connections to end.
type refusals map[Connection]bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (r refusals) MatchConntrackFlow(f *netlink.ConntrackFlow) bool { return r[connectionOf(f)] }

// recognize updates the set of replies of ended connections: it adds those of refused, and removes those of connections that
// are allowed now.
func (t *Table) recognize(family int, refused refusals, allowed func(policy.Flow) bool) (err error) {
	conn, err := t.connection()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			t.disconnect()
		}
	}()
	handle := endedHandle(family)
	known, err := conn.GetSetElements(handle)
	if err != nil {
		return fmt.Errorf("nftables: list set %s: %w", handle.Name, err)
	}
	delete(t.answers, family)
	var gone, come []nftables.SetElement
	had := map[string]bool{}
	for _, e := range known {
		if answer, ok := decode(family, e.Key); ok && !allowed(answer.reverse().Flow) {
			had[string(e.Key)] = true
			t.answers.note(family, e.Key, e.Expires)
			continue
		}
		gone = append(gone, nftables.SetElement{Key: e.Key})
	}
	for c := range refused {
		if c.Port == 0 && c.SourcePort == 0 {
			continue // without ports; its next packet is judged as a new connection
		}
		if key := c.reverse().encode(); !had[string(key)] {
			e := nftables.SetElement{Key: key}
			lasts := endedFor
			if c.Protocol == unix.IPPROTO_UDP {
				lasts = endedUDPFor
				e.Timeout = lasts
			}
			t.answers.note(family, key, lasts)
			come = append(come, e)
		}
	}
	if err := errors.Join(inChunks(gone, func(part []nftables.SetElement) error { return conn.SetDeleteElements(handle, part) }),
		inChunks(come, func(part []nftables.SetElement) error { return conn.SetAddElements(handle, part) })); err != nil {
		return fmt.Errorf("encode set %s: %w", handle.Name, err)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: change set %s: %w", handle.Name, err)
	}
	return nil
}

func inChunks(elements []nftables.SetElement, do func([]nftables.SetElement) error) error {
	for part := range slices.Chunk(elements, nft.ElementChunk) {
		if err := do(part); err != nil {
			return err
		}
	}
	return nil
}

func endedType(family int) nftables.SetDatatype {
	address := nft.AddressType(family)
	return nftables.MustConcatSetType(address, address, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInetService)
}

// reverse returns the connection as seen in its replies.
func (c Connection) reverse() Connection {
	return Connection{policy.Flow{Source: c.Destination, Destination: c.Source, Protocol: c.Protocol, Port: c.SourcePort}, c.Port}
}

// encode returns a connection as a key of the set. Each part starts at a 32-bit word.
func (c Connection) encode() []byte {
	b := append(c.Source.AsSlice(), c.Destination.AsSlice()...)
	b = append(b, c.Protocol, 0, 0, 0)
	b = append(binary.BigEndian.AppendUint16(b, c.SourcePort), 0, 0)
	return append(binary.BigEndian.AppendUint16(b, c.Port), 0, 0)
}

func decode(family int, key []byte) (Connection, bool) {
	_, n := nft.SourceAt(family)
	if len(key) != int(2*n)+12 {
		return Connection{}, false
	}
	source, _ := netip.AddrFromSlice(key[:n])
	destination, _ := netip.AddrFromSlice(key[n : 2*n])
	rest := key[2*n:]
	return Connection{
		policy.Flow{Source: source, Destination: destination, Protocol: rest[0], Port: binary.BigEndian.Uint16(rest[8:])},
		binary.BigEndian.Uint16(rest[4:]),
	}, true
}
