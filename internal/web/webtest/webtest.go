// Package webtest attacks a server of package web as pods could, in virtual time.
package webtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/berthnet/berth/internal/web"
)

// Listener is one whose connections a test makes, from any address.
type Listener struct {
	at    netip.AddrPort
	conns chan net.Conn
	ended chan struct{}
	end   sync.Once
}

// Listen listens at an address.
func Listen(at netip.Addr) *Listener {
	return &Listener{at: netip.AddrPortFrom(at, 1), conns: make(chan net.Conn), ended: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.end.Do(func() { close(l.ended) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// far is the end of a connection that is not the server's.
type far struct {
	net.Conn
	ended chan struct{} // closed when the server closes its end
}

// near is the server's.
type near struct {
	net.Conn
	from, to netip.AddrPort
	end      func()
}

func (c near) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.from) }
func (c near) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.to) }
func (c near) Close() error         { c.end(); return c.Conn.Close() }

// Dial connects from an address.
func (l *Listener) Dial(ctx context.Context, from netip.Addr) (net.Conn, error) {
	return l.dial(ctx, from)
}

func (l *Listener) dial(ctx context.Context, from netip.Addr) (*far, error) {
	ours, theirs := net.Pipe()
	c := &far{ours, make(chan struct{})}
	select {
	case l.conns <- near{theirs, netip.AddrPortFrom(from, 2), l.at, sync.OnceFunc(func() { close(c.ended) })}:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Server is one that is attacked.
type Server struct {
	At netip.Addr
	// Serve serves until ctx ends.
	Serve func(ctx context.Context, l net.Listener) error
	TLS   bool
	// Slow is the path whose answer takes longest, or is largest.
	Slow string
	// Path is of requests that must be answered with 200: posts of Body, if it is set.
	Path, Body string
	// Honest are addresses from which requests come meanwhile.
	Honest []netip.Addr
}

// attack is what one connection does until it fails.
type attack struct {
	do    func(ctx context.Context, c net.Conn, s Server) error
	both  bool // is for servers with TLS too
	tls   bool // is for these only
	raw   bool // without a handshake
	http2 bool
}

const plain = " HTTP/1.1\r\nHost: x\r\n"

var attacks = map[string]attack{
	"silence":                        say(""),
	"half a header":                  say("GET SLOW" + plain),
	"a GET that announces a body":    say("GET SLOW" + plain + "Content-Length: 1000\r\n\r\n"),
	"a GET that announces a large":   say("GET SLOW" + plain + "Content-Length: 1000000000\r\n\r\n"),
	"a GET with chunks":              say("GET SLOW" + plain + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"),
	"a GET that expects to continue": say("GET SLOW" + plain + "Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n"),
	"a POST without an end":          also(say("POST SLOW" + plain + "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")),
	"a POST to nowhere":              say("POST /x" + plain + "Transfer-Encoding: chunked\r\n\r\n5\r\n"),
	"an answer that is not read":     also(say("GET SLOW" + plain + "\r\n")),
	"a header that drips":            drip("GET SLOW"+plain, "X: x\r\n"),
	"a body that drips":              drip("POST SLOW"+plain+"Content-Length: 1000000\r\n\r\n", "{"),
	"requests without a pause":       also(attack{do: flood}),
	"no handshake":                   {do: say("").do, tls: true, raw: true},
	"half a handshake":               {do: say("\x16\x03\x01\x02\x00\x01").do, tls: true, raw: true},
	"nothing after the preface":      frames(func(context.Context, *http2.Framer, streams) error { return nil }),
	"streams without an end": frames(func(ctx context.Context, f *http2.Framer, begin streams) error {
		for id := uint32(1); id < 99; id += 2 {
			if err := begin(id, false); err != nil {
				return err
			}
		}
		return every(ctx, 100*time.Millisecond, func(uint32) error { return f.WriteData(1, false, []byte("{")) })
	}),
	"streams that are reset": frames(func(ctx context.Context, f *http2.Framer, begin streams) error {
		return every(ctx, 50*time.Millisecond, func(i uint32) error {
			return errors.Join(begin(2*i+1, false), f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		})
	}),
	"settings": frames(func(ctx context.Context, f *http2.Framer, _ streams) error {
		return every(ctx, 50*time.Millisecond, func(uint32) error { return f.WriteSettings() })
	}),
	"a header in pieces": frames(func(ctx context.Context, f *http2.Framer, _ streams) error {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}); err != nil {
			return err
		}
		return every(ctx, 100*time.Millisecond, func(uint32) error { return f.WriteContinuation(1, false, nil) })
	}),
	"answers without a window": frames(func(_ context.Context, f *http2.Framer, begin streams) error {
		err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for id := uint32(1); err == nil && id < 99; id += 2 {
			err = begin(id, true)
		}
		return err
	}),
}

// also makes an attack one on servers with TLS too, which costs CPU time.
func also(a attack) attack {
	a.both = true
	return a
}

// say writes a text.
func say(text string) attack {
	return attack{do: func(_ context.Context, c net.Conn, s Server) error {
		_, err := io.WriteString(c, strings.ReplaceAll(text, "SLOW", s.Slow))
		return err
	}}
}

// drip writes a text, and then another again and again.
func drip(text, more string) attack {
	return attack{do: func(ctx context.Context, c net.Conn, s Server) error {
		if err := say(text).do(ctx, c, s); err != nil {
			return err
		}
		return every(ctx, 100*time.Millisecond, func(uint32) error {
			_, err := io.WriteString(c, more)
			return err
		})
	}}
}

// flood reads each answer and asks again.
func flood(ctx context.Context, c net.Conn, s Server) error {
	in := bufio.NewReader(c)
	return every(ctx, 50*time.Millisecond, func(uint32) error {
		if err := say("GET SLOW"+plain+"\r\n").do(ctx, c, s); err != nil {
			return err
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return errors.Join(err, answer.Body.Close())
	})
}

// every calls f with the number of calls before, until f fails or ctx ends.
func every(ctx context.Context, pause time.Duration, f func(uint32) error) error {
	for i := uint32(0); ; i++ {
		if err := f(i); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// streams begins one with a POST to Server.Slow; ended, with an empty body.
type streams func(id uint32, ended bool) error

// frames speaks HTTP/2.
func frames(with func(ctx context.Context, f *http2.Framer, begin streams) error) attack {
	do := func(ctx context.Context, c net.Conn, s Server) error {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			return err
		}
		f := http2.NewFramer(c, nil)
		if err := f.WriteSettings(); err != nil {
			return err
		}
		var block bytes.Buffer
		headers := hpack.NewEncoder(&block)
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", s.Slow}, {":authority", "x"}, {"content-type", "application/json"}} {
			if err := headers.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
				return err
			}
		}
		return with(ctx, f, func(id uint32, ended bool) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: ended})
		})
	}
	return attack{do: do, tls: true, http2: true}
}

// peers are how many addresses attack, and with how many connections each: as many as there are
// places, and more.
var peers = []struct{ addresses, connections int }{{17, web.Connections/17 + 1}, {web.Connections + 8, 1}}

const (
	begun    = 1500 * time.Millisecond // before requests come
	requests = 6
	pause    = 200 * time.Millisecond // between them
	within   = time.Second            // is each answered
	again    = time.Second            // an attacker comes whose connection was closed
)

// Try makes each attack on a new server, from a few addresses and from more than it has places for.
// Honest clients are answered in time.
func Try(t *testing.T, fresh func(t *testing.T) Server) {
	t.Helper()
	for _, p := range peers {
		for name, a := range attacks {
			t.Run(fmt.Sprintf("%s from %d addresses", name, p.addresses), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := fresh(t)
					if a.both || s.TLS == a.tls {
						s.bear(t, a, p.addresses, p.connections)
					}
				})
			})
		}
	}
}

// bear fails the test if an honest client gets no answer during an attack.
func (s Server) bear(t *testing.T, a attack, addresses, connections int) {
	ctx, cancel := context.WithCancel(t.Context())
	l := Listen(s.At)
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	from := netip.MustParseAddr("10.66.0.0")
	for range addresses {
		from = from.Next()
		for range connections {
			at := from
			all.Go(func() { s.attack(ctx, l, at, a) })
		}
	}
	time.Sleep(begun) //nolint:forbidigo // in a synctest bubble
	for _, from := range s.Honest {
		client := &http.Client{Timeout: within, Transport: &http.Transport{
			DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: insecure("h2", "http/1.1"),
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx, from) },
		}}
		for range requests {
			if err := s.sound(ctx, client); err != nil {
				t.Errorf("%s: %v", from, err)
			}
			time.Sleep(pause) //nolint:forbidigo // in a synctest bubble
		}
		client.CloseIdleConnections()
	}
	cancel()
	all.Wait()
	time.Sleep(time.Minute) //nolint:forbidigo // connections that are closed linger
}

func (s Server) sound(ctx context.Context, client *http.Client) error {
	method, url := http.MethodGet, "http://x"+s.Path
	if s.Body != "" {
		method, url = http.MethodPost, "https://x"+s.Path
	}
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(s.Body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return err
}

func insecure(protocols ...string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: protocols, CurvePreferences: []tls.CurveID{tls.X25519}} //nolint:gosec // the server is the test's
}

// attack makes one connection after the other until ctx ends.
func (s Server) attack(ctx context.Context, l *Listener, from netip.Addr, a attack) {
	for {
		c, err := l.dial(ctx, from)
		if err != nil {
			return
		}
		one, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(one, func() { _ = c.Close() })
		go func() {
			defer cancel()
			select {
			case <-c.ended:
			case <-one.Done():
			}
		}()
		var on net.Conn = c
		if s.TLS && !a.raw {
			t := tls.Client(c, insecure())
			if a.http2 {
				t = tls.Client(c, insecure("h2"))
			}
			err, on = t.HandshakeContext(one), t
		}
		if err == nil {
			_ = a.do(one, on, s) // it fails when the server ends the connection
		}
		<-one.Done()
		stop()
		_ = c.Close()
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}
