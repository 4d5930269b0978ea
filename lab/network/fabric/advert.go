package fabric

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	inet6 "golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// Like the router of a VPC, the router of a subnet with IPv6 advertises itself on each ENI's link (RFC 4861,
// section 6.2): in reply to solicitations, when a link appears, and every minute. The advertisement has a
// lifetime, the flag for managed addresses, because addresses come from DHCPv6, and no prefix: all destinations
// but the link itself are behind the router. An instance's kernel takes its default route from it on any ENI
// that is up, depending on accept_ra: with 1 only while the instance does not forward, with 2 always.

// Fields of an advertisement (RFC 4861, section 4.2).
const (
	advertHopLimit = 255 // hop limit for hosts
	advertManaged  = 0x80
	advertLifetime = 30 * time.Minute
	advertEvery    = time.Minute
	// neighbourHops is the hop limit of all neighbour discovery messages. It proves to the receiver that they were
	// sent on the link.
	neighbourHops = 255
)

// adverts advertises the router. It is safe for concurrent use.
type adverts struct {
	conn *inet6.PacketConn
	stop chan struct{}
	done sync.WaitGroup
}

// advertise starts to reply to solicitations and to advertise periodically, until close.
func advertise(router string, links func() []int) (*adverts, error) {
	var conn *inet6.PacketConn
	err := ns.Do(router, func() error {
		c, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		conn = inet6.NewPacketConn(c)
		var filter inet6.ICMPFilter
		filter.SetAll(true)
		filter.Accept(inet6.ICMPTypeRouterSolicitation)
		return errors.Join(conn.SetICMPFilter(&filter), conn.SetControlMessage(inet6.FlagInterface|inet6.FlagHopLimit, true))
	})
	if err != nil {
		if conn != nil {
			err = errors.Join(err, conn.Close())
		}
		return nil, fmt.Errorf("open the socket of router advertisements: %w", err)
	}
	a := &adverts{conn: conn, stop: make(chan struct{})}
	a.done.Go(func() { a.answer(links) })
	a.done.Go(func() { a.repeat(links) })
	return a, nil
}

func (a *adverts) close() {
	close(a.stop)
	_ = a.conn.Close()
}

// advertised lists the indexes of the links on which the router advertises itself.
func (f *Fabric) advertised() (links []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.attached() {
		p := f.enis[id]
		if s, err := f.opts.subnet(p.eni); err == nil && s.IPv6.IsValid() {
			links = append(links, p.idx)
		}
	}
	return links
}

// answer replies to solicitations until the socket is closed. It ignores those that a router has forwarded
// (RFC 4861, section 6.1.1).
func (a *adverts) answer(links func() []int) {
	buf := make([]byte, 1500)
	for {
		_, from, _, err := a.conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || from == nil || from.HopLimit != neighbourHops || !slices.Contains(links(), from.IfIndex) {
			continue
		}
		_ = a.send(from.IfIndex) // without a reply, the node solicits again
	}
}

func (a *adverts) repeat(links func() []int) {
	tick := time.NewTicker(advertEvery)
	defer tick.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-tick.C:
			for _, link := range links() {
				_ = a.send(link) // fails if the link is gone
			}
		}
	}
}

// send advertises the router on one of its links, to all nodes. The kernel sets the checksum.
func (a *adverts) send(link int) error {
	m := make([]byte, 16)
	m[0] = byte(inet6.ICMPTypeRouterAdvertisement)
	m[4], m[5] = advertHopLimit, advertManaged
	binary.BigEndian.PutUint16(m[6:], uint16(advertLifetime/time.Second))
	// Reachable time and retransmission timer are 0: unspecified by the router.
	cm := &inet6.ControlMessage{HopLimit: neighbourHops, IfIndex: link, Src: Router6.AsSlice()}
	if _, err := a.conn.WriteTo(m, cm, &net.IPAddr{IP: net.IPv6linklocalallnodes}); err != nil {
		return fmt.Errorf("advertise the router on link %d: %w", link, err)
	}
	return nil
}

// until advertises the router on a new link until taken reports that the node has the route.
func (a *adverts) until(p *plugged, taken func() (bool, error)) error {
	const patience = 20 * time.Second
	for end := time.Now().Add(patience); ; {
		err := a.send(p.idx)
		ok, takenErr := taken()
		if ok || takenErr != nil {
			return takenErr
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("node %s has not taken a default route from the router's advertisement within %v", p.node, patience), err)
		}
		<-time.After(5 * time.Millisecond) // the kernel does not notify when it is done
	}
}

// takesAdverts reports whether the kernel accepts a default route from advertisements on a link of the calling
// thread's namespace (the kernel's Documentation/networking/ip-sysctl.rst, accept_ra).
func takesAdverts(link string) (bool, error) {
	var values [2]string
	for i, name := range []string{"accept_ra", "forwarding"} {
		b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + link + "/" + name)
		if err != nil {
			return false, fmt.Errorf("read sysctl %s of %s: %w", name, link, err)
		}
		values[i] = strings.TrimSpace(string(b))
	}
	return values[0] == "2" || values[0] == "1" && values[1] == "0", nil
}

// hasDefault6 reports whether a link has an IPv6 default route.
func hasDefault6(h *netlink.Handle, name string) (bool, error) {
	l, err := h.LinkByName(name)
	if err != nil {
		return false, fmt.Errorf("find link %s: %w", name, err)
	}
	routes, err := h.RouteList(l, unix.AF_INET6)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return false, nil // the caller retries
	}
	if err != nil {
		return false, fmt.Errorf("list routes of %s: %w", name, err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		if r.Dst == nil {
			return r.Gw != nil
		}
		ones, _ := r.Dst.Mask.Size()
		return ones == 0 && r.Gw != nil
	}), nil
}
