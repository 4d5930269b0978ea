package policytable

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/policy"
)

// Refused counts rejected packets. There are more packets than connections, because TCP and other protocols retransmit.
type Refused struct {
	Direction policy.Direction
	Policies  []policy.Ref // the policy with the rule that denies them, or those of which none accepts them; empty for the total of the direction
	Packets   uint64
}

// Refused returns the numbers of packets that the table has rejected since its creation, in total and by policies. It omits
// policies that no pod has any more.
func (t *Table) Refused() ([]Refused, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.have == nil {
		return nil, nil
	}
	conn, err := t.open()
	if err != nil {
		return nil, err
	}
	objects, err := conn.GetObjects(&nftables.Table{Family: nftables.TableFamilyINet, Name: Name})
	if err != nil {
		return nil, fmt.Errorf("nftables: read counters of table %s: %w", Name, err)
	}
	var list []Refused
	for _, o := range objects {
		if c, ok := o.(*nftables.CounterObj); ok {
			r, known := t.have.counters[c.Name]
			if !known {
				r, known = t.have.lists.counters[c.Name]
			}
			if known {
				r.Packets = c.Packets
				list = append(list, r)
			}
		}
	}
	return list, nil
}

// Denied is a rejected packet: the first one of a connection, or one of a connection that a policy ended.
type Denied struct {
	Direction policy.Direction
	policy.Flow
	SourcePort uint16 // 0 for protocols without ports
	Tunnelled  bool   // in an egress tunnel; Flow is that of the inner packet
}

// LogGroup is the group of the kernel's packet log (nfnetlink_log) for rejected packets.
const LogGroup = 190

// logRate is the number of rejected packets per second that the kernel logs for each way. logLength is the logged length of each in
// bytes, which includes headers, inner headers of tunnels, and extension headers.
const (
	logRate   = 100
	logLength = 256
)

// logPrefix is the beginning of the log prefix. The way follows.
const logPrefix = Name + " "

func prefixOf(w way) string { return logPrefix + w.name() }

// Log receives rejected packets from the kernel.
type Log struct {
	conn   *netlink.Conn
	closed atomic.Bool // because conn reports this with different errors
}

// OpenLog enables logging of rejected packets from the next Apply on. Only one process can do so at a time. It fails if the kernel
// lacks nfnetlink_log.
func (t *Table) OpenLog() (*Log, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(t.ns)})
	if err != nil {
		return nil, fmt.Errorf("open the log of rejected packets: %w", err)
	}
	_ = conn.SetOption(netlink.NoENOBUFS, true) // lost packets are counted
	for _, attribute := range []netlink.Attribute{
		{Type: cfgCommand, Data: []byte{commandBind}},
		{Type: cfgMode, Data: append(binary.BigEndian.AppendUint32(nil, logLength), copyPacket, 0)},
	} {
		data, err := netlink.MarshalAttributes([]netlink.Attribute{attribute})
		if err == nil {
			_, err = conn.Execute(netlink.Message{
				Header: netlink.Header{Type: logConfig, Flags: netlink.Request | netlink.Acknowledge},
				Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, LogGroup >> 8, LogGroup & 0xff}, data...),
			})
		}
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("open the log of rejected packets, group %d: %w", LogGroup, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base.log = true
	return &Log{conn: conn}, nil
}

// Messages and attributes of nfnetlink_log (linux/netfilter/nfnetlink_log.h).
const (
	logPacket   = unix.NFNL_SUBSYS_ULOG << 8   // NFULNL_MSG_PACKET
	logConfig   = unix.NFNL_SUBSYS_ULOG<<8 | 1 // NFULNL_MSG_CONFIG
	cfgCommand  = 1                            // NFULA_CFG_CMD
	cfgMode     = 2                            // NFULA_CFG_MODE
	commandBind = 1                            // NFULNL_CFG_CMD_BIND
	copyPacket  = 2                            // NFULNL_COPY_PACKET
	attrPayload = 9                            // NFULA_PAYLOAD
	attrPrefix  = 10                           // NFULA_PREFIX
)

// Close ends Receive.
func (l *Log) Close() error {
	l.closed.Store(true)
	return l.conn.Close()
}

// Receive waits for rejected packets. It returns os.ErrClosed once the log is closed.
func (l *Log) Receive() ([]Denied, error) {
	messages, err := l.conn.Receive()
	if err != nil && l.closed.Load() {
		return nil, os.ErrClosed
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of rejected packets: %w", err)
	}
	var list []Denied
	for _, m := range messages {
		if m.Header.Type != logPacket || len(m.Data) < 4 {
			continue
		}
		if d, ok := parse(m.Data[4:]); ok {
			list = append(list, d)
		}
	}
	return list, nil
}

// parse reads a logged packet.
func parse(data []byte) (d Denied, ok bool) {
	attributes, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return d, false
	}
	var prefix string
	var packet []byte
	for _, a := range attributes {
		switch a.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER) {
		case attrPrefix:
			prefix = strings.TrimRight(string(a.Data), "\x00")
		case attrPayload:
			packet = a.Data
		}
	}
	for _, w := range ways {
		if prefix == prefixOf(w) {
			d.Direction, d.Tunnelled = w.Direction, w.tunnelled
			return d, d.read(packet)
		}
	}
	return d, false
}

// read reads the headers of a packet, which may be truncated.
func (d *Denied) read(packet []byte) bool {
	rest, ok := d.readIP(packet)
	if ok && d.Tunnelled {
		if len(rest) < udpHeader {
			return false
		}
		rest, ok = d.readIP(rest[udpHeader:])
	}
	if !ok {
		return false
	}
	switch d.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if len(rest) >= 4 {
			d.SourcePort, d.Port = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
		}
	}
	return true
}

const udpHeader = 8 // bytes (RFC 768)

// readIP reads an IP header, and returns what follows it and its extension headers; nothing if the packet is a fragment
// that is not the first.
func (d *Denied) readIP(b []byte) (rest []byte, ok bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4: // RFC 791, section 3.1
		d.Source, d.Destination, d.Protocol = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), b[9]
		n := int(b[0]&0xf) * 4
		if n < 20 {
			return nil, false
		}
		if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 || n > len(b) {
			return nil, true
		}
		return b[n:], true
	case len(b) >= 40 && b[0]>>4 == 6: // RFC 8200, section 3
		d.Source, d.Destination, d.Protocol = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), b[6]
		return d.skipExtensions(b[40:]), true
	}
	return nil, false
}

// skipExtensions skips extension headers (RFC 8200, section 4) and returns what follows.
func (d *Denied) skipExtensions(b []byte) []byte {
	for len(b) >= 8 {
		n := (int(b[1]) + 1) * 8
		switch d.Protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
		case unix.IPPROTO_FRAGMENT:
			if n = 8; binary.BigEndian.Uint16(b[2:])&^7 != 0 {
				d.Protocol = b[0]
				return nil
			}
		default:
			return b
		}
		if d.Protocol = b[0]; n > len(b) {
			return nil
		}
		b = b[n:]
	}
	return nil
}
