package labs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// burst makes pods whose ADDs reach the daemon at the same moment: it is stopped until every plugin
// has connected.
func burst(t *testing.T, n *node.Node, name string, count int) {
	t.Helper()
	pid := n.PID()
	harness.OK(t, syscall.Kill(pid, syscall.SIGSTOP))
	before, err := connections(n) // now: earlier, it may close one that is counted
	harness.OK(t, err)
	added := make(chan error, 1)
	go func() { added <- harness.AddMany(t, n, name, count, harness.Once) }()
	harness.Eventually(t, patience, "every plugin asks", func() error {
		now, err := connections(n)
		if err == nil && now < before+count {
			err = fmt.Errorf("%d connections, want %d", now, before+count)
		}
		return err
	})
	harness.OK(t, syscall.Kill(pid, syscall.SIGCONT))
	harness.OK(t, <-added)
}

// connections counts the connections to the daemon's socket, accepted or not. The kernel lists the
// server's end of each by the path that the socket was bound to, which is another one in the same
// directory.
func connections(n *node.Node) (count int, err error) {
	err = ns.Do(n.Netns, func() error {
		list, err := os.ReadFile("/proc/thread-self/net/unix")
		count = strings.Count(string(list), " "+n.StateDir()+"/")
		return err
	})
	return count, err
}

// TestBurstNeedsFewEC2Calls checks that a burst of pods costs at most one call for each ENI that has
// room and five for each new ENI, and that the ENIs are released afterwards. A machine that stops for
// a moment splits the burst in two, so there may be another try.
func TestBurstNeedsFewEC2Calls(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "m5.large")
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: few.Type, DaemonArgs: append(slices.Clone(lean), "--warm-wait=2m", "--listing-interval=1h", "--orphan-interval=1h")})
	n := l.Nodes()[0]
	for try := 1; ; try++ {
		harness.Settle(t, l)
		l.Cloud.API.ResetCalls()
		burst(t, n, fmt.Sprintf("p%d", try), 20) // 9 + 9 + 2 on three ENIs, or of IPv6 alone 10 + 10 on two
		harness.Settle(t, l)
		if got := len(harness.ENIs(l, n)); got != few.ENIs {
			t.Errorf("%d ENIs, want %d", got, few.ENIs)
		}
		err := thrifty(l.Cloud.API.Stats(), few.ENIs-few.Resting())
		t.Logf("calls: %v", callCounts(l.Cloud.API.Stats()))
		harness.Eventually(t, patience, "ENIs are deleted with the instance", func() (err error) { // set when pods run already
			for _, e := range harness.ENIs(l, n) {
				if !e.Attachment.DeleteOnTermination {
					err = errors.Join(err, fmt.Errorf("%s is not", e.ID))
				}
			}
			return err
		})
		for _, e := range harness.ENIs(l, n) {
			if e.Attachment.DeviceIndex > 0 && (e.Tags[eni.TagInstanceID] != n.InstanceID || e.Tags[eni.TagCluster] != n.Cluster || e.Tags[eni.TagOwner] != eni.Owner || e.Tags[eni.TagCreatedAt] == "") {
				t.Errorf("%s has the tags %v", e.ID, e.Tags)
			}
		}
		harness.RemoveAll(t, n)
		harness.Shows(t, n, "the ENIs go back, and one warm address is left", func(doc introspect.Document) error {
			return errors.Join(harness.Equal("ENIs", len(l.Snapshot().ENIs), few.Resting()), harness.Equal("warm addresses", doc.Totals.Available, 1))
		})
		harness.Settle(t, l)
		if err == nil {
			return
		}
		if try == 5 {
			t.Fatal(err)
		}
	}
}

// thrifty returns which calls were too many for a burst that fills the first ENI and some new ones.
func thrifty(calls map[string]vpc.CallStats, enis int) error {
	var errs []error
	total := 0
	for action, c := range calls {
		most, limited := map[string]int{
			"AssignPrivateIpAddresses": 1, "AssignIpv6Addresses": 1, "CreateNetworkInterface": enis, "AttachNetworkInterface": enis,
		}[action]
		if limited && c.Count > most {
			errs = append(errs, fmt.Errorf("%d calls of %s, want %d at most", c.Count, action, most))
		}
		total += c.Count
	}
	if most := 1 + enis*5; total > most {
		errs = append(errs, fmt.Errorf("%d EC2 calls, want %d at most", total, most))
	}
	return errors.Join(errs...)
}

func callCounts(calls map[string]vpc.CallStats) string {
	var out []string
	for _, a := range slices.Sorted(maps.Keys(calls)) {
		out = append(out, fmt.Sprintf("%s %d", a, calls[a].Count))
	}
	return strings.Join(out, ", ")
}

// TestExhaustedAddressesAreReported uses up the subnet, the instance's ENIs and max-pods. Each error
// names the limit, and pods start again when there is room.
func TestExhaustedAddressesAreReported(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	s := lab.DefaultSpec(1, few.Type)
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: "tiny", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/28")})
	s.Instances = append(s.Instances,
		spec.Instance{Name: "tiny", Type: few.Type, Subnet: "tiny", Role: s.Instances[0].Role},
		spec.Instance{Name: "capped", Type: few.Type, Subnet: "a", Role: s.Instances[0].Role})
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Spec: &s, DaemonArgs: lean, NoDaemons: true})
	for _, n := range l.Nodes() {
		var more []string
		if n.Name == "capped" {
			more = []string{"--max-pods=4"}
		}
		harness.OK(t, n.Start(more...))
		harness.Ready(t, n)
	}
	t.Run("subnet", func(t *testing.T) {
		n, err := l.Node("tiny")
		harness.OK(t, err)
		sn, _ := l.Snapshot().Subnet("tiny")
		leave, room := 2, 3                          // one was warm
		if harness.Families() == ipfamily.OnlyIPv6 { // which only a further ENI takes one of
			leave, room = 0, few.PerENI
		}
		other, err := l.Cloud.ENIs.Create(vpc.CreateRequest{SubnetID: sn.ID, Addresses: vpc.AddressRequest{IPv4Count: sn.Free - 1 - leave}})
		harness.OK(t, err)
		for i := range room - 1 {
			harness.Add(t, n, fmt.Sprintf("p%d", i))
		}
		harness.Eventually(t, patience, "the subnet is full", func() error {
			sn, _ := l.Snapshot().Subnet("tiny")
			return harness.Equal("free addresses", sn.Free, 0)
		})
		harness.Add(t, n, "last")
		full(t, n, "further", "subnet", "free")
		takesPods(t, n)
		harness.OK(t, l.Cloud.ENIs.Delete(other.ID))
		_, err = n.AddPod(harness.Deadline(t, 10*time.Minute), "further", node.PodOptions{}) // its count is asked for once a minute
		harness.OK(t, err)
	})
	t.Run("ENIs", func(t *testing.T) {
		n, err := l.Node("node-1")
		harness.OK(t, err)
		for i := range few.Room() {
			harness.Add(t, n, fmt.Sprintf("p%d", i))
		}
		of := "is full ("
		if harness.Families() == ipfamily.Dual { // of IPv6 each has a prefix
			of = "is full of IPv4 addresses ("
		}
		full(t, n, "further", "every ENI", of, "instance type")
		harness.Eventually(t, patience, "an ADD gives up when it is told to", func() error {
			begun := time.Now()
			harness.Fails(t, harness.AddOnce(t, n, "further"), types.ErrTryAgainLater, "no address")
			took := time.Since(begun)
			if took < 900*time.Millisecond {
				t.Errorf("the ADD waited %v, configured is 1s", took)
			}
			if took > 30*time.Second { // the machine may have stood still once
				return fmt.Errorf("it waited %v, configured is 1s, and 45s if nothing is", took)
			}
			return nil
		})
		takesPods(t, n)
		harness.Remove(t, n, "p0")
		harness.Add(t, n, "further")
	})
	t.Run("max-pods", func(t *testing.T) {
		n, err := l.Node("capped")
		harness.OK(t, err)
		for i := range 4 {
			harness.Add(t, n, fmt.Sprintf("p%d", i))
		}
		full(t, n, "fifth", "max-pods")
		var assigned int
		for i, e := range harness.ENIs(l, n) {
			if assigned += len(e.Secondary); i > 0 { // that of the primary is the node's own
				assigned += len(e.IPv6)
			}
		}
		if assigned != 4 {
			t.Errorf("%d addresses are assigned, max-pods is 4", assigned)
		}
		harness.Remove(t, n, "p1")
		harness.Add(t, n, "fifth")
	})
	harness.Settle(t, l)
}

// TestCoolingContinuesAfterRestart kills the daemon while an address cools. The address cools for the
// rest of its period.
func TestCoolingContinuesAfterRestart(t *testing.T) {
	t.Parallel()
	const period = 10 * time.Second
	few := harness.Few(t, "t3.small")
	maxENI := fmt.Sprintf("--max-eni=%d", few.Resting())
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: few.Type, DaemonArgs: []string{"--cooling-period=" + period.String(), maxENI, "--warm-wait=1m"}})
	n := l.Nodes()[0]
	for i := range few.PerENI {
		harness.Add(t, n, fmt.Sprintf("p%d", i))
	}
	gone, err := n.Pod("p0")
	harness.OK(t, err)
	begun := time.Now()
	harness.Remove(t, n, "p0")
	latest := time.Now().Add(period + time.Second) // by two clocks
	harness.Restart(t, n)
	doc := harness.Document(t, n)
	if over := time.Since(begun) > period; over {
		t.Logf("the machine stood still: %v since the release, it cools for %v", time.Since(begun), period)
	} else if !slices.EqualFunc(doc.Cooling, gone.Addrs, func(c introspect.Cooling, a netip.Addr) bool {
		return c.Address == a && c.RemainingSeconds > 0 && !c.Until.After(latest)
	}) {
		t.Errorf("after the restart %+v cool, want %v for what is left of %v", doc.Cooling, gone.Addrs, period)
	}
	p, err := n.AddPod(harness.Deadline(t, period+patience), "next", harness.Once) // the only address there is, of IPv4 with both families
	harness.OK(t, err)
	if took := time.Since(begun); p.Addr() != gone.Addr() || took < period {
		t.Errorf("%s was given out %v after the release of %s, it cools for %v", p.Addr(), took, gone.Addr(), period)
	}
	harness.Settle(t, l)
}
