// Package listener bounds the cost of clients. Each connection needs a descriptor and memory, and
// anyone who reaches an address can open any number of them and send nothing.
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

// Limits bound the connections of a listener.
type Limits struct {
	Total int
	// PerPeer bounds the connections of one IP address, except for preferred peers. 0: no bound.
	PerPeer int
	// Allowed reports whether connections of a peer are accepted; nil: of all. It is called for each
	// connection and must not block.
	Allowed func(netip.Addr) bool
	// Preferred reports whether a peer has priority; nil: only this machine's programs, which always
	// have priority. It must not block.
	Preferred func(netip.Addr) bool
	// Work is how long a connection may take for a request, and again for the reply, before it is
	// closed in preference to later ones. 0: a reply may take any time.
	Work time.Duration
	// Opening is how long a connection counts as busy from its first byte on, since a busy server
	// calls Working late. Before the first byte it is firstByte. 0: not at all.
	Opening time.Duration
}

// firstByte is the time between connecting and writing on a busy machine.
const firstByte = 50 * time.Millisecond

// Limited is a listener with Limits. To make room for a new connection it closes another one:
//
//   - an idle connection before a busy one; idle means without a complete request. Connections
//     that have been idle or busy for longer than Limits.Work come first;
//   - of the peer with most connections, its oldest;
//   - at the limit of one peer, a connection of that peer.
//
// Preferred peers are this machine and those of Limits.Preferred. Their connections are never
// closed for other peers, whose connections are closed for theirs. A peer that is not preferred
// replaces only connections of peers that have more connections than itself, so any number of
// connections from a few addresses leaves every other address its share. Where no connection may
// be closed, the new one is closed, or waits in the kernel's queue if its peer is preferred: a
// peer that fills the queue must not block others.
type Limited struct {
	net.Listener
	limits Limits

	mu     sync.Mutex // guards what follows; only room blocks under it
	room   sync.Cond  // a connection ended or became idle, or the listener closed
	conns  []*Conn    // by age
	closed bool
}

// Conn is a connection of a Limited listener.
type Conn struct {
	net.Conn
	of        *Limited
	peer      netip.Addr // invalid for a unix socket's
	preferred bool

	first   sync.Once   // byte read
	working bool        // guarded by of.mu, like what follows
	since   time.Time   // it was opened, or became busy or idle
	opening bool        // see Limits.Opening
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
		c := &Conn{Conn: raw, of: l, peer: AddrOf(raw.RemoteAddr())}
		if l.limits.Allowed != nil && !l.limits.Allowed(c.peer) {
			_ = raw.Close()
			continue
		}
		c.preferred = l.prefers(c)
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

// prefers reports whether a connection has priority. A connection of this machine to one of its own
// addresses comes from the same address.
func (l *Limited) prefers(c *Conn) bool {
	return !c.peer.IsValid() || c.peer.IsLoopback() || c.peer == AddrOf(c.LocalAddr()) ||
		l.limits.Preferred != nil && l.limits.Preferred(c.peer)
}

// admit makes room for c and registers it, or reports false. The caller closes the connection that
// yields.
func (l *Limited) admit(c *Conn) (yields *Conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if most := l.limits.PerPeer; most > 0 && !c.preferred && l.count()[c.peer] >= most {
		if yields = l.oldestOf(c.peer); yields == nil {
			return nil, false
		}
		l.remove(yields)
	}
	for len(l.conns) >= l.limits.Total && !l.closed {
		if yields = l.leastOf(c); yields != nil {
			l.remove(yields)
			break
		}
		if !c.preferred {
			return nil, false
		}
		l.wait()
	}
	if l.closed {
		return yields, false
	}
	l.conns, c.since = append(l.conns, c), time.Now()
	if l.limits.Opening > 0 {
		c.opening = true
		c.opened = time.AfterFunc(firstByte, func() { c.set(&c.opening, false) })
	}
	return yields, true
}

// wait waits for room, or until one more connection has worked for long enough.
func (l *Limited) wait() {
	if l.limits.Work > 0 {
		defer time.AfterFunc(l.limits.Work, func() {
			l.mu.Lock() // which whoever waits holds until it waits
			defer l.mu.Unlock()
			l.room.Broadcast()
		}).Stop()
	}
	l.room.Wait()
}

func (l *Limited) count() map[netip.Addr]int {
	n := map[netip.Addr]int{}
	for _, c := range l.conns {
		n[c.peer]++
	}
	return n
}

// The order in which connections are closed for others.
const (
	stale   = iota // idle for long
	overdue        // at work for long
	idle
	working
	preferred // is added to the others
)

// rank is a connection's place in that order. l.mu is held.
func (c *Conn) rank() (rank int) {
	late := c.of.limits.Work > 0 && time.Since(c.since) >= c.of.limits.Work
	switch isIdle := c.idle(); {
	case isIdle && late:
		rank = stale
	case isIdle:
		rank = idle
	case late:
		rank = overdue
	default:
		rank = working
	}
	if c.preferred {
		rank += preferred
	}
	return rank
}

// oldestOf is the connection of a peer that is closed for another of its own.
func (l *Limited) oldestOf(peer netip.Addr) (found *Conn) {
	best := working
	for _, c := range l.conns {
		if c.peer == peer && c.rank() < best {
			found, best = c, c.rank()
		}
	}
	return found
}

// leastOf is the connection that is closed for c; nil: none may be.
func (l *Limited) leastOf(c *Conn) (found *Conn) {
	n, best := l.count(), 0
	for _, o := range l.conns {
		rank := o.rank()
		if !l.gives(o, c, rank, n) {
			continue
		}
		if found == nil || rank < best || rank == best && n[o.peer] > n[found.peer] {
			found, best = o, rank
		}
	}
	return found
}

// gives reports whether a connection of a rank may be closed for c, as peers have n.
func (l *Limited) gives(o, c *Conn, rank int, n map[netip.Addr]int) bool {
	switch {
	case rank == preferred+working:
		return false
	case c.preferred:
		return true
	case o.preferred:
		return false
	case o.peer == c.peer:
		return rank < working
	case rank == working:
		return n[o.peer] > n[c.peer]+1
	}
	return n[o.peer] > n[c.peer]
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

// Working says whether the connection is at work: a request was read completely and is
// being answered. Until then it gives way to newer ones, and after Limits.Work.
func (c *Conn) Working(yes bool) {
	c.of.mu.Lock()
	c.since = time.Now()
	c.of.mu.Unlock()
	c.set(&c.working, yes)
}

// Preferred reports whether places are kept for the connection's peer.
func (c *Conn) Preferred() bool { return c.preferred }

func (c *Conn) set(what *bool, yes bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	*what = yes
	if !yes {
		c.of.room.Signal()
	}
}

// idle reports whether the connection may give way. of.mu is held. A server that
// has much to do reads late: who asked is not taken for one who is silent.
func (c *Conn) idle() bool {
	return !c.working && !c.opening && !(c.of.limits.Opening > 0 && hasInput(c.Conn))
}

// hasInput reports whether there is a byte to be read. It does not wait, and takes
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

// AddrOf returns the IP address of a TCP connection's end; the zero Addr for any other.
func AddrOf(a net.Addr) netip.Addr {
	if a, ok := a.(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
