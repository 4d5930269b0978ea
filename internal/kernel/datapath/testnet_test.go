package datapath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

var ctx = context.Background()

// space is a network namespace of a test.
type space struct {
	t      testing.TB
	name   string
	handle netns.NsHandle
	nl     *netlink.Handle
}

func newSpace(t testing.TB, role string) *space {
	t.Helper()
	s := &space{t: t, name: nstest.Unique(role)}
	var err error
	s.handle, err = netns.GetFromPath(nstest.New(t, s.name))
	s.must(err)
	t.Cleanup(func() { _ = s.handle.Close() })
	s.nl, err = netlink.NewHandleAt(s.handle)
	s.must(err)
	t.Cleanup(s.nl.Close)
	s.must(s.nl.LinkSetUp(rtnl.LinkRef(1)))
	return s
}

// as returns the namespace for a subtest, whose failures it reports.
func (s *space) as(t testing.TB) *space {
	if s == nil {
		return nil
	}
	c := *s
	c.t = t
	return &c
}

func (s *space) path() string { return ns.Path(s.name) }

func (s *space) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
}

// in runs f inside the namespace.
func (s *space) in(f func() error) {
	s.t.Helper()
	s.must(rtnl.InNetns(s.handle, f))
}

func (s *space) sysctl(path, value string) {
	s.t.Helper()
	s.in(func() error { return os.WriteFile("/proc/sys/"+path, []byte(value), 0) })
}

func (s *space) readSysctl(path string) string {
	s.t.Helper()
	var v []byte
	s.in(func() (err error) {
		v, err = os.ReadFile("/proc/sys/" + path)
		return err
	})
	return strings.TrimSpace(string(v))
}

func (s *space) link(name string) netlink.Link {
	s.t.Helper()
	l, err := s.nl.LinkByName(name)
	s.must(err)
	return l
}

// address adds PREFIX to a link; v6 without duplicate address detection.
func (s *space) address(link, prefix string) {
	s.t.Helper()
	p := netip.MustParsePrefix(prefix)
	a := &netlink.Addr{IPNet: rtnl.IPNet(p)}
	if p.Addr().Is6() {
		a.Flags = 0x02 // IFA_F_NODAD
	}
	s.must(s.nl.AddrAdd(s.link(link), a))
}

// route adds a route: via may be empty.
func (s *space) route(dst, via, link string) {
	s.t.Helper()
	p := netip.MustParsePrefix(dst)
	r := &netlink.Route{LinkIndex: s.link(link).Attrs().Index, Dst: rtnl.IPNet(p)}
	if via != "" {
		r.Gw = netip.MustParseAddr(via).AsSlice()
		r.Flags = int(netlink.FLAG_ONLINK)
	} else if p.Addr().Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	s.must(s.nl.RouteAdd(r))
}

// wire makes a veth between two namespaces, both ends up and ready. Duplicate address detection is off: neighbour
// discovery needs the link-local address, and on a busy machine would time out before that is usable.
func wire(a *space, aName string, b *space, bName string) {
	a.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	v := netlink.NewVeth(attrs)
	v.PeerName = bName
	v.PeerNamespace = netlink.NsFd(b.handle)
	a.must(a.nl.LinkAdd(v))
	a.sysctl("net/ipv6/conf/"+aName+"/accept_dad", "0")
	b.sysctl("net/ipv6/conf/"+bName+"/accept_dad", "0")
	a.must(a.nl.LinkSetUp(a.link(aName)))
	b.must(b.nl.LinkSetUp(b.link(bName)))
	a.ready(aName)
	b.ready(bName)
}

// ready waits until links can send IPv6: the kernel adds link-local addresses asynchronously.
func (s *space) ready(links ...string) {
	s.t.Helper()
	for _, name := range links {
		within(s.t, name+" of "+s.name+" has a link-local address", func() bool {
			addrs, err := s.nl.AddrList(s.link(name), unix.AF_INET6)
			return err == nil && slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
				return a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0
			})
		})
	}
}

func (s *space) open() *Node {
	s.t.Helper()
	n, err := Open(s.path())
	s.must(err)
	s.t.Cleanup(func() { _ = n.Close() })
	return n
}

// within polls for what the kernel does asynchronously.
func within(t testing.TB, what string, ok func() bool) {
	t.Helper()
	nstest.Within(t, what, ok)
}

// dialTimeout ends a test that hangs.
const dialTimeout = time.Minute

// serveTCP sends the client's address on every connection.
func (s *space) serveTCP(addr string) netip.AddrPort {
	s.t.Helper()
	var l net.Listener
	s.in(func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	s.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
			_ = c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// dialTCP connects from the namespace and returns the source that the server saw.
func (s *space) dialTCP(to string) (netip.Addr, error) { return s.dialFrom("", to, dialTimeout) }

func (s *space) dialFrom(from, to string, timeout time.Duration) (netip.Addr, error) {
	s.t.Helper()
	d := net.Dialer{Timeout: timeout}
	if from != "" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	}
	var seen netip.Addr
	err := rtnl.InNetns(s.handle, func() error {
		c, err := d.Dial("tcp", to)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(timeout))
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		seen, err = netip.ParseAddr(string(buf[:n]))
		return err
	})
	return seen, err
}

// seenAs asserts a connection and the source that the server sees.
func (s *space) seenAs(to, source string) {
	s.t.Helper()
	s.seenFrom("", to, source)
}

// seenFrom is seenAs of a connection from an address.
func (s *space) seenFrom(from, to, source string) {
	s.t.Helper()
	got, err := s.dialFrom(from, to, dialTimeout)
	if err != nil {
		s.t.Errorf("%s (from %q) to %s: %v", s.name, from, to, err)
	} else if got.String() != source {
		s.t.Errorf("%s (from %q) to %s: seen as %s, want %s", s.name, from, to, got, source)
	}
}

// cannotReach asserts that a connection gets no reply.
func (s *space) cannotReach(from, to string) {
	s.t.Helper()
	if got, err := s.dialFrom(from, to, 400*time.Millisecond); err == nil {
		s.t.Errorf("%s (from %q) reached %s, seen as %s", s.name, from, to, got)
	}
}
