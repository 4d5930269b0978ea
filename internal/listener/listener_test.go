package listener

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// must ends the test with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// incoming is a listener whose connections are made by the test, from any address.
type incoming struct {
	conns chan net.Conn
	end   sync.Once
}

func (k *incoming) Accept() (net.Conn, error) {
	c, ok := <-k.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (k *incoming) Close() error {
	k.end.Do(func() { close(k.conns) })
	return nil
}

func (k *incoming) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// from is a connection from an address.
type from struct {
	net.Conn
	addr string
}

func (f from) RemoteAddr() net.Addr { return tcp(f.addr) }
func (f from) LocalAddr() net.Addr  { return tcp("10.1.1.1") }

func tcp(addr string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 9))
}

// server is a limited listener that accepts connections immediately.
type server struct {
	t        *testing.T
	limited  *Limited
	incoming *incoming
	taken    chan *Conn
}

func open(t *testing.T, limits Limits) *server {
	d := &server{t: t, incoming: &incoming{conns: make(chan net.Conn)}, taken: make(chan *Conn, 100)}
	d.limited = Limit(d.incoming, limits)
	go func() {
		for {
			c, err := d.limited.Accept()
			if err != nil {
				return
			}
			d.taken <- c.(*Conn)
		}
	}()
	t.Cleanup(func() { _ = d.limited.Close() })
	return d
}

// client is the far end of a connection, with the near end if it was accepted.
type client struct {
	net.Conn
	near *Conn
}

func (d *server) connect(addr string) *client {
	near, far := net.Pipe()
	d.t.Cleanup(func() { _ = far.Close() })
	d.incoming.conns <- from{near, addr}
	synctest.Wait()
	select {
	case c := <-d.taken:
		return &client{far, c}
	default:
		return &client{far, nil}
	}
}

// reading connects a client of this machine, whose first byte is sent and read.
func (d *server) reading() *client {
	c := d.connect("127.0.0.1")
	go func() { _, _ = c.near.Read(make([]byte, 1)) }()
	_, _ = c.Write([]byte("x"))
	synctest.Wait()
	return c
}

// open reports whether the connection is open. Nothing is ever sent on it.
func (c *client) open() bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return !errors.Is(err, io.EOF)
}

func expect(t *testing.T, what string, got, want bool) {
	t.Helper()
	if got != want {
		t.Errorf("%s: open = %v, want %v", what, got, want)
	}
}

func TestPeerLimitClosesOldestIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 10, PerPeer: 2})
		other := d.connect("10.0.0.9")
		first, second := d.connect("10.0.0.1"), d.connect("10.0.0.1")
		third := d.connect("10.0.0.1")
		expect(t, "oldest connection of the peer", first.open(), false)
		expect(t, "second connection of the peer", second.open(), true)
		expect(t, "newest connection of the peer", third.open(), true)
		expect(t, "connection of another peer", other.open(), true)
		second.near.Working(true)
		third.near.Working(true)
		expect(t, "new connection while all are busy", d.connect("10.0.0.1").open(), false)
		expect(t, "busy connections", second.open() && third.open(), true)
		_ = second.near.Close()
		expect(t, "new connection after one was closed", d.connect("10.0.0.1").open(), true)
	})
}

func TestTotalClosesConnectionOfLargestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 4, PerPeer: 3})
		honest := d.connect("10.0.0.9")
		var greedy []*client
		for range 3 {
			greedy = append(greedy, d.connect("10.0.0.1"))
		}
		newest := d.connect("10.0.0.2")
		expect(t, "older connection of a peer with one", honest.open(), true)
		expect(t, "oldest connection of the peer with most", greedy[0].open(), false)
		expect(t, "new connection", newest.open(), true)
	})
}

func TestNewConnectionWaitsWhileAllAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 2, Opening: time.Hour})
		working := []*client{d.reading(), d.reading()}
		late := d.connect("127.0.0.2")
		if late.near != nil {
			t.Fatal("connection accepted beyond the total")
		}
		expect(t, "waiting connection", late.open(), true)
		_ = working[0].near.Close()
		if c := <-d.taken; c.peer != netip.MustParseAddr("127.0.0.2") {
			t.Errorf("accepted a connection of %s, want the waiting one of 127.0.0.2", c.peer)
		}
	})
}

func TestOpenedConnectionYieldsAfterOpeningTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 2, Opening: time.Second})
		opened := []*client{d.reading(), d.reading()}
		opened[0].near.Working(true)
		late := d.connect("127.0.0.2")
		if late.near != nil {
			t.Fatal("connection accepted before Limits.Opening had passed")
		}
		time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble
		if c := <-d.taken; c.peer != netip.MustParseAddr("127.0.0.2") {
			t.Errorf("accepted a connection of %s, want the waiting one of 127.0.0.2", c.peer)
		}
		expect(t, "busy connection", opened[0].open(), true)
		expect(t, "opened connection without a request", opened[1].open(), false)
	})
}

func TestCloseEndsWaitingConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 1})
		d.connect("127.0.0.1").near.Working(true)
		late := d.connect("127.0.0.2")
		if err := d.limited.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		expect(t, "waiting connection", late.open(), false)
	})
}

func TestAllowedRejectsPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 10, Allowed: netip.Addr.IsLoopback})
		for addr, want := range map[string]bool{
			"127.0.0.1": true, "127.8.0.1": true, "::1": true, "::ffff:127.0.0.1": true,
			"10.0.0.5": false, "169.254.1.1": false, "2001:db8::1": false, "::ffff:10.0.0.5": false,
		} {
			expect(t, addr, d.connect(addr).open(), want)
		}
	})
}

func TestLoopbackHasNoPeerLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 10, PerPeer: 1})
		first := d.connect("127.0.0.1")
		d.connect("127.0.0.1")
		expect(t, "first of two connections", first.open(), true)
	})
}

// Which connection is closed for a new one when the total is reached.
func TestEvictionBetweenPeers(t *testing.T) {
	const total = 4
	hand := func(working bool, age time.Duration, addrs ...string) func(*server) []*client {
		return func(d *server) (all []*client) {
			for _, addr := range addrs {
				c := d.connect(addr)
				c.near.Working(working)
				all = append(all, c)
			}
			time.Sleep(age) //nolint:forbidigo // in a synctest bubble
			return all
		}
	}
	const a, b, c, d, fresh, node = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.9"
	for name, tt := range map[string]struct {
		have   func(*server) []*client
		comes  string
		yields int // index of have; -1: the new one is closed
	}{
		"busy connection of the peer with most":             {hand(true, 0, a, b, b, b), fresh, 1},
		"none of peers with one busy connection each":       {hand(true, 0, a, b, c, d), fresh, -1},
		"none of a peer with only one more busy connection": {hand(true, 0, a, a, b, c), b, -1},
		"overdue connection":                                {hand(true, time.Second, a, b, c, d), fresh, 0},
		"idle connection":                                   {hand(false, 0, a, b, c, d), fresh, 0},
		"own idle connection, all peers having one":         {hand(false, 0, a, b, c, d), a, 0},
		"own overdue connection of a peer with more":        {hand(true, time.Second, a, a, b, c), a, 0},
		"no idle connection for a peer with more": {func(s *server) []*client {
			return append(hand(false, 0, b, c)(s), hand(true, 0, a, a)(s)...)
		}, a, -1},
		"busy connection for a preferred peer":                {hand(true, 0, a, b, c, d), node, 0},
		"peer with most for a preferred peer":                 {hand(true, 0, a, b, c, c), node, 2},
		"no idle connection of a preferred peer":              {hand(false, 0, node, node, node, node), fresh, -1},
		"idle connection of a preferred peer for its own":     {hand(false, 0, node, node, node, node), node, 0},
		"busy connection for this machine by its own address": {hand(true, 0, a, b, c, d), "10.1.1.1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, Limits{Total: total, PerPeer: 3, Work: time.Second, Preferred: func(a netip.Addr) bool { return a.String() == node }})
				have := tt.have(s)
				expect(t, "new connection", s.connect(tt.comes).open(), tt.yields >= 0)
				for i, c := range have {
					expect(t, c.near.peer.String(), c.open(), i != tt.yields)
				}
			})
		})
	}
}

// A connection of a preferred peer waits for room, but no longer than Limits.Work.
func TestPreferredPeersWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 1, Work: time.Second})
		first := d.connect("127.0.0.1")
		first.near.Working(true)
		late := d.connect("127.0.0.1")
		if late.near != nil {
			t.Fatal("connection accepted beyond the total")
		}
		opened := time.Now()
		<-d.taken
		if took := time.Since(opened); took > time.Second {
			t.Errorf("connection accepted after %s, want within 1s", took)
		}
		expect(t, "overdue connection", first.open(), false)
	})
}

// With more connections than the total, those with unread input stay open, even though the
// server has not read it yet, and a silent one is closed.
func TestConnectionWithUnreadInputIsBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	inner, err := net.Listen("unix", path)
	must(t, err)
	l := Limit(inner, Limits{Total: 3, Opening: time.Hour})
	defer l.Close()
	connect := func(say string) (far, near net.Conn) {
		t.Helper()
		far, err := net.Dial("unix", path)
		must(t, err)
		t.Cleanup(func() { _ = far.Close() })
		if _, err := io.WriteString(far, say); err != nil {
			t.Fatal(err)
		}
		near, err = l.Accept()
		must(t, err)
		for _, c := range []net.Conn{far, near} {
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		}
		return far, near
	}
	_, first := connect("a")
	silent, _ := connect("")
	_, third := connect("c")
	_, fourth := connect("d")
	for name, near := range map[string]net.Conn{"first": first, "third": third, "fourth": fourth} {
		if n, err := near.Read(make([]byte, 1)); n != 1 {
			t.Errorf("read of the %s connection, which has input: %v", name, err)
		}
	}
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read on the silent connection: %v, want EOF", err)
	}
}
