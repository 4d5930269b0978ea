package labs

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestDaemonStartsWithoutEC2 starts a daemon without metadata service, then without EC2. The first
// time it waits and recovers by itself, later it serves what was confirmed before.
func TestDaemonStartsWithoutEC2(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small", NoDaemons: true})
	n := l.Nodes()[0]
	harness.OK(t, installPlugin(n))
	s := harness.NewSandbox(t, n)
	list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))

	// The plugin waits five seconds for a daemon, which may still be starting.
	statusFails := func(words ...string) {
		t.Helper()
		failsAtLast(t, types.ErrPluginNotAvailable, words, func() error { return s.Status(t, list) })
	}

	l.Cloud.IMDS.Outage(true)
	l.Cloud.API.Outage(true)
	harness.OK(t, n.Start())
	harness.Eventually(t, patience, "the daemon says what it waits for", func() error {
		body, err := n.Get(t.Context(), "http://127.0.0.1:61678/readyz")
		if err == nil || !strings.Contains(body+err.Error(), "metadata service") {
			return fmt.Errorf("readyz: %q, %w", body, err)
		}
		return nil
	})
	_, err := s.Add(t, list)
	harness.Fails(t, err, types.ErrTryAgainLater, "starting", "metadata service")
	statusFails("metadata service")

	l.Cloud.IMDS.Outage(false)
	harness.HasError(t, n)
	_, err = s.Add(t, list)
	harness.Fails(t, err, types.ErrTryAgainLater, "EC2")
	statusFails("no address has been usable", "EC2")
	harness.OK(t, s.Del(t, list))

	l.Cloud.API.Outage(false)
	harness.Ready(t, n)
	harness.Add(t, n, "first")
	harness.Settle(t, l)
	harness.ErrorGone(t, n)

	brief := harness.Add(t, n, "brief").Addr()
	harness.Remove(t, n, "brief")
	harness.Shows(t, n, "its address has cooled", func(doc introspect.Document) error {
		return harness.Equal("cool", len(doc.Cooling), 0)
	})
	l.Cloud.API.Outage(true)
	l.Cloud.IMDS.Outage(true)
	harness.Restart(t, n)
	// Addresses from before the restart are given out after EC2 had a moment to answer.
	if second := harness.Add(t, n, "second").Addr(); second == brief {
		t.Errorf("%s was given out first, which a pod had last before the restart", second)
	}
	harness.OK(t, n.CheckPod(t.Context(), "first"))
	l.Cloud.API.Outage(false)
	l.Cloud.IMDS.Outage(false)
	harness.RemoveAll(t, n)
	harness.Settle(t, l)
}

// TestLateEC2RepliesAtRestart unassigns addresses of a node while its daemon is down, and delays
// metadata and describe calls: no pod gets an address that EC2 has unassigned.
func TestLateEC2RepliesAtRestart(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: harness.Few(t, "t3.small").Type, DaemonArgs: []string{"--cooling-period=0s"}})
	n := l.Nodes()[0]
	keep := harness.Add(t, n, "keep")
	harness.Settle(t, l)
	l.Cloud.IMDS.SetDelay(time.Hour) // the metadata knows nothing of what follows
	for round, tries := 0, 0; round < 2; tries++ {
		if tries == 20 {
			t.Fatal("EC2 never answered within the seconds that a daemon leaves it")
		}
		harness.OK(t, n.Kill())
		before := log(t, n)
		taken := takeAllBut(t, l, n, keep.Addrs)
		l.Cloud.API.SetLatency("Describe*", 500*time.Millisecond)
		harness.OK(t, n.Start())
		var lost []netip.Addr
		for i := range 2 {
			p := harness.Add(t, n, fmt.Sprintf("p%d", i))
			for _, a := range p.Addrs {
				if !slices.ContainsFunc(harness.ENIs(l, n), func(e vpc.ENI) bool { return e.Owns(a) }) {
					lost = append(lost, a)
				}
			}
		}
		l.Cloud.API.SetLatency("Describe*", 0)
		// On a machine that stopped for longer, the daemon starts without EC2, and there is nothing to
		// see.
		tooLate := strings.Contains(strings.TrimPrefix(log(t, n), before), "by the stored inventory")
		if !tooLate {
			round++
			if len(lost) > 0 {
				t.Errorf("pods have %v, of %v that EC2 took while the daemon was down", lost, taken)
			}
			harness.Settle(t, l)
		}
		harness.Remove(t, n, "p0")
		harness.Remove(t, n, "p1")
		harness.Settle(t, l)
	}
}

// log is the daemon's log.
func log(t *testing.T, n *node.Node) string {
	t.Helper()
	data, err := os.ReadFile(n.LogFile())
	harness.OK(t, err)
	return string(data)
}

// takeAllBut unassigns all single addresses of a node's ENIs except some, behind Berth's back. Of
// dual-stack ENIs these are IPv4 addresses, as IPv6 comes in prefixes.
func takeAllBut(t *testing.T, l *lab.Lab, n *node.Node, keep []netip.Addr) (taken []netip.Addr) {
	t.Helper()
	kept := func(a netip.Addr) bool { return slices.Contains(keep, a) }
	for i, e := range harness.ENIs(l, n) {
		gone := vpc.Assigned{IPv4: slices.DeleteFunc(slices.Clone(e.Secondary), kept)}
		if i > 0 { // that of the primary is the node's own
			gone.IPv6 = slices.DeleteFunc(slices.Clone(e.IPv6), kept)
		}
		harness.OK(t, l.Cloud.ENIs.Unassign(e.ID, gone))
		taken = append(append(taken, gone.IPv4...), gone.IPv6...)
	}
	if len(taken) == 0 {
		t.Fatal("the node has no warm address to take")
	}
	return taken
}
