// Package egressgateway sets up an egress gateway in the kernel: it decapsulates clients' packets, translates those
// to the Egress's destinations to the gateway's own address, and sends replies back through the tunnels.
//
// Everything is in the gateway's network namespace, and keeps working while the program is restarted. Apply reads
// what the kernel has and changes what differs.
//
// For each client the kernel has an element of an nftables set, with the client's UID as its comment, and a route.
// FoU packets are accepted if both the outer and the inner source is the client's address. Packets with IP options
// are not accepted, so that the inner source is at a fixed offset.
package egressgateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Kernel is a gateway's network namespace. Only Counters, Connections and ConnectionsRefused are safe for concurrent
// use.
type Kernel struct {
	at *tunnel.Namespace

	known *known // what the kernel has since the last Apply; nil: it must be read
	swept bool   // connections of addresses that are no clients' were ended
}

// known caches what Apply left in the kernel.
type known struct {
	tag          string // of the rules
	destinations map[int][]netip.Prefix
	index        map[int]int // of the tunnels' devices by family
	members      map[netip.Addr]string
	routes       map[netip.Addr]bool
}

// OpenOwn opens the network namespace that the process is in, which takes CAP_NET_ADMIN to change and no
// more. It changes nothing.
func OpenOwn() (*Kernel, error) { return opened(tunnel.OpenOwn(unix.NETLINK_NETFILTER)) }

// Open opens the network namespace at a path. It changes nothing. Errors: rtnl.ErrNoNetns, rtnl.ErrNotNetns.
func Open(path string) (*Kernel, error) { return opened(tunnel.Open(path, unix.NETLINK_NETFILTER)) }

func opened(at *tunnel.Namespace, err error) (*Kernel, error) {
	if err != nil {
		return nil, err
	}
	return &Kernel{at: at}, nil
}

// Close closes the sockets to the namespace, and leaves it as it is.
func (k *Kernel) Close() { k.at.Close() }

// Forget drops the cache, so that the next Apply reads the kernel's state.
func (k *Kernel) Forget() { k.known = nil }

// Apply makes the gateway as a setup says, and changes only what differs. It ends connections of clients that are
// gone or whose address is another client's now. Errors: tunnel.ErrNoFoU; ErrLeftOut and ErrNotForwarded, after
// everything else is done; ctx's.
func (k *Kernel) Apply(ctx context.Context, s Setup) error {
	if err := (Setup{Link: s.Link, Addrs: s.Addrs, Port: s.Port, Destinations: s.Destinations}).Validate(); err != nil {
		return err
	}
	want, problems := members(s.Clients)
	if err := k.apply(ctx, s, want); err != nil {
		k.Forget()
		k.swept = false
		return err
	}
	return errors.Join(problems, k.forwarded(s))
}

func (k *Kernel) apply(ctx context.Context, s Setup, want map[netip.Addr]string) error {
	conn, err := k.at.NFTables()
	if err != nil {
		return err
	}
	// The rules come before the devices, so that nothing is forwarded without them.
	if err := k.rules(conn, s); err != nil {
		return err
	}
	if err := k.devices(s); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return k.serve(conn, s, compare(k.known.members, want))
}

// InKernel reports whether an earlier process set up the gateway, with any clients and destinations, and it serves
// clients.
func (k *Kernel) InKernel(s Setup) (bool, error) {
	conn, err := k.at.NFTables()
	if err != nil {
		return false, err
	}
	rules, err := s.ruleset()
	if err != nil || !rules.InKernel(conn) {
		return false, err
	}
	link, err := k.at.NL.LinkByName(s.Link)
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", s.Link, err)
	}
	tunnels, err := s.tunnels(link.Attrs().MTU)
	if err != nil {
		return false, err
	}
	for _, t := range tunnels {
		if differ, err := tunnel.Check(k.at.NL, t); err != nil || len(differ) > 0 {
			return false, err
		}
	}
	there, err := listMembers(conn)
	return len(there) > 0, err
}

// rules sets rules and destinations, and reads the kernel's clients if they are not cached.
func (k *Kernel) rules(conn *nftables.Conn, s Setup) error {
	rules, err := s.ruleset()
	if err != nil {
		return err
	}
	if k.known == nil || k.known.tag != rules.Tag {
		if err := setRules(conn, rules); err != nil {
			return err
		}
	}
	if k.known == nil {
		if err := k.look(conn); err != nil {
			return err
		}
	}
	k.known.tag = rules.Tag
	for _, of := range tunnel.Families {
		want := s.destinations(of)
		if known, ok := k.known.destinations[of]; ok && slices.Equal(known, want) {
			continue
		}
		if err := setDestinations(conn, of, want); err != nil {
			return err
		}
		k.known.destinations[of] = want
	}
	return nil
}

// look reads the kernel's clients into a new cache.
func (k *Kernel) look(conn *nftables.Conn) error {
	there, err := listMembers(conn)
	if err != nil {
		return err
	}
	k.known = &known{destinations: map[int][]netip.Prefix{}, index: map[int]int{}, members: there}
	return nil
}

// devices makes the tunnels.
func (k *Kernel) devices(s Setup) error {
	link, err := k.at.NL.LinkByName(s.Link)
	if err != nil {
		return fmt.Errorf("look for %s: %w", s.Link, err)
	}
	tunnels, err := s.tunnels(link.Attrs().MTU)
	if err != nil {
		return err
	}
	for _, t := range tunnels {
		if err := k.device(t, link.Attrs()); err != nil {
			return err
		}
	}
	if k.known.routes == nil {
		k.known.routes, err = k.listRoutes()
	}
	return err
}

func (k *Kernel) device(t tunnel.Tunnel, link *netlink.LinkAttrs) error {
	of := rtnl.FamilyOf(t.Local)
	index, err := tunnel.Ensure(k.at.NL, t)
	if err != nil {
		return err
	}
	if was, known := k.known.index[of]; known && was != index {
		// It was replaced; the routes went with the old one.
		maps.DeleteFunc(k.known.routes, func(a netip.Addr, _ bool) bool { return rtnl.FamilyOf(a) == of })
	}
	k.known.index[of] = index
	if of == unix.AF_INET {
		if err := errors.Join(k.forwardFrom(t.Link(), index), k.forwardFrom(link.Name, link.Index)); err != nil {
			return err
		}
	}
	return k.returnRules(of)
}

// serve removes and adds clients. It ends the connections of a removed client after the client can no longer send,
// and before a new client with its address can.
func (k *Kernel) serve(conn *nftables.Conn, s Setup, c change) error {
	if err := remove(conn, c.gone); err != nil {
		return err
	}
	for _, a := range c.gone {
		delete(k.known.members, a)
	}
	if err := k.endConnections(s, c); err != nil {
		return err
	}
	if err := k.setRoutes(c); err != nil {
		return err
	}
	if err := add(conn, c.added); err != nil {
		return err
	}
	for a, uid := range c.added {
		k.known.members[a] = uid
	}
	return nil
}
