// Package echo is a server that replies to every message with the address that it came from. The lab's hosts and pods
// run it, so that callers can check the source of their traffic. The protocol is text: the reply to a TCP line or a UDP
// datagram W is "you are ADDR, to ADDR: W"; the reply to an HTTP GET on HTTPPort is the same with the path as W.
package echo

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// Ports of a Server: one number for TCP and UDP, one for HTTP.
const (
	Port     = 7777
	HTTPPort = 8080
)

// Reply is one reply: the source as seen by the server, and the server's own address.
type Reply struct {
	You  netip.Addr
	To   netip.Addr
	Text string
}

// String formats the reply for the wire.
func (r Reply) String() string { return fmt.Sprintf("you are %s, to %s: %s", r.You, r.To, r.Text) }

// Parse parses the output of String.
func Parse(s string) (Reply, error) {
	var you, to string
	head, text, ok := strings.Cut(strings.TrimRight(s, "\r\n"), ": ")
	if ok {
		head = strings.ReplaceAll(head, ",", "")
		if _, err := fmt.Sscanf(head, "you are %s to %s", &you, &to); err != nil {
			ok = false
		}
	}
	if !ok {
		return Reply{}, fmt.Errorf("echo reply %q: want \"you are ADDR, to ADDR: TEXT\"", s)
	}
	r := Reply{Text: text}
	var err error
	if r.You, err = netip.ParseAddr(you); err != nil {
		return Reply{}, fmt.Errorf("echo reply %q: %w", s, err)
	}
	if r.To, err = netip.ParseAddr(to); err != nil {
		return Reply{}, fmt.Errorf("echo reply %q: %w", s, err)
	}
	return r, nil
}

// Server replies in one network namespace, on all addresses.
type Server struct {
	closers []interface{ Close() error }
	serving sync.WaitGroup

	mu    sync.Mutex // guards conns and done
	conns map[net.Conn]bool
	done  bool
}

// Serve starts a server in the namespace at path, on Port and HTTPPort of every current and future address.
func Serve(path string) (*Server, error) {
	s := &Server{conns: map[net.Conn]bool{}}
	err := ns.Do(path, func() error {
		tcp, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", Port))
		if err != nil {
			return err
		}
		s.closers = append(s.closers, tcp)
		web, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", HTTPPort))
		if err != nil {
			return err
		}
		s.closers = append(s.closers, web)
		udp, err := listenUDP()
		if err != nil {
			return err
		}
		s.closers = append(s.closers, udp)
		s.serving.Go(func() { s.acceptTCP(tcp) })
		s.serving.Go(func() { serveUDP(udp) })
		s.serving.Go(func() { s.serveHTTP(web) })
		return nil
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("start echo server in %s: %w", path, err)
	}
	return s, nil
}

// Close stops the server, and returns when its connections and goroutines have ended.
func (s *Server) Close() error {
	var errs []error
	for _, c := range s.closers {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	s.mu.Lock()
	s.done = true
	for c := range s.conns {
		// A reset avoids TIME-WAIT, which would keep the namespace.
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		c.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
	return errors.Join(errs...)
}

func (s *Server) acceptTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if !s.track(c) {
			return
		}
		s.serving.Go(func() { s.serveConn(c) })
	}
}

func (s *Server) serveConn(c net.Conn) {
	defer s.untrack(c)
	in := bufio.NewScanner(c)
	for in.Scan() {
		r := Reply{You: addrOf(c.RemoteAddr()), To: addrOf(c.LocalAddr()), Text: in.Text()}
		if _, err := fmt.Fprintln(c, r); err != nil {
			return
		}
	}
}

func (s *Server) serveHTTP(l net.Listener) {
	srv := &http.Server{
		ReadHeaderTimeout: time.Minute,
		ConnState: func(c net.Conn, st http.ConnState) {
			switch st {
			case http.StateNew:
				s.track(c)
			case http.StateClosed, http.StateHijacked:
				s.untrack(c)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
			you, _ := netip.ParseAddrPort(r.RemoteAddr)
			fmt.Fprintln(w, Reply{You: you.Addr().Unmap(), To: addrOf(to), Text: r.URL.Path})
		}),
	}
	_ = srv.Serve(l) // ends when the listener is closed
}

// track registers a connection for Close; after Close it closes the connection and returns false.
func (s *Server) track(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		c.Close()
		return false
	}
	s.conns[c] = true
	return true
}

func (s *Server) untrack(c net.Conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.Close()
}

func addrOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
