package labs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// chained is a quick lab with the chain that berthd installs by default.
func chained(o lab.Options) lab.Options {
	o = harness.Quick(lab.NodeMode, o)
	o.DaemonArgs = slices.DeleteFunc(o.DaemonArgs, func(s string) bool { return s == "--cni-chain=" })
	return o
}

// TestChainedPluginsServeHostPorts runs the reference plugins portmap and bandwidth after berth, as
// berthd installs them. A host port leads to a pod on any ENI, and replies leave by the primary ENI:
// the VPC drops them elsewhere.
func TestChainedPluginsServeHostPorts(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	l := harness.Raise(t, chained(lab.Options{Nodes: 2, InstanceType: few.Type, DaemonArgs: prompt}))
	n, other := l.Nodes()[0], l.Nodes()[1]
	ctx := harness.Deadline(t, 15*time.Minute)

	list := installed(t, n)
	var types []string
	for _, p := range list.Plugins {
		types = append(types, p.Network.Type)
	}
	if got := strings.Join(types, " "); got != "berth portmap bandwidth" {
		t.Fatalf("the installed configuration lists %q", got)
	}

	pods := max(few.Primary, few.PerENI) + 1 // more than one ENI has addresses for
	var ports []int
	enis := map[string]bool{} // on which is a pod of one of the ports
	for i := range pods {
		port := 30000 + i
		p, err := n.AddPod(ctx, fmt.Sprintf("web-%d", i), node.PodOptions{Ports: []node.PortMapping{
			{HostPort: port, ContainerPort: echo.Port, Protocol: "tcp"},
			{HostPort: port, ContainerPort: echo.Port, Protocol: "udp"},
		}})
		harness.OK(t, err)
		if e := eniOf(t, l, p.Addr()); !enis[e.ID] {
			enis[e.ID], ports = true, append(ports, port)
		}
	}
	if len(ports) < 2 {
		t.Fatalf("%d pods of a %s are all on one ENI", pods, few.Type)
	}
	client, err := other.AddPod(ctx, "client", node.PodOptions{})
	harness.OK(t, err)
	for _, port := range ports {
		for _, own := range client.Addrs { // by each family that pods have
			onPremises, outside := fabric.OnPremHost, fabric.InternetHost
			if own.Is6() {
				onPremises, outside = fabric.OnPremHost6, fabric.InternetHost6
			}
			to := netip.AddrPortFrom(harness.OwnAddress(t, l, n, own), uint16(port))
			for from, want := range map[string]netip.Addr{
				other.Netns:             harness.OwnAddress(t, l, other, own),
				client.Netns():          own,
				l.Fabric.OnPremPath():   onPremises,
				l.Fabric.InternetPath(): outside,
			} {
				for _, network := range []string{"tcp", "udp"} {
					if err := harness.AsksBy(t, from, network, to, want); err != nil {
						t.Errorf("host port %d by %s: %v", port, network, err)
					}
				}
			}
		}
	}
	// No CHECK of these: portmap 1.1.1 fails it for want of IPv6 rules.
	for i := range pods {
		harness.OK(t, n.DelPod(ctx, fmt.Sprintf("web-%d", i)))
	}
	harness.OK(t, other.DelPod(ctx, "client"))
	for _, own := range harness.OwnAddresses(t, l, n) {
		closed := netip.AddrPortFrom(own, uint16(ports[0]))
		if _, err := echo.Ask(harness.Deadline(t, 2*time.Second), other.Netns, "tcp", closed, netip.Addr{}, "hello"); err == nil {
			t.Errorf("the host port still answers at %s after DEL", own)
		}
	}
	bandwidth(t, n, list)
	harness.Settle(t, l)
}

// TestPodsOutliveCNIVersionChanges installs another CNI version under running pods, up and down, as an
// upgrade of a plugin or a runtime does. CHECK and DEL still work.
func TestPodsOutliveCNIVersionChanges(t *testing.T) {
	t.Parallel()
	const first = "0.4.0" // the first that has CHECK
	l := harness.Raise(t, harness.Quick(lab.NodeMode, lab.Options{
		Nodes: 1, InstanceType: "t3.small", DaemonArgs: slices.Concat(prompt, []string{"--cni-version=" + first}),
	}))
	n := l.Nodes()[0]
	ctx := harness.Deadline(t, patience)
	for i, version := range []string{first, "1.1.0", "1.0.0"} {
		if i > 0 {
			harness.OK(t, n.Stop(patience))
			harness.OK(t, n.Start("--cni-version="+version))
			harness.Ready(t, n)
			harness.Eventually(t, patience, "the configuration is in "+version, func() error {
				if got := installed(t, n).CNIVersion; got != version {
					return fmt.Errorf("it is in %s", got)
				}
				return nil
			})
		}
		_, err := n.AddPod(ctx, fmt.Sprintf("p-%d", i), node.PodOptions{Once: true})
		harness.OK(t, err)
		for _, p := range n.Pods() {
			harness.OK(t, n.CheckPod(ctx, p.Name))
		}
	}
	for _, p := range n.Pods() {
		harness.OK(t, n.DelPod(ctx, p.Name))
	}
	harness.Settle(t, l)
}

// installed reads what berthd installed.
func installed(t *testing.T, n *node.Node) *libcni.NetworkConfigList {
	t.Helper()
	files, err := libcni.ConfFiles(n.ConfDir(), []string{".conflist"})
	harness.OK(t, err)
	if len(files) != 1 {
		t.Fatalf("configurations %v, want one", files)
	}
	list, err := libcni.NetworkConfFromFile(files[0])
	harness.OK(t, err)
	return list
}

// bandwidth limits a pod's traffic in both directions.
func bandwidth(t *testing.T, n *node.Node, list *libcni.NetworkConfigList) {
	s := harness.NewSandbox(t, n)
	const rate = 8_000_000 // bits a second
	s.CapabilityArgs = map[string]any{"bandwidth": map[string]any{
		"ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate,
	}}
	r := add(t, s, list)
	host := r.Interfaces[0].Name
	if found := harness.RateLimits(t, n.Netns, rate/8); !slices.Equal(found["veth"], []string{host}) || len(found["ifb"]) != 1 {
		t.Errorf("the bandwidth of the pod at %s is limited on %v, want that veth for what it gets and an ifb for what it sends", host, found)
	}
	harness.OK(t, s.Check(t, list))
	harness.OK(t, s.Del(t, list))
	gone(t, n, r)
	harness.OK(t, ns.Netlink(n.Netns, func(h *netlink.Handle) error {
		links, err := h.LinkList()
		if slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Type() == "ifb" }) {
			err = errors.Join(err, errors.New("an ifb is left after DEL"))
		}
		return err
	}))
}
