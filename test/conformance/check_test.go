package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/daemon"
	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// checkNames breaks pods in one way each and wants CHECK to say which.
func checkNames(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	inPod := func(fn func(eth0 netlink.Link, addr netip.Addr) error) func(*harness.Sandbox, *types100.Result) error {
		return func(s *harness.Sandbox, r *types100.Result) error {
			return ns.Do(s.NetNS, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				a, _ := netip.AddrFromSlice(r.IPs[0].Address.IP)
				return fn(l, a.Unmap())
			})
		}
	}
	for name, tt := range map[string]struct {
		breaks func(*harness.Sandbox, *types100.Result) error
		want   []string
	}{
		"address": {inPod(func(l netlink.Link, a netip.Addr) error {
			return netlink.AddrDel(l, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())})
		}), []string{"eth0 lacks address"}},
		"default route": {inPod(func(l netlink.Link, _ netip.Addr) error {
			return delRoutes(l, func(r netlink.Route) bool { return r.Gw != nil })
		}), []string{"lacks its route to 0.0.0.0/0"}},
		"neighbour": {inPod(func(l netlink.Link, _ netip.Addr) error {
			list, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
			for _, e := range list {
				err = netlink.NeighDel(&e)
			}
			return err
		}), []string{"neighbour", "169.254.1.1"}},
		"pod link down": {inPod(func(l netlink.Link, _ netip.Addr) error { return netlink.LinkSetDown(l) }), []string{"eth0 is down"}},
		"MAC address": {inPod(func(l netlink.Link, _ netip.Addr) error {
			return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 1})
		}), []string{"eth0 has MAC address 02:00:00:00:00:01"}},
		"the link itself": {func(s *harness.Sandbox, r *types100.Result) error {
			return ns.Do(n.Netns, func() error {
				l, err := netlink.LinkByName(r.Interfaces[0].Name)
				if err != nil {
					return err
				}
				return netlink.LinkDel(l)
			})
		}, []string{"is missing on the node", "eth0 is missing in the pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := harness.NewSandbox(t, n)
			r := add(t, s, list)
			harness.OK(t, s.Check(t, list))
			// The daemon may make the link again before CHECK looks, whole: then it is broken again.
			harness.Eventually(t, patience, "CHECK names it", func() error {
				made := hostLink(t, n, r)
				if err := tt.breaks(s, r); err != nil {
					return err
				}
				err := mismatch(s.Check(t, list), tt.want)
				if err != nil && hostLink(t, n, r) == made {
					t.Fatal(err)
				}
				return err
			})
			harness.OK(t, s.Del(t, list))
			gone(t, n, r)
		})
	}
	t.Run("another address than the result's", func(t *testing.T) {
		s := harness.NewSandbox(t, n)
		add(t, s, list)
		rt := n.Runtime(t.TempDir())
		err := rt.CheckNetworkList(t.Context(), list, s.RuntimeConf)
		if node.CNICode(err) != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), "prevResult") {
			t.Errorf("CHECK without a previous result answers %v with code %d", err, node.CNICode(err))
		}
		harness.OK(t, s.Del(t, list))
	})
}

// mismatch is nil when CHECK answered that the pod is not as it should be, in such words.
func mismatch(answer error, words []string) error {
	if node.CNICode(answer) != daemon.CodeMismatch || !harness.Says(answer.Error(), words...) {
		return fmt.Errorf("CHECK answers %s with code %d, want code %d and something about %q", fmt.Sprint(answer), node.CNICode(answer), daemon.CodeMismatch, words)
	}
	return nil
}

// hostLink is the index of the node's end of the pod's link, 0 if there is none.
func hostLink(t *testing.T, n *node.Node, r *types100.Result) (index int) {
	t.Helper()
	harness.OK(t, ns.Do(n.Netns, func() error {
		l, err := netlink.LinkByName(r.Interfaces[0].Name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	}))
	return index
}

func delRoutes(l netlink.Link, which func(netlink.Route) bool) error {
	routes, err := netlink.RouteList(l, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if which(r) {
			if err := netlink.RouteDel(&r); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkUnknown(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	s := harness.NewSandbox(t, n)
	add(t, s, list)
	// Another runtime removes the pod; ours still remembers its result.
	harness.OK(t, n.Runtime(t.TempDir()).DelNetworkList(t.Context(), list, s.RuntimeConf))
	if err := s.Check(t, list); node.CNICode(err) != types.ErrUnknownContainer {
		t.Errorf("CHECK answers %v with code %d, want %d", err, node.CNICode(err), types.ErrUnknownContainer)
	}
	harness.OK(t, s.Del(t, list))
}
