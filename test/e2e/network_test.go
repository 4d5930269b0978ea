//go:build e2e

package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/test/harness"
)

// cooling is long enough to be seen.
const cooling = 4 * time.Second

// raise starts a lab whose nodes have a container runtime each, and daemons that know its CRI socket.
func raise(t *testing.T, nodes int, daemons bool, args ...string) (*lab.Lab, []*containerd) {
	t.Helper()
	args = append([]string{"--log-level=debug", "--cooling-period=" + cooling.String(), "--repair-interval=1s"}, args...)
	l := harness.Raise(t, lab.Options{Nodes: nodes, NoDaemons: true, DaemonArgs: args})
	var runtimes []*containerd
	for _, n := range l.Nodes() {
		c := startContainerd(t, n)
		if daemons {
			c.startDaemon(t)
		}
		runtimes = append(runtimes, c)
	}
	for _, c := range runtimes {
		if daemons {
			c.networkReady(t)
		}
	}
	return l, runtimes
}

func (c *containerd) startDaemon(t *testing.T) {
	t.Helper()
	harness.OK(t, c.node.Start("--cri-socket="+c.socket()))
}

// networkReady waits until daemon and runtime can take sandboxes.
func (c *containerd) networkReady(t *testing.T) {
	t.Helper()
	harness.Ready(t, c.node)
	c.callsNetworkReady(t)
}

// callsNetworkReady waits until the runtime can take sandboxes.
func (c *containerd) callsNetworkReady(t *testing.T) {
	t.Helper()
	harness.Eventually(t, time.Minute, "containerd calls the network ready", func() error {
		ok, err := c.condition(t, cri.NetworkReady)
		if err == nil && !ok {
			err = errors.New("it does not")
		}
		return err
	})
}

// empty removes all sandboxes, and waits until all views agree on that.
func empty(t *testing.T, l *lab.Lab, runtimes ...*containerd) {
	t.Helper()
	for _, c := range runtimes {
		c.removeAll(t)
	}
	agree(t, l, runtimes...)
	harness.Settle(t, l)
}

// TestRuntimeReportsNetworkReady checks when containerd reports the network as ready: not without a
// daemon, nor before the first address, but with one, and still after a kill of the daemon.
func TestRuntimeReportsNetworkReady(t *testing.T) {
	t.Parallel()
	l, runtimes := raise(t, 1, false)
	c := runtimes[0]
	notReady := func(while string, attempt uint32) {
		t.Helper()
		if ok, err := c.condition(t, cri.NetworkReady); err != nil || ok {
			t.Errorf("%s: network ready %v, %v", while, ok, err)
		}
		if _, err := c.try(t.Context(), "early", attempt); err == nil || !strings.Contains(err.Error(), "cni plugin not initialized") {
			t.Errorf("%s: a sandbox fails with %v, want one that says so of CNI", while, err)
		}
	}
	notReady("without a daemon", 0)

	l.Cloud.API.Outage(true)
	c.startDaemon(t)
	harness.HasError(t, c.node)
	notReady("before the first address", 1)

	l.Cloud.API.Outage(false)
	c.callsNetworkReady(t)
	if doc := harness.Document(t, c.node); doc.Totals.Available == 0 {
		t.Errorf("containerd calls the network ready while no address is: %+v", doc.Totals)
	}
	s, err := c.run(harness.Deadline(t, patience), "first", func(err error) {
		t.Errorf("the first sandbox failed though the network was ready: %v", err)
	})
	harness.OK(t, err)
	agree(t, l, c)

	harness.OK(t, c.node.Kill())
	if ok, err := c.condition(t, cri.NetworkReady); err != nil || !ok {
		t.Errorf("daemon killed: network ready %v, %v", ok, err)
	}
	c.startDaemon(t)
	c.networkReady(t)
	s.answers(t, c.node.Netns, harness.PrimaryAddress(t, l, c.node))
	empty(t, l, c)
}

// TestSandboxesHaveVPCAddresses fills a node beyond its primary ENI. Every sandbox has an address of
// the VPC and is reached from another node. A released address is not given out before it has cooled.
func TestSandboxesHaveVPCAddresses(t *testing.T) {
	t.Parallel()
	const count = 20 // of the 27 that an m5.large has on its three ENIs
	l, runtimes := raise(t, 2, true)
	c, other := runtimes[0], runtimes[1]
	sandboxes := c.runMany(t, "web", count)
	client := other.runMany(t, "client", 1)[0]
	agree(t, l, runtimes...)

	used := map[int]int{}
	for _, s := range sandboxes {
		eni, _ := owner(l.Snapshot(), c.node, s.addr)
		used[eni.Attachment.DeviceIndex]++
		s.answers(t, other.node.Netns, harness.PrimaryAddress(t, l, other.node))
		s.answers(t, client.netns, client.addr)
		client.answers(t, s.netns, s.addr)
	}
	sandboxes[0].answers(t, sandboxes[count-1].netns, sandboxes[count-1].addr)
	if len(used) < 3 {
		t.Errorf("%d sandboxes are on ENIs %v, want three ENIs", count, used)
	}

	stopAndCool(t, c, sandboxes[0])
	again := c.runMany(t, "again", 1)[0]
	if again.addr == sandboxes[0].addr {
		t.Errorf("%s was handed out while it cooled", again.addr)
	}
	empty(t, l, runtimes...)
	harness.Shows(t, c.node, "all addresses have cooled", func(doc introspect.Document) error {
		return harness.Equal("addresses in use or cooling", doc.Totals.Cooling+doc.Totals.Allocated, 0)
	})
	harness.Settle(t, l)
}

// stopAndCool stops a sandbox twice and removes it twice, as a kubelet may:
// its address cools from the first on.
func stopAndCool(t *testing.T, c *containerd, s *sandbox) {
	t.Helper()
	stop := &cri.StopPodSandboxRequest{PodSandboxId: s.id}
	before := time.Now()
	_, err := c.StopPodSandbox(harness.Deadline(t, patience), stop)
	harness.OK(t, err)
	doc := harness.Document(t, c.node)
	if holds(doc, s) {
		t.Errorf("a stopped sandbox still has %s", s.addr)
	}
	i := slices.IndexFunc(doc.Cooling, func(c introspect.Cooling) bool { return c.Address == s.addr })
	if i < 0 {
		if time.Since(before) < cooling {
			t.Errorf("%s does not cool: %+v", s.addr, doc.Cooling)
		}
	} else if left := doc.Cooling[i].RemainingSeconds; left <= 0 || left > cooling.Seconds() {
		t.Errorf("%s cools for %v s more, want at most %v", s.addr, left, cooling)
	}
	_, err = c.StopPodSandbox(harness.Deadline(t, patience), stop)
	harness.OK(t, err)
	for range 2 {
		_, err = c.RemovePodSandbox(harness.Deadline(t, patience), &cri.RemovePodSandboxRequest{PodSandboxId: s.id})
		harness.OK(t, err)
	}
}
