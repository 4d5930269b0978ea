package labs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

var versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// TestCNIVerbs runs every verb on one node. Parts share only the daemon and its addresses; each cleans
// up.
func TestCNIVerbs(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "m5.large", DaemonArgs: prompt})
	n := l.Nodes()[0]
	for _, v := range versions {
		t.Run("life in "+v, func(t *testing.T) { life(t, n, v) })
	}
	for name, part := range map[string]func(*testing.T, *node.Node){
		"VERSION":                            versionVerb,
		"STATUS of a node that takes pods":   takesPods,
		"DEL of what is not there":           delUnknown,
		"DEL after the namespace":            delAfterNetns,
		"DEL leaves others alone":            delLeavesOthers,
		"two interfaces of one container":    twoInterfaces,
		"CHECK names what is broken":         checkNames,
		"CHECK of an unknown container":      checkUnknown,
		"GC":                                 collect,
		"ADD repairs what it set up before":  addAgainRepairs,
		"MTU and DNS of the configuration":   configured,
		"the configuration of an older node": oddities,
	} {
		t.Run(name, func(t *testing.T) { part(t, n) })
	}
	harness.Settle(t, l)
}

// result converts an ADD's result to the newest version.
func result(t *testing.T, r types.Result) *types100.Result {
	t.Helper()
	cur, err := types100.NewResultFromResult(r)
	if err != nil {
		t.Fatal(err)
	}
	return cur
}

func add(t *testing.T, s *harness.Sandbox, list *libcni.NetworkConfigList) *types100.Result {
	t.Helper()
	r, err := s.Add(t, list)
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	return result(t, r)
}

// life is ADD, the same ADD again, CHECK, DEL and DEL again in one version.
func life(t *testing.T, n *node.Node, version string) {
	s := harness.NewSandbox(t, n)
	list := harness.Network(t, version, "berth", harness.Plugin(n, nil))
	first, err := s.Add(t, list)
	harness.OK(t, err)
	if first.Version() != version {
		t.Errorf("the result is of version %s, asked in %s", first.Version(), version)
	}
	res := result(t, first)
	judge(t, s, res, version)

	again, err := s.Add(t, list)
	harness.OK(t, err)
	if !reflect.DeepEqual(first, again) {
		t.Errorf("the same ADD again answered %v, before %v", again, first)
	}
	if version != "0.3.1" { // CHECK came with 0.4.0
		harness.OK(t, s.Check(t, list))
	}
	harness.OK(t, s.Del(t, list))
	gone(t, n, res)
	harness.OK(t, s.Del(t, list))
	s.Do(t, func() error {
		if _, err := netlink.LinkByName("eth0"); err == nil {
			t.Error("eth0 is still there after DEL")
		}
		return nil
	})
}

// judge compares a result with the kernel.
func judge(t *testing.T, s *harness.Sandbox, r *types100.Result, version string) {
	t.Helper()
	addrs := addrsOf(t, r)
	if len(r.Interfaces) != 2 {
		t.Fatalf("interfaces %v, want the host's and the pod's", r.Interfaces)
	}
	host, pod := r.Interfaces[0], r.Interfaces[1]
	if host.Sandbox != "" || pod.Sandbox != s.NetNS || pod.Name != "eth0" {
		t.Errorf("interfaces %+v and %+v, want the host's and eth0 in %s", host, pod, s.NetNS)
	}
	var got []ipfamily.Family
	var want []string // routes
	for i, ip := range r.IPs {
		if ip.Interface == nil || *ip.Interface != 1 {
			t.Errorf("the address is of interface %v, want 1", ip.Interface)
		}
		gateway, everything := "169.254.1.1", "0.0.0.0/0"
		if addrs[i].Is6() {
			gateway, everything = "fe80::1", "::/0"
		} else if version == "1.1.0" { // the scope that a route without gateway needs came with 1.1.0
			want = append(want, gateway+"/32 via <nil>")
		}
		if ones, bits := ip.Address.Mask.Size(); ones != addrs[i].BitLen() || bits != ones || ip.Gateway.String() != gateway {
			t.Errorf("address %s by %s, want a single one by %s", ip.Address.String(), ip.Gateway, gateway)
		}
		got, want = append(got, ipfamily.Of(addrs[i])), append(want, everything+" via "+gateway)
	}
	if families := harness.Families().Families(); !slices.Equal(got, families) {
		t.Errorf("addresses %v, want one of each of %v", addrs, families)
	}
	if version == "1.1.0" && (pod.Mtu != 9001 || host.Mtu != 9001) {
		t.Errorf("MTU %d and %d in the result, want 9001", host.Mtu, pod.Mtu)
	}
	var routes []string
	for _, rt := range r.Routes {
		routes = append(routes, fmt.Sprintf("%s via %s", rt.Dst.String(), rt.GW))
	}
	if !slices.Equal(routes, want) {
		t.Errorf("routes %q, want %q", routes, want)
	}
	harness.OK(t, ns.Do(s.Node.Netns, func() error { return sameLink(host.Name, host.Mac, nil) }))
	s.Do(t, func() error { return sameLink(pod.Name, pod.Mac, addrs) })
}

// sameLink compares a link of the calling thread's namespace with a result, and its addresses if there
// are any.
func sameLink(name, mac string, addrs []netip.Addr) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if got := l.Attrs().HardwareAddr.String(); got != mac {
		return fmt.Errorf("%s has MAC address %s, the result says %s", name, got, mac)
	}
	if l.Attrs().MTU != 9001 {
		return fmt.Errorf("%s has MTU %d, want the ENI's 9001", name, l.Attrs().MTU)
	}
	if len(addrs) == 0 {
		return nil
	}
	list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	var have, want []netip.Prefix
	for _, a := range list {
		p := netip.MustParsePrefix(a.IPNet.String())
		// A link has an address of fe80::/64 by itself. The result of an IPv6-only pod has no
		// node-local address.
		if !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() {
			have = append(have, p)
		}
	}
	for _, a := range addrs {
		want = append(want, netip.PrefixFrom(a, a.BitLen()))
	}
	if harness.Families() == ipfamily.OnlyIPv6 {
		i := slices.IndexFunc(have, func(p netip.Prefix) bool { return nodeLocal.Contains(p.Addr()) })
		if i < 0 {
			return fmt.Errorf("%s has %v, none of them of %s", name, have, nodeLocal)
		}
		have = slices.Delete(have, i, i+1)
	}
	if !slices.Equal(have, want) {
		return fmt.Errorf("%s has %v, the result says %v", name, have, want)
	}
	return nil
}

// nodeLocal has the addresses by which IPv6-only pods reach IPv4 destinations.
var nodeLocal = netip.MustParsePrefix("169.254.172.0/22")

// gone waits until nothing of an attachment is in the kernel: the veth is removed after the reply.
func gone(t *testing.T, n *node.Node, r *types100.Result) {
	t.Helper()
	host, addrs := r.Interfaces[0].Name, addrsOf(t, r)
	harness.Eventually(t, patience, "the host link leaves", func() error {
		return ns.Do(n.Netns, func() error {
			if _, err := netlink.LinkByName(host); err == nil {
				return fmt.Errorf("%s is there", host)
			}
			return nil
		})
	})
	doc, err := lab.Document(t.Context(), n)
	harness.OK(t, err)
	for _, a := range doc.Allocated {
		if share(addrs, []netip.Addr{a.Address, a.IPv6}) {
			t.Errorf("%v are still allocated after DEL: %+v", addrs, a)
		}
	}
}

func versionVerb(t *testing.T, n *node.Node) {
	info, err := n.Runtime(t.TempDir()).GetVersionInfo(t.Context(), "berth")
	harness.OK(t, err)
	if got := info.SupportedVersions(); !slices.Equal(got, versions) {
		t.Errorf("VERSION answers %v, want %v", got, versions)
	}
}

func delUnknown(t *testing.T, n *node.Node) {
	s := harness.NewSandbox(t, n)
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	harness.OK(t, s.Del(t, list))
	harness.OK(t, s.Del(t, list))
	s.NetNS = "" // as after a crash of the runtime: it knows the container only
	harness.OK(t, s.Del(t, list))
}

func delAfterNetns(t *testing.T, n *node.Node) {
	for _, version := range versions {
		s := harness.NewSandbox(t, n)
		list := harness.Network(t, version, "berth", harness.Plugin(n, nil))
		r := add(t, s, list)
		s.Vanish(t)
		harness.OK(t, s.Del(t, list))
		gone(t, n, r)
		harness.OK(t, s.Del(t, list))
	}
}

func delLeavesOthers(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	a, b := harness.NewSandbox(t, n), harness.NewSandbox(t, n)
	ra, rb := add(t, a, list), add(t, b, list)
	if share(addrsOf(t, ra), addrsOf(t, rb)) {
		t.Fatalf("the pods have %v and %v", addrsOf(t, ra), addrsOf(t, rb))
	}
	harness.OK(t, a.Del(t, list))
	harness.OK(t, b.Check(t, list))
	harness.OK(t, b.Del(t, list))
}

func twoInterfaces(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	other := harness.Network(t, "1.0.0", "berth-second", harness.Plugin(n, nil))
	s := harness.NewSandbox(t, n)
	first := add(t, s, list)
	s.IfName = "net1"
	second := add(t, s, other)
	if share(addrsOf(t, first), addrsOf(t, second)) || first.Interfaces[0].Name == second.Interfaces[0].Name {
		t.Errorf("the interfaces share %v and %v", first, second)
	}
	harness.OK(t, s.Check(t, other))
	again := add(t, s, other)
	if !reflect.DeepEqual(second, again) {
		t.Errorf("the same ADD again answered %v, before %v", again, second)
	}
	s.IfName = "eth0"
	harness.OK(t, s.Check(t, list)) // the second did not take anything from the first
	s.IfName = "net1"
	harness.OK(t, s.Del(t, other))
	s.IfName = "eth0"
	harness.OK(t, s.Check(t, list))
	harness.OK(t, s.Del(t, list))
}

// collect sends GC by a runtime without a cache, so that libcni sends no DEL and the plugin's GC does
// the work.
func collect(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.1.0", "gc", harness.Plugin(n, nil))
	other := harness.Network(t, "1.1.0", "gc-other", harness.Plugin(n, nil))
	keep, lose, foreign := harness.NewSandbox(t, n), harness.NewSandbox(t, n), harness.NewSandbox(t, n)
	add(t, keep, list)
	lost := add(t, lose, list)
	add(t, foreign, other)
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: keep.ContainerID, IfName: "eth0"}}}
	blank := n.Runtime(t.TempDir())
	harness.OK(t, blank.GCNetworkList(t.Context(), list, valid))
	gone(t, n, lost)
	harness.OK(t, keep.Check(t, list))
	harness.OK(t, foreign.Check(t, other))
	harness.OK(t, blank.GCNetworkList(t.Context(), list, valid)) // nothing more to do
	harness.OK(t, keep.Check(t, list))

	// The same container with another interface is another attachment.
	wrong := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: keep.ContainerID, IfName: "net1"}}}
	harness.OK(t, blank.GCNetworkList(t.Context(), list, wrong))
	if err := keep.Check(t, list); node.CNICode(err) != types.ErrUnknownContainer {
		t.Errorf("an attachment that is not in the list is still there: %v", err)
	}
	harness.OK(t, keep.Del(t, list))
	harness.OK(t, lose.Del(t, list))
	harness.OK(t, foreign.Del(t, other))
}

func addAgainRepairs(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	s := harness.NewSandbox(t, n)
	first := add(t, s, list)
	for _, f := range familiesOfPods() {
		s.Do(t, func() error { return delDefaultRoutes(f) })
	}
	again := add(t, s, list)
	if !reflect.DeepEqual(first, again) {
		t.Errorf("ADD again answers %v, before %v", again, first)
	}
	harness.OK(t, s.Check(t, list))
	harness.OK(t, s.Del(t, list))
}

func configured(t *testing.T, n *node.Node) {
	dns := map[string]any{"nameservers": []string{"10.0.0.2"}, "search": []string{"example.org"}}
	list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, map[string]any{"mtu": 1400, "dns": dns}))
	s := harness.NewSandbox(t, n)
	r := add(t, s, list)
	if r.Interfaces[1].Mtu != 1400 || !slices.Equal(r.DNS.Nameservers, []string{"10.0.0.2"}) || !slices.Equal(r.DNS.Search, []string{"example.org"}) {
		t.Errorf("MTU %d and DNS %+v in the result", r.Interfaces[1].Mtu, r.DNS)
	}
	s.Do(t, func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil && l.Attrs().MTU != 1400 {
			t.Errorf("eth0 has MTU %d, configured are 1400", l.Attrs().MTU)
		}
		return err
	})
	harness.OK(t, s.Check(t, list))
	harness.OK(t, s.Del(t, list))
}

// oddities has fields that berth does not know, which it ignores, and a DEL with values that an ADD
// rejects.
func oddities(t *testing.T, n *node.Node) {
	good := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, map[string]any{"veryNew": map[string]any{"a": 1}, "capabilities": map[string]any{"dns": true}}))
	bad := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, map[string]any{"mtu": 7, "ipam": map[string]any{"type": "host-local"}}))
	s := harness.NewSandbox(t, n)
	r := add(t, s, good)
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
	harness.OK(t, n.Runtime(t.TempDir()).DelNetworkList(context.WithoutCancel(t.Context()), bad, s.RuntimeConf))
	gone(t, n, r)
}
