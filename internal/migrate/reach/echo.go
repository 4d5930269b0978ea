package reach

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// family is what differs between the ICMP of both IP families.
type family struct {
	network, any   string
	protocol       int
	request, reply icmp.Type
}

var (
	echo4 = family{"ip4:icmp", "0.0.0.0", 1, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply}
	echo6 = family{"ip6:ipv6-icmp", "::", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply}
)

// echo is a raw socket for ICMP echoes.
type echo struct {
	family
	c *icmp.PacketConn
}

func openEcho(f family) (socket, error) {
	c, err := icmp.ListenPacket(f.network, f.any)
	if err != nil {
		return nil, err
	}
	s := &echo{f, c}
	if p := c.IPv4PacketConn(); p != nil {
		err = p.SetControlMessage(ipv4.FlagInterface, true)
	} else {
		err = c.IPv6PacketConn().SetControlMessage(ipv6.FlagInterface, true)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (s *echo) close() error { return s.c.Close() }

func (s *echo) send(t *target) error {
	m := icmp.Message{Type: s.request, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Data: t.nonce}}
	text, err := m.Marshal(nil) // the kernel adds the checksum of IPv6
	if err != nil {
		return err
	}
	_, err = s.c.WriteTo(text, &net.IPAddr{IP: t.addr.AsSlice()})
	return err
}

// receive accepts a reply from the address of a target that has come by its link, with its nonce.
func (s *echo) receive(until time.Time, targets []*target) (*target, error) {
	if err := s.c.SetReadDeadline(until); err != nil {
		return nil, err
	}
	buf := make([]byte, 1500)
	n, link, from, err := s.read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ip, ok := from.(*net.IPAddr)
	if !ok {
		return nil, nil
	}
	addr, _ := netip.AddrFromSlice(ip.IP)
	m, err := icmp.ParseMessage(s.protocol, buf[:n])
	if err != nil || m.Type != s.reply {
		return nil, nil //nolint:nilerr // anybody can send packets, and this one is no reply
	}
	reply, ok := m.Body.(*icmp.Echo)
	if !ok {
		return nil, nil
	}
	i := slices.IndexFunc(targets, func(t *target) bool {
		return t.addr == addr.Unmap() && t.link == link && bytes.Equal(t.nonce, reply.Data)
	})
	if i < 0 {
		return nil, nil
	}
	return targets[i], nil
}

// read reads a packet and the index of the link by which it came.
func (s *echo) read(buf []byte) (n, link int, from net.Addr, err error) {
	if p := s.c.IPv4PacketConn(); p != nil {
		var cm *ipv4.ControlMessage
		if n, cm, from, err = p.ReadFrom(buf); cm != nil {
			link = cm.IfIndex
		}
		return n, link, from, err
	}
	var cm *ipv6.ControlMessage
	if n, cm, from, err = s.c.IPv6PacketConn().ReadFrom(buf); cm != nil {
		link = cm.IfIndex
	}
	return n, link, from, err
}
