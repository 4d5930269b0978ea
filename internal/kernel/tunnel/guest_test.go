//go:build guest

package tunnel

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns/nstest"
)

// namespace makes a network namespace with the sockets that this package needs.
func namespace(t *testing.T) *netlink.Handle {
	t.Helper()
	n, err := Open(nstest.New(t, "tunnel"))
	must(t, err)
	t.Cleanup(n.Close)
	return n.NL
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var both = map[string]Tunnel{
	"IPv4": {Local: netip.MustParseAddr("10.1.0.2"), MTU: 1472, Port: 5555},
	"IPv6": {Local: netip.MustParseAddr("fd01::2"), MTU: 1452, Port: 5555},
}

func ensure(t *testing.T, h *netlink.Handle, want Tunnel) int {
	t.Helper()
	index, err := Ensure(h, want)
	must(t, err)
	if differ, err := Check(h, want); err != nil || len(differ) != 0 {
		t.Fatalf("after Ensure: %q, %v", differ, err)
	}
	return index
}

// TestEnsure makes devices and ports, finds and repairs differences, and changes a device in place where the kernel
// can.
func TestEnsure(t *testing.T) {
	must(t, Supported())
	for name, want := range both {
		t.Run(name, func(t *testing.T) {
			h := namespace(t)
			if differ, err := Check(h, want); err != nil || len(differ) != 2 {
				t.Fatalf("before anything: %q, %v; want a port and a link that are missing", differ, err)
			}
			index := ensure(t, h, want)
			if ensure(t, h, want) != index {
				t.Error("made again though nothing differed")
			}
			for change, to := range map[string]func(*Tunnel){
				"source port": func(w *Tunnel) { w.SourcePortAuto = true },
				"MTU":         func(w *Tunnel) { w.MTU -= 50 },
				"local":       func(w *Tunnel) { w.Local = w.Local.Next() },
				"port":        func(w *Tunnel) { w.Port = 6666 },
			} {
				other := want
				to(&other)
				if differ, err := Check(h, other); err != nil || len(differ) == 0 {
					t.Errorf("%s: Check finds no difference (%v)", change, err)
				}
				if ensure(t, h, other) != index {
					t.Errorf("%s: the device was made again", change)
				}
				ensure(t, h, want)
			}
			for _, port := range []uint16{want.Port, 6666} {
				for range 2 {
					must(t, Remove(h, want.Local, port))
				}
			}
			if differ, err := Check(h, want); err != nil || len(differ) != 2 {
				t.Errorf("after Remove: %q, %v", differ, err)
			}
		})
	}
}

// TestMake makes the same as Ensure, in an empty namespace and in one that has some of it.
func TestMake(t *testing.T) {
	for name, want := range both {
		t.Run(name, func(t *testing.T) {
			for there, before := range map[string]func(*netlink.Handle) error{
				"nothing":  func(*netlink.Handle) error { return nil },
				"the port": func(h *netlink.Handle) error { return h.FouAdd(want.receiver()) },
				"another port": func(h *netlink.Handle) error {
					other := want.receiver()
					other.Protocol = 47
					return h.FouAdd(other)
				},
				"the device": func(h *netlink.Handle) error { return h.LinkAdd(want.device()) },
				"another device": func(h *netlink.Handle) error {
					other := want
					other.MTU -= 50
					return h.LinkAdd(other.device())
				},
				"all": func(h *netlink.Handle) error { _, err := Ensure(h, want); return err },
			} {
				t.Run(there, func(t *testing.T) {
					h := namespace(t)
					must(t, before(h))
					index, err := Make(h, want)
					must(t, err)
					if differ, err := Check(h, want); err != nil || len(differ) != 0 {
						t.Errorf("after Make: %q, %v", differ, err)
					}
					if ensure(t, h, want) != index {
						t.Error("Ensure makes another device")
					}
				})
			}
		})
	}
}

// TestOthersDevice replaces a link and port of other software.
func TestOthersDevice(t *testing.T) {
	for name, want := range both {
		t.Run(name, func(t *testing.T) {
			h := namespace(t)
			attrs := netlink.NewLinkAttrs()
			attrs.Name = want.Link()
			must(t, h.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}))
			wrong := want.receiver()
			wrong.Protocol = 47
			must(t, h.FouAdd(wrong))
			ensure(t, h, want)
			link, err := h.LinkByName(want.Link())
			must(t, err)
			must(t, h.LinkSetDown(link))
			if differ, _ := Check(h, want); len(differ) != 1 {
				t.Errorf("a device that is down: %q", differ)
			}
			ensure(t, h, want)
		})
	}
	if Link4 == Link6 {
		t.Error("both families have one device")
	}
}
