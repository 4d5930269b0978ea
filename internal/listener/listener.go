// Package listener bounds what those who connect can cost a program. Each
// connection costs a descriptor and memory, and whoever reaches an address can
// open as many as it likes and say nothing.
package listener

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits are numbers of connections at a time.
type Limits struct {
	Total int
	// PerPeer is of one IP address, so that one peer cannot take what all
	// others need. Programs of this machine, which come from a loopback
	// address, are not told apart by it and have no such limit. 0: none has.
	PerPeer int
	// LocalOnly refuses all who do not come from a loopback address. A packet
	// to 127.0.0.1 can come from elsewhere: from a pod, where the kernel's
	// route_localnet is on (ip-sysctl).
	LocalOnly bool
	// Opening is how long a connection counts as at work from its first byte on,
	// also one that the server has not read yet: a server that has much to do
	// comes late to call Working. Until the first byte it is firstByte. 0: not at
	// all.
	Opening time.Duration
}

// firstByte is the time between connecting and writing, on a busy machine.
const firstByte = 50 * time.Millisecond

// Limited is a listener that keeps limits. Where there is no room for a new
// connection, the oldest of those that are not at work gives way: one that a
// peer opened and left. Of a peer's own limit it is one of that peer's, of the
// total one of the peer that has most. A peer all of whose connections
// are at work gets no more; when all of the total are, new ones wait, in the
// kernel's queue, until one ends.
type Limited struct {
	net.Listener
	limits Limits

	mu     sync.Mutex // guards below; nothing blocks under it but room
	room   sync.Cond  // a connection ended or stopped working, or the listener did
	conns  []*Conn    // by age
	closed bool
}

// Conn is a connection of a Limited listener.
type Conn struct {
	net.Conn
	of   *Limited
	peer netip.Addr // invalid for a unix socket's

	first   sync.Once   // byte read
	working bool        // guarded by of.mu, as is
	opening bool        // as Limits.Opening has it
	opened  *time.Timer // ends opening
}

// Limit returns l with limits.
func Limit(l net.Listener, limits Limits) *Limited {
	out := &Limited{Listener: l, limits: limits}
	out.room.L = &out.mu
	return out
}

// Accept implements net.Listener.
func (l *Limited) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: raw, of: l, peer: peerOf(raw)}
		if l.limits.LocalOnly && !c.peer.IsLoopback() {
			_ = raw.Close()
			continue
		}
		yields, ok := l.admit(c)
		if yields != nil {
			_ = yields.Conn.Close()
		}
		if ok {
			return c, nil
		}
		_ = raw.Close()
	}
}

// admit makes room for c and takes it up, or tells that there is none for it.
// The connection that yields is to be closed.
func (l *Limited) admit(c *Conn) (yields *Conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if most := l.limits.PerPeer; most > 0 && c.peer.IsValid() && !c.peer.IsLoopback() && l.count()[c.peer] >= most {
		if yields = l.oldestIdle(func(o *Conn) bool { return o.peer == c.peer }); yields == nil {
			return nil, false
		}
		l.remove(yields)
	}
	for len(l.conns) >= l.limits.Total && !l.closed {
		if yields = l.oldestIdleOfMost(); yields != nil {
			l.remove(yields)
			break
		}
		l.room.Wait()
	}
	if l.closed {
		return yields, false
	}
	l.conns = append(l.conns, c)
	if l.limits.Opening > 0 {
		c.opening = true
		c.opened = time.AfterFunc(firstByte, func() { c.set(&c.opening, false) })
	}
	return yields, true
}

func (l *Limited) count() map[netip.Addr]int {
	n := map[netip.Addr]int{}
	for _, c := range l.conns {
		n[c.peer]++
	}
	return n
}

func (l *Limited) oldestIdle(of func(*Conn) bool) *Conn {
	if i := slices.IndexFunc(l.conns, func(c *Conn) bool { return of(c) && c.idle() }); i >= 0 {
		return l.conns[i]
	}
	return nil
}

// oldestIdleOfMost is the oldest idle connection of the peer that has most
// connections, of those that have idle ones.
func (l *Limited) oldestIdleOfMost() (found *Conn) {
	n := l.count()
	for _, c := range l.conns {
		if (found == nil || n[c.peer] > n[found.peer]) && c.idle() {
			found = c
		}
	}
	return found
}

// remove forgets a connection, if it is known. l.mu is held.
func (l *Limited) remove(c *Conn) {
	if i := slices.Index(l.conns, c); i >= 0 {
		l.conns = slices.Delete(l.conns, i, i+1)
		l.room.Signal()
	}
}

// Close implements net.Listener.
func (l *Limited) Close() error {
	l.mu.Lock()
	l.closed = true
	l.room.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// Working says whether the connection is at work: a request was read and is
// being answered. Until then it gives way to newer ones.
func (c *Conn) Working(yes bool) { c.set(&c.working, yes) }

func (c *Conn) set(what *bool, yes bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	*what = yes
	if !yes {
		c.of.room.Signal()
	}
}

// idle tells whether the connection may give way. of.mu is held. A server that
// has much to do reads late: who asked is not taken for one who is silent.
func (c *Conn) idle() bool {
	return !c.working && !c.opening && !(c.of.limits.Opening > 0 && hasInput(c.Conn))
}

// hasInput tells whether there is a byte to be read. It does not wait, and takes
// nothing away.
func hasInput(c net.Conn) (yes bool) {
	of, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		yes = err == nil && n > 0
	})
	return err == nil && yes
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.of.limits.Opening > 0 {
		c.first.Do(func() {
			c.set(&c.opening, true)
			c.opened.Reset(c.of.limits.Opening)
		})
	}
	return n, err
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func peerOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
