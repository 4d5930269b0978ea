package labs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// checkNames breaks pods in one way each, and expects CHECK to name it.
func checkNames(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	inPod := func(fn func(eth0 netlink.Link) error) func(*harness.Sandbox, *types100.Result) error {
		return func(s *harness.Sandbox, _ *types100.Result) error {
			return ns.Do(s.NetNS, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return fn(l)
			})
		}
	}
	type broken struct {
		breaks func(*harness.Sandbox, *types100.Result) error
		want   []string
	}
	cases := map[string]broken{
		"pod link down": {inPod(netlink.LinkSetDown), []string{"eth0 is down"}},
		"MAC address": {inPod(func(l netlink.Link) error {
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
	}
	for _, f := range familiesOfPods() {
		gateway, everything := "169.254.1.1", "0.0.0.0/0"
		if f == ipfamily.IPv6 {
			gateway, everything = "fe80::1", "::/0"
		}
		cases["address of "+f.String()] = broken{inPod(func(l netlink.Link) error { return delAddr(l, f) }), []string{"eth0 lacks address"}}
		cases["default route of "+f.String()] = broken{inPod(func(l netlink.Link) error {
			return delRoutes(l, f, func(r netlink.Route) bool { return r.Gw != nil })
		}), []string{"lacks its route to " + everything}}
		cases["neighbour of "+f.String()] = broken{inPod(func(l netlink.Link) error {
			list, err := netlink.NeighList(l.Attrs().Index, of(f))
			for _, e := range list {
				if e.IP.String() == gateway {
					err = netlink.NeighDel(&e)
				}
			}
			return err
		}), []string{"neighbour", gateway}}
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			s := harness.NewSandbox(t, n)
			r := add(t, s, list)
			harness.OK(t, s.Check(t, list))
			// The daemon may repair the link before CHECK looks: then it is broken again.
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

// mismatch is nil when CHECK reports a mismatch with these words.
func mismatch(answer error, words []string) error {
	if node.CNICode(answer) != cnierror.CodeMismatch || !harness.Says(answer.Error(), words...) {
		return fmt.Errorf("CHECK answers %s with code %d, want code %d and something about %q", fmt.Sprint(answer), node.CNICode(answer), cnierror.CodeMismatch, words)
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

// familiesOfPods are the families of which pods have an address, a node-local one included, in a lab
// with default families.
func familiesOfPods() []ipfamily.Family {
	if harness.Families().Has(ipfamily.IPv6) {
		return ipfamily.Dual.Families()
	}
	return harness.Families().Families()
}

// of is the kernel's number of a family.
func of(f ipfamily.Family) int {
	if f == ipfamily.IPv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// delAddr removes a link's address of a family, except the link-local one.
func delAddr(l netlink.Link, f ipfamily.Family) error {
	list, err := netlink.AddrList(l, of(f))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(a netlink.Addr) bool { return f == ipfamily.IPv4 || !a.IP.IsLinkLocalUnicast() })
	if i < 0 {
		return fmt.Errorf("no address of %s in %v", f, list)
	}
	return netlink.AddrDel(l, &list[i])
}

func delRoutes(l netlink.Link, f ipfamily.Family, which func(netlink.Route) bool) error {
	routes, err := netlink.RouteList(l, of(f))
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
