package labs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// metadata are the URLs of the instance ID, by IPv4 and IPv6.
var metadata = [ipfamily.Number]string{"http://169.254.169.254/latest/meta-data/instance-id", "http://[fd00:ec2::254]/latest/meta-data/instance-id"}

// TestDataPathSettingsTakeEffect restarts a node's daemon with each setting of the data path and back,
// and looks at the traffic of running pods on two ENIs. Settings are about IPv4 of pods with an IPv4
// address. By IPv6 a pod is always seen as itself, and by IPv4 without an address of its own as its
// node.
func TestDataPathSettingsTakeEffect(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: few.Type, DaemonArgs: []string{"--warm-ip-target=1", "--minimum-ip-target=1"}})
	n := l.Nodes()[0]
	for i := range max(few.Primary, few.PerENI) + 1 { // more than one ENI has addresses for
		harness.Add(t, n, fmt.Sprintf("p%d", i))
	}
	pods := []*node.Pod{}
	for _, e := range harness.ENIs(l, n) {
		for _, p := range n.Pods() {
			if e.Owns(p.Addr()) {
				pods = append(pods, p)
				break
			}
		}
	}
	if len(pods) != 2 {
		t.Fatalf("pods are on %d ENIs, want 2", len(pods))
	}
	primary := harness.ENIs(l, n)[0].Primary
	none := netip.Addr{}
	for _, tt := range []struct {
		name             string
		args             []string
		internet, onPrem netip.Addr // as whom pods are seen; zero: as themselves
		lost             bool       // the internet does not answer
		blocked          bool       // nor does the metadata service
	}{
		{name: "default", internet: primary, onPrem: primary, blocked: true},
		{name: "exclusion", args: []string{"--exclude-snat-cidrs=192.168.100.0/24"}, internet: primary, onPrem: none, blocked: true},
		{name: "external SNAT", args: []string{"--external-snat"}, onPrem: none, lost: true, blocked: true},
		{name: "metadata for pods", args: []string{"--block-metadata=false"}, internet: primary, onPrem: primary},
		{name: "default again", internet: primary, onPrem: primary, blocked: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			harness.Restart(t, n, tt.args...)
			for _, p := range pods {
				own := map[ipfamily.Family]netip.Addr{}
				for _, a := range p.Addrs {
					own[ipfamily.Of(a)] = a
				}
				seen := func(a netip.Addr) netip.Addr {
					switch {
					case !own[ipfamily.IPv4].IsValid():
						return primary
					case a == none:
						return own[ipfamily.IPv4]
					}
					return a
				}
				harness.Eventually(t, patience, p.Name+" talks to the premises", func() error {
					return harness.Asks(t, p.Netns(), fabric.OnPremHost, seen(tt.onPrem))
				})
				if a := own[ipfamily.IPv6]; a.IsValid() {
					harness.Eventually(t, patience, p.Name+" talks by IPv6", func() error {
						return errors.Join(harness.Asks(t, p.Netns(), fabric.OnPremHost6, a), harness.Asks(t, p.Netns(), fabric.InternetHost6, a))
					})
				}
				if tt.lost && own[ipfamily.IPv4].IsValid() {
					// The internet gateway has no public address for a pod's own address.
					to := netip.AddrPortFrom(fabric.InternetHost, echo.Port)
					if r, err := echo.Ask(harness.Deadline(t, 5*time.Second), p.Netns(), "udp", to, none, "hello"); err == nil {
						t.Errorf("%s, internet: answered as %s", p.Name, r.You)
					}
				} else {
					harness.Eventually(t, patience, p.Name+" talks to the internet", func() error {
						return harness.Asks(t, p.Netns(), fabric.InternetHost, seen(tt.internet))
					})
				}
				for _, f := range familiesOfPods() {
					if tt.blocked {
						if id, err := ns.Get(harness.Deadline(t, time.Second), p.Netns(), metadata[f]); err == nil {
							t.Errorf("%s, metadata by %s: %q", p.Name, f, id)
						}
					} else {
						harness.Eventually(t, patience, fmt.Sprintf("%s reads metadata by %s", p.Name, f), func() error { return reads(t, p.Netns(), f, n.InstanceID) })
					}
				}
			}
			for _, f := range familiesOfPods() {
				harness.Eventually(t, patience, "the node itself reads metadata", func() error { return reads(t, n.Netns, f, n.InstanceID) })
			}
			harness.Settle(t, l)
		})
	}
	t.Run("MTU", func(t *testing.T) {
		harness.Restart(t, n, "--mtu=1400")
		p := harness.Add(t, n, "narrow")
		harness.OK(t, ns.Do(p.Netns(), func() error { return hasMTU("eth0", 1400) }))
		harness.Eventually(t, patience, "the second ENI has the MTU", func() error { // the pod may be on the first
			return ns.Do(n.Netns, func() error { return hasMTU("ens6", 1400) })
		})
		harness.OK(t, n.CheckPod(t.Context(), "narrow"))
		harness.OK(t, ns.Do(pods[0].Netns(), func() error { return hasMTU("eth0", fabric.ENIMTU) })) // live pods are not touched
		harness.OK(t, n.CheckPod(t.Context(), pods[0].Name))
	})
	harness.Settle(t, l)
}

// reads expects an instance ID from the metadata service.
func reads(t *testing.T, path string, f ipfamily.Family, want string) error {
	id, err := ns.Get(harness.Deadline(t, patience), path, metadata[f])
	if err == nil && strings.TrimSpace(id) != want {
		err = fmt.Errorf("instance ID %q, want %s", id, want)
	}
	return err
}

func hasMTU(name string, want int) error {
	l, err := netlink.LinkByName(name)
	if err == nil && l.Attrs().MTU != want {
		err = fmt.Errorf("%s has MTU %d, want %d", name, l.Attrs().MTU, want)
	}
	return err
}
