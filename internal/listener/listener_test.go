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

// incoming is a listener whose connections a test makes, from any address.
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

// server is a limited listener whose connections are taken up at once.
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

// client is the far end of a connection, with the near end if it was taken up.
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

// reading connects a client of this machine and sends its first byte, which is read.
func (d *server) reading() *client {
	c := d.connect("127.0.0.1")
	go func() { _, _ = c.near.Read(make([]byte, 1)) }()
	_, _ = c.Write([]byte("x"))
	synctest.Wait()
	return c
}

// open reports whether the connection still is: nothing is ever sent on it.
func (c *client) open() bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return !errors.Is(err, io.EOF)
}

func expect(t *testing.T, what string, got, want bool) {
	t.Helper()
	if got != want {
		t.Errorf("%s: open %v, want %v", what, got, want)
	}
}

func TestAPeerPastItsLimitLosesItsOldestIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 10, PerPeer: 2})
		other := d.connect("10.0.0.9")
		first, second := d.connect("10.0.0.1"), d.connect("10.0.0.1")
		third := d.connect("10.0.0.1")
		expect(t, "the peer's oldest", first.open(), false)
		expect(t, "its second", second.open(), true)
		expect(t, "its newest", third.open(), true)
		expect(t, "another peer's", other.open(), true)
		second.near.Working(true)
		third.near.Working(true)
		expect(t, "one more when all are at work", d.connect("10.0.0.1").open(), false)
		expect(t, "what is at work", second.open() && third.open(), true)
		_ = second.near.Close()
		expect(t, "one more when one ended", d.connect("10.0.0.1").open(), true)
	})
}

func TestTheTotalTakesFromThePeerThatHasMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 4, PerPeer: 3})
		honest := d.connect("10.0.0.9")
		var greedy []*client
		for range 3 {
			greedy = append(greedy, d.connect("10.0.0.1"))
		}
		newest := d.connect("10.0.0.2")
		expect(t, "the only one of its peer, which is older", honest.open(), true)
		expect(t, "the oldest of the peer with most", greedy[0].open(), false)
		expect(t, "the new one", newest.open(), true)
	})
}

func TestWhenAllAreAtWorkNewOnesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 2, Opening: time.Hour})
		working := []*client{d.reading(), d.reading()}
		late := d.connect("127.0.0.2")
		if late.near != nil {
			t.Fatal("taken up above the total")
		}
		expect(t, "one that waits", late.open(), true)
		_ = working[0].near.Close()
		if c := <-d.taken; c.peer != netip.MustParseAddr("127.0.0.2") {
			t.Errorf("%s is taken up", c.peer)
		}
	})
}

func TestWhatIsOnlyOpenedGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 2, Opening: time.Second})
		opened := []*client{d.reading(), d.reading()}
		opened[0].near.Working(true)
		late := d.connect("127.0.0.2")
		if late.near != nil {
			t.Fatal("taken up before the time for opening was over")
		}
		time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble
		if c := <-d.taken; c.peer != netip.MustParseAddr("127.0.0.2") {
			t.Errorf("%s is taken up", c.peer)
		}
		expect(t, "what is at work", opened[0].open(), true)
		expect(t, "what was only opened", opened[1].open(), false)
	})
}

func TestAListenerEndsWhileOneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 1})
		d.connect("127.0.0.1").near.Working(true)
		late := d.connect("127.0.0.2")
		if err := d.limited.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		expect(t, "one that waited", late.open(), false)
	})
}

func TestOnlyLoopbackAddressesAreLocal(t *testing.T) {
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

func TestLoopbackHasNoLimitByPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 10, PerPeer: 1})
		first := d.connect("127.0.0.1")
		d.connect("127.0.0.1")
		expect(t, "the first of two", first.open(), true)
	})
}

// How places change hands between peers, when all of them are taken.
func TestPlacesOfOthers(t *testing.T) {
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
		"of the peer with most, though all work":         {hand(true, 0, a, b, b, b), fresh, 1},
		"of no peer that has no more":                    {hand(true, 0, a, b, c, d), fresh, -1},
		"nor of one that would have no more":             {hand(true, 0, a, a, b, c), b, -1},
		"of one that has worked for long":                {hand(true, time.Second, a, b, c, d), fresh, 0},
		"of one that is idle":                            {hand(false, 0, a, b, c, d), fresh, 0},
		"not of an idle one for a peer that has as many": {hand(false, 0, a, b, c, d), a, 0}, // its own
		"not for a peer that has more":                   {hand(true, time.Second, a, a, b, c), a, 0},
		"not of idle ones for a peer that has more": {func(s *server) []*client {
			return append(hand(false, 0, b, c)(s), hand(true, 0, a, a)(s)...)
		}, a, -1},
		"of anybody for the preferred":                      {hand(true, 0, a, b, c, d), node, 0},
		"of the peer with most for the preferred":           {hand(true, 0, a, b, c, c), node, 2},
		"of none but the preferred where these are all":     {hand(false, 0, node, node, node, node), fresh, -1},
		"of an idle one of the preferred for the preferred": {hand(false, 0, node, node, node, node), node, 0},
		"for this machine, by its own address":              {hand(true, 0, a, b, c, d), "10.1.1.1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, Limits{Total: total, PerPeer: 3, Work: time.Second, Preferred: func(a netip.Addr) bool { return a.String() == node }})
				have := tt.have(s)
				expect(t, "the new one", s.connect(tt.comes).open(), tt.yields >= 0)
				for i, c := range have {
					expect(t, c.near.peer.String(), c.open(), i != tt.yields)
				}
			})
		})
	}
}

// Preferred peers wait for each other, for no longer than Work.
func TestThePreferredWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Limits{Total: 1, Work: time.Second})
		first := d.connect("127.0.0.1")
		first.near.Working(true)
		late := d.connect("127.0.0.1")
		if late.near != nil {
			t.Fatal("taken up above the total")
		}
		opened := time.Now()
		<-d.taken
		if took := time.Since(opened); took > time.Second {
			t.Errorf("taken up after %s", took)
		}
		expect(t, "what had worked for long", first.open(), false)
	})
}

// More calls at once than there is room for: none of those that asked gives way,
// though the server has read nothing of them yet. A silent one does.
func TestWhoAskedDoesNotGiveWayUnread(t *testing.T) {
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
			t.Errorf("the %s, which asked: %v", name, err)
		}
	}
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the silent one: %v, want its end", err)
	}
}
