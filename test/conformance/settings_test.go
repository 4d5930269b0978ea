package conformance

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/network/echo"
	"github.com/berthnet/berth/internal/lab/network/fabric"
	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

const metadata = "http://169.254.169.254/latest/meta-data/instance-id"

// TestDataPathSettings restarts one node's daemon with each of the data path's
// switches and back, and sees with live pods on both ENIs what they do.
func TestDataPathSettings(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: []string{"--warm-ip-target=1", "--minimum-ip-target=1"}})
	n := l.Nodes()[0]
	for i := range 4 {
		harness.Add(t, n, fmt.Sprintf("p%d", i))
	}
	pods := []*node.Pod{}
	for i, e := range harness.ENIs(l, n) {
		for _, p := range n.Pods() {
			if e.Owns(p.Addr()) {
				pods = append(pods, p)
				break
			}
		}
		if len(pods) != i+1 {
			t.Fatalf("no pod is on ENI %d", i)
		}
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
				seen := func(a netip.Addr) netip.Addr {
					if a == none {
						return p.Addr()
					}
					return a
				}
				harness.Eventually(t, patience, p.Name+" talks to the premises", func() error {
					return harness.Asks(t, p.Netns(), fabric.OnPremHost, seen(tt.onPrem))
				})
				if tt.lost {
					// With its own address a pod gets no answer from the internet:
					// the gateway has no public one for it.
					to := netip.AddrPortFrom(fabric.InternetHost, echo.Port)
					if r, err := echo.Ask(harness.Deadline(t, 5*time.Second), p.Netns(), "udp", to, none, "hello"); err == nil {
						t.Errorf("%s, internet: answered as %s", p.Name, r.You)
					}
				} else {
					harness.Eventually(t, patience, p.Name+" talks to the internet", func() error {
						return harness.Asks(t, p.Netns(), fabric.InternetHost, seen(tt.internet))
					})
				}
				if tt.blocked {
					if id, err := ns.Get(harness.Deadline(t, time.Second), p.Netns(), metadata); err == nil {
						t.Errorf("%s, metadata: %q", p.Name, id)
					}
				} else {
					harness.Eventually(t, patience, p.Name+" reads metadata", func() error { return reads(t, p.Netns(), n.InstanceID) })
				}
			}
			harness.Eventually(t, patience, "the node itself reads metadata", func() error { return reads(t, n.Netns, n.InstanceID) })
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

// reads wants an instance ID from the metadata service.
func reads(t *testing.T, path, want string) error {
	id, err := ns.Get(harness.Deadline(t, patience), path, metadata)
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
