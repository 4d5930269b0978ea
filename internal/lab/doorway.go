package lab

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/berthnet/berth/internal/lab/network/ns"
)

// doorway lets programs outside the lab, such as a person's kubectl, reach a
// port inside one of its namespaces.
type doorway struct {
	listener net.Listener
	path     string // of the namespace
	to       netip.AddrPort

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
}

// openDoorway listens on a loopback port of the system's choice.
func openDoorway(path string, to netip.AddrPort) (*doorway, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &doorway{listener: l, path: path, to: to, conns: map[net.Conn]bool{}}
	go d.serve()
	return d, nil
}

func (d *doorway) serve() {
	for {
		outside, err := d.listener.Accept()
		if err != nil {
			return
		}
		go d.pass(outside)
	}
}

// pass carries one connection until either side ends it.
func (d *doorway) pass(outside net.Conn) {
	defer outside.Close()
	inside, err := ns.Dial(context.Background(), d.path, "tcp", d.to, netip.Addr{})
	if err != nil {
		return
	}
	defer inside.Close()
	d.mu.Lock()
	d.conns[outside] = true
	d.mu.Unlock()
	go func() {
		_, _ = io.Copy(inside, outside)
		_ = inside.Close()
	}()
	_, _ = io.Copy(outside, inside)
	d.mu.Lock()
	delete(d.conns, outside)
	d.mu.Unlock()
}

func (d *doorway) close() error {
	err := d.listener.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.Close()
	}
	return err
}
