package echo

import (
	"net"
	"net/netip"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// listenUDP opens a dual-stack socket that reports the destination address of each datagram, so that the reply has it
// as its source.
func listenUDP() (*net.UDPConn, error) {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv6zero, Port: Port})
	if err != nil {
		return nil, err
	}
	if err := ipv6.NewPacketConn(c).SetControlMessage(ipv6.FlagDst, true); err != nil {
		c.Close()
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		c.Close()
		return nil, err
	}
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}); err != nil {
		optErr = err
	}
	if optErr != nil {
		c.Close()
		return nil, optErr
	}
	return c, nil
}

// serveUDP replies until the socket is closed.
func serveUDP(c *net.UDPConn) {
	buf, oob := make([]byte, 64<<10), make([]byte, 256)
	for {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return
		}
		to, control := destination(oob[:oobn])
		r := Reply{You: from.Addr().Unmap(), To: to, Text: string(buf[:n])}
		// A full socket buffer or an unreachable peer may lose the reply, as usual with UDP.
		_, _, _ = c.WriteMsgUDPAddrPort([]byte(r.String()), control, from)
	}
}

// destination reads the destination address of a datagram from its control messages, and returns control messages that
// make it the source of the reply.
func destination(oob []byte) (netip.Addr, []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, nil
	}
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			// struct in_pktinfo: interface, local address, destination (ip(7)).
			a := netip.AddrFrom4([4]byte(m.Data[8:12]))
			return a, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			a := netip.AddrFrom16([16]byte(m.Data[:16])).Unmap()
			if a.Is4() {
				return a, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
			}
			return a, unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
		}
	}
	return netip.Addr{}, nil
}
