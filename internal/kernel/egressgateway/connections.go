package egressgateway

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// endConnections deletes the connection tracking entries of removed clients. The first call also deletes those of all
// addresses that belong to no client, as an earlier process may have ended before it did so.
func (k *Kernel) endConnections(s Setup, c change) error {
	if k.swept && len(c.gone) == 0 {
		return nil
	}
	end := ended{members: k.known.members, own: map[netip.Addr]bool{}, all: !k.swept, gone: map[netip.Addr]bool{}}
	for _, a := range s.Addrs {
		end.own[a] = true
	}
	for _, a := range c.gone {
		end.gone[a] = true
	}
	for _, of := range tunnel.Families {
		if _, err := k.at.NL.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(of), end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("end IPv%d connections of removed clients: %w", tunnel.Digit(of), err)
		}
	}
	k.swept = true
	return nil
}

// ended matches connections to end. It implements netlink.CustomConntrackFilter.
type ended struct {
	gone    map[netip.Addr]bool
	all     bool // also connections of addresses that are neither a client's nor the gateway's own
	members map[netip.Addr]string
	own     map[netip.Addr]bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter. A connection belongs to its originator. Connections
// from outside to the gateway's own address belong to the gateway.
func (e ended) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	from, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	to, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	from, to = from.Unmap(), to.Unmap()
	if e.gone[from] {
		return true
	}
	_, served := e.members[from]
	return e.all && !served && !e.own[from] && !e.own[to] && !from.IsLoopback()
}

// Connections returns the number of tracked connections in the namespace and its limit. Both are 0 if connection
// tracking is not loaded.
func (k *Kernel) Connections() (count, limit int, err error) {
	err = k.at.Inside(func() error {
		if count, err = number("/proc/sys/net/netfilter/nf_conntrack_count"); err != nil {
			return err
		}
		limit, err = number("/proc/sys/net/netfilter/nf_conntrack_max")
		return err
	})
	return count, limit, err
}

// Tracked is the state of connection tracking of a gateway.
type Tracked struct {
	Count, Limit int    // connections, and their limit
	Refused      uint64 // packets that were dropped because the table was full
}

// TrackedAt returns the state of connection tracking in the network namespace at a path. Errors: those of Open.
func TrackedAt(path string) (t Tracked, err error) {
	k, err := Open(path)
	if err != nil {
		return t, err
	}
	defer k.Close()
	if t.Count, t.Limit, err = k.Connections(); err != nil {
		return t, err
	}
	t.Refused, err = k.ConnectionsRefused()
	return t, err
}

// OpenConnections returns the number of clients' connections that may still have packets: TCP connections that are
// not closed, and others that had packets recently. Like Apply it is not safe for concurrent use.
func (k *Kernel) OpenConnections() (int, error) {
	var open int
	for _, of := range tunnel.Families {
		list, err := k.at.NL.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(of))
		if err != nil {
			return 0, fmt.Errorf("list IPv%d connections: %w", tunnel.Digit(of), err)
		}
		for _, flow := range list {
			if k.isOpen(flow) {
				open++
			}
		}
	}
	return open, nil
}

func (k *Kernel) isOpen(flow *netlink.ConntrackFlow) bool {
	from, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	if k.known != nil {
		if _, served := k.known.members[from.Unmap()]; !served {
			return false
		}
	}
	tcp, ok := flow.ProtoInfo.(*netlink.ProtoInfoTCP)
	return !ok || (tcp.State != nl.TCP_CONNTRACK_TIME_WAIT && tcp.State != nl.TCP_CONNTRACK_CLOSE && tcp.State != nl.TCP_CONNTRACK_LAST_ACK)
}

func number(path string) (int, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// ConnectionsRefused returns the number of packets dropped since the namespace was made because the connection table
// was full.
func (k *Kernel) ConnectionsRefused() (uint64, error) {
	var refused uint64
	err := k.at.Inside(func() error {
		// Not /proc/net, which belongs to the process's first thread.
		text, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		refused, err = statistic(string(text), "drop")
		return err
	})
	return refused, err
}

// statistic returns the sum of a column of /proc/net/stat/nf_conntrack, which has a line of names, and for each
// processor a line of hexadecimal numbers.
func statistic(text, column string) (uint64, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	at := -1
	for i, name := range strings.Fields(lines[0]) {
		if name == column {
			at = i
		}
	}
	if at < 0 {
		return 0, fmt.Errorf("nf_conntrack's statistics have no column %s: %q", column, lines[0])
	}
	var sum uint64
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		if at >= len(fields) {
			return 0, fmt.Errorf("nf_conntrack's statistics have a line without column %s: %q", column, line)
		}
		n, err := strconv.ParseUint(fields[at], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("nf_conntrack's statistics: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// Count is a number of packets, and of bytes including IP headers.
type Count struct{ Packets, Bytes uint64 }

// Counters count packets since Berth's table was created, by family, 4 or 6.
type Counters struct {
	Translated map[string]map[int]Count // by direction, Out or In
	Dropped    map[Reason]map[int]Count
}

// Counters reads the counters. Before the first Apply there are none.
func (k *Kernel) Counters() (Counters, error) {
	c := Counters{Translated: map[string]map[int]Count{Out: {}, In: {}}, Dropped: map[Reason]map[int]Count{}}
	for _, r := range Reasons {
		c.Dropped[r] = map[int]Count{}
	}
	conn, err := k.at.NFTables()
	if err != nil {
		return c, err
	}
	objects, err := conn.GetNamedObjects(table())
	if err != nil {
		if isNoTable(err) {
			return c, nil
		}
		return c, fmt.Errorf("list counters of nftables: %w", err)
	}
	counts := map[string]Count{}
	for _, o := range objects {
		if named, ok := o.(*nftables.NamedObj); ok {
			if n, ok := named.Obj.(*expr.Counter); ok {
				counts[named.Name] = Count{n.Packets, n.Bytes}
			}
		}
	}
	for _, of := range tunnel.Families {
		for _, direction := range []string{Out, In} {
			c.Translated[direction][tunnel.Digit(of)] = counts[counterName(direction, of)]
		}
		for _, r := range Reasons {
			c.Dropped[r][tunnel.Digit(of)] = counts[counterName(string(r), of)]
		}
	}
	return c, nil
}
