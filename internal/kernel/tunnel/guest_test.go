//go:build guest

package tunnel

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// namespace makes a network namespace with the sockets that this package needs.
func namespace(t *testing.T) *Namespace {
	t.Helper()
	n, err := Open(nstest.New(t, "tunnel"))
	must(t, err)
	t.Cleanup(n.Close)
	return n
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
		t.Fatalf("Check() after Ensure() = %q, %v, want no differences", differ, err)
	}
	return index
}

// Ensure makes devices and ports, finds and repairs differences, and changes a device in place if the kernel can do
// that.
func TestEnsure(t *testing.T) {
	must(t, Supported())
	for name, want := range both {
		t.Run(name, func(t *testing.T) {
			n := namespace(t)
			h := n.NL
			if differ, err := Check(h, want); err != nil || len(differ) != 2 {
				t.Fatalf("Check() at the start = %q, %v, want a missing port and a missing link", differ, err)
			}
			index := ensure(t, h, want)
			if ensure(t, h, want) != index {
				t.Error("Ensure() replaced a correct device")
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
					t.Errorf("%s changed: Check() found no differences (error: %v)", change, err)
				}
				if ensure(t, h, other) != index {
					t.Errorf("%s changed: Ensure() replaced the device", change)
				}
				ensure(t, h, want)
			}
			for _, port := range []uint16{want.Port, 6666} {
				for range 2 {
					must(t, n.RemoveDevices(Families...))
					must(t, RemovePort(h, rtnl.FamilyOf(want.Local), port))
				}
			}
			if differ, err := Check(h, want); err != nil || len(differ) != 2 {
				t.Errorf("Check() after RemoveDevices() and RemovePort() = %q, %v, want a missing port and a missing link", differ, err)
			}
		})
	}
}

// Make has the same result as Ensure, in an empty namespace and in one with existing objects.
func TestMake(t *testing.T) {
	for name, want := range both {
		t.Run(name, func(t *testing.T) {
			for there, before := range map[string]func(*netlink.Handle) error{
				"nothing":   func(*netlink.Handle) error { return nil },
				"same port": func(h *netlink.Handle) error { return h.FouAdd(want.receiver()) },
				"port of another protocol": func(h *netlink.Handle) error {
					other := want.receiver()
					other.Protocol = 47
					return h.FouAdd(other)
				},
				"same device": func(h *netlink.Handle) error { return h.LinkAdd(want.device()) },
				"device with another MTU": func(h *netlink.Handle) error {
					other := want
					other.MTU -= 50
					return h.LinkAdd(other.device())
				},
				"all": func(h *netlink.Handle) error { _, err := Ensure(h, want); return err },
			} {
				t.Run(there, func(t *testing.T) {
					h := namespace(t).NL
					must(t, before(h))
					index, err := Make(h, want)
					must(t, err)
					if differ, err := Check(h, want); err != nil || len(differ) != 0 {
						t.Errorf("Check() after Make() = %q, %v, want no differences", differ, err)
					}
					if ensure(t, h, want) != index {
						t.Error("Ensure() replaced the device of Make()")
					}
				})
			}
		})
	}
}

// A link and a port of other software are replaced.
func TestLinkOfOtherSoftwareIsReplaced(t *testing.T) {
	for name, want := range both {
		t.Run(name, func(t *testing.T) {
			h := namespace(t).NL
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
				t.Errorf("Check() of a device that is down = %q, want one difference", differ)
			}
			ensure(t, h, want)
		})
	}
	if Link4 == Link6 {
		t.Error("both families have the same device name")
	}
}
