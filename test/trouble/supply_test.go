package trouble

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/spec"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// burst makes pods whose ADDs all reach the daemon in one moment: it is
// stopped until every plugin has connected.
func burst(t *testing.T, n *node.Node, name string, count int) {
	t.Helper()
	pid := n.PID()
	harness.OK(t, syscall.Kill(pid, syscall.SIGSTOP))
	before, err := connections(n) // now: earlier, it may close one that is counted
	harness.OK(t, err)
	var wg sync.WaitGroup
	errs := make([]error, count)
	ctx := within(t, patience)
	for i := range count {
		wg.Go(func() {
			_, errs[i] = n.AddPod(ctx, fmt.Sprintf("%s-%d", name, i), node.PodOptions{Once: true})
		})
	}
	harness.Eventually(t, patience, "every plugin asks", func() error {
		now, err := connections(n)
		if err == nil && now < before+count {
			err = fmt.Errorf("%d connections, want %d", now, before+count)
		}
		return err
	})
	harness.OK(t, syscall.Kill(pid, syscall.SIGCONT))
	wg.Wait()
	harness.OK(t, errors.Join(errs...))
}

// connections counts those to the daemon's socket, accepted or not: the kernel
// lists the server's end of each by the path that the socket was bound to, which
// is another one in the same directory.
func connections(n *node.Node) (count int, err error) {
	err = ns.Do(n.Netns, func() error {
		list, err := os.ReadFile("/proc/thread-self/net/unix")
		count = strings.Count(string(list), " "+n.StateDir()+"/")
		return err
	})
	return count, err
}

// TestBurst: a burst of pods costs at most one call for each ENI that it
// touches and five for a new ENI, and the ENIs go back after it. A machine that
// stands still in the middle of a burst makes it two, so there may be another.
func TestBurst(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 1, InstanceType: "m5.large", DaemonArgs: append(quick(lean...), "--warm-wait=2m", "--listing-interval=1h", "--orphan-interval=1h")})
	n := l.Nodes()[0]
	for try := 1; ; try++ {
		harness.Settle(t, l)
		l.Cloud.ResetCalls()
		burst(t, n, fmt.Sprintf("p%d", try), 20) // 9 + 9 + 2 on three ENIs
		harness.Settle(t, l)
		err := thrifty(l.Cloud.Calls())
		t.Logf("calls: %v", callCounts(l.Cloud.Calls()))
		harness.Eventually(t, patience, "ENIs are deleted with the instance", func() (err error) { // set when pods run already
			for _, e := range enis(l, n) {
				if !e.Attachment.DeleteOnTermination {
					err = errors.Join(err, fmt.Errorf("%s is not", e.ID))
				}
			}
			return err
		})
		for _, e := range enis(l, n) {
			if e.Attachment.DeviceIndex > 0 && (e.Tags[eni.TagInstanceID] != n.InstanceID || e.Tags[eni.TagCluster] != n.Cluster || e.Tags[eni.TagOwner] != eni.Owner || e.Tags[eni.TagCreatedAt] == "") {
				t.Errorf("%s has the tags %v", e.ID, e.Tags)
			}
		}
		removeAll(t, n)
		harness.Eventually(t, patience, "the ENIs go back, and one warm address is left", func() error {
			doc, err := lab.Document(t.Context(), n)
			if got := len(l.Books().ENIs); err == nil && (got != 1 || doc.Totals.Available != 1) {
				err = fmt.Errorf("%d ENIs, want the primary alone; totals %+v", got, doc.Totals)
			}
			return err
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

// thrifty tells what of the calls was too much for a burst that needs two new
// ENIs and more on the primary one.
func thrifty(calls map[string]vpc.CallStats) error {
	var errs []error
	total := 0
	for action, c := range calls {
		most, limited := map[string]int{
			"AssignPrivateIpAddresses": 1, "CreateNetworkInterface": 2, "AttachNetworkInterface": 2,
		}[action]
		if limited && c.Count > most {
			errs = append(errs, fmt.Errorf("%d calls of %s, want %d at most", c.Count, action, most))
		}
		total += c.Count
	}
	if most := 1 + 2*5; total > most {
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

// TestThrottled refuses each growing call a few times: it is made again as it
// was, and there is never another ENI instead.
func TestThrottled(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: append(quick(lean...), "--warm-wait=2m")})
	n := l.Nodes()[0]
	add(t, n, "first")
	harness.Settle(t, l)
	l.Cloud.ResetCalls()
	const times = 3
	for _, action := range []string{"AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface"} {
		_, err := l.Cloud.Inject(spec.Fault{Action: action, Kind: "throttle", Count: times})
		harness.OK(t, err)
	}
	addMany(t, n, "p", 4)
	harness.Settle(t, l)
	calls := l.Cloud.Calls()
	if got := len(enis(l, n)); got != 2 {
		t.Errorf("%d ENIs, five pods need 2", got)
	}
	tokens := map[string]bool{}
	for _, c := range l.Cloud.CallLog() {
		if c.Action == "CreateNetworkInterface" {
			tokens[strings.Join(c.Params["ClientToken"], "")] = true
		}
	}
	for _, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface"} {
		// One whose answer came too late is made again, too.
		if c := calls[action]; c.Count <= times || c.Errors["RequestLimitExceeded"] != times {
			t.Errorf("%s: %d calls, %v refused; want %d and one that works", action, c.Count, c.Errors, times)
		}
	}
	if len(tokens) != 1 || tokens[""] {
		t.Errorf("a throttled creation was repeated with client tokens %v, want one", slices.Collect(maps.Keys(tokens)))
	}
}

// TestFragmentedSubnet takes one address of every block of sixteen: prefixes
// cannot be had, so pods get single addresses; an ENI is not made instead.
func TestFragmentedSubnet(t *testing.T) {
	t.Parallel()
	s := lab.DefaultSpec(1, "t3.small")
	cidr := netip.MustParsePrefix("10.0.8.0/25")
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: "small", Zone: "lab-1a", CIDR: cidr})
	s.Instances[0].Subnet = "small"
	l := harness.Raise(t, lab.Options{Spec: &s, DaemonArgs: append(quick("--warm-wait=2m"), "--enable-prefix-delegation", "--warm-prefix-target=0", "--warm-ip-target=1", "--minimum-ip-target=1"), NoDaemons: true})
	n := l.Nodes()[0]
	sn, _ := l.Books().Subnet("small")
	var taken []string
	for a := cidr.Addr(); cidr.Contains(a); {
		for range 7 {
			a = a.Next()
		}
		if e, err := l.Cloud.CreateNetworkInterface(vpc.CreateRequest{SubnetID: sn.ID, Primary: a}); err == nil {
			taken = append(taken, e.ID)
		}
		for range 9 {
			a = a.Next()
		}
	}
	harness.OK(t, n.Start())
	ready(t, n)
	addMany(t, n, "p", 2)
	own := enis(l, n)
	if len(own) != 1 || len(own[0].Prefixes) > 0 || len(own[0].Secondary) < 2 {
		t.Errorf("in a fragmented subnet the node has %d ENIs, the first with prefixes %v and addresses %v", len(own), own[0].Prefixes, own[0].Secondary)
	}
	for _, id := range taken {
		harness.OK(t, l.Cloud.DeleteNetworkInterface(id))
	}
	// A refused subnet is asked for prefixes again after minutes, a new daemon at once.
	restart(t, n)
	addMany(t, n, "q", 3)
	harness.Eventually(t, patience, "prefixes", func() error {
		for _, e := range enis(l, n) {
			if len(e.Prefixes) > 0 {
				return nil
			}
		}
		return errors.New("no prefix yet")
	})
	harness.Settle(t, l)
}

// TestCoolingOutlivesTheDaemon: an address that cools when the daemon is
// killed cools on, for what is left of its time.
func TestCoolingOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	const period = 20 * time.Second
	l := harness.Raise(t, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: append(quick("--cooling-period="+period.String()), "--max-eni=1", "--warm-wait=1m")})
	n := l.Nodes()[0]
	for i := range 3 {
		add(t, n, fmt.Sprintf("p%d", i))
	}
	gone, err := n.Pod("p0")
	harness.OK(t, err)
	begun := time.Now()
	remove(t, n, "p0")
	latest := time.Now().Add(period + time.Second) // by two clocks
	harness.OK(t, n.Kill())
	harness.OK(t, n.Start())
	ready(t, n)
	doc := document(t, n)
	if over := time.Since(begun) > period; over {
		t.Logf("the machine stood still: %v since the release, it cools for %v", time.Since(begun), period)
	} else if len(doc.Cooling) != 1 || doc.Cooling[0].Address != gone.Addr() || doc.Cooling[0].RemainingSeconds <= 0 || doc.Cooling[0].Until.After(latest) {
		t.Errorf("after the restart %+v cool, want %s for what is left of %v", doc.Cooling, gone.Addr(), period)
	}
	p, err := n.AddPod(within(t, period+patience), "next", node.PodOptions{Once: true}) // the only address there is
	harness.OK(t, err)
	if took := time.Since(begun); p.Addr() != gone.Addr() || took < period {
		t.Errorf("%s was given out %v after the release of %s, it cools for %v", p.Addr(), took, gone.Addr(), period)
	}
	harness.Settle(t, l)
}

// TestOthersENIs: what is not Berth's is neither changed, counted nor used,
// but takes its place on the instance.
func TestOthersENIs(t *testing.T) {
	t.Parallel()
	s := lab.DefaultSpec(3, "t3.small")
	s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, Secondary: 2}}
	s.Instances[1].Interfaces = []spec.Interface{{DeviceIndex: 1, Secondary: 2, Tags: map[string]string{eni.TagUnmanaged: "true"}}}
	s.Instances[2].Interfaces = []spec.Interface{{DeviceIndex: 1, Secondary: 2, Type: "efa"}}
	l := harness.Raise(t, lab.Options{Spec: &s, DaemonArgs: quick(lean...)})
	before := map[string]vpc.ENI{}
	for _, n := range l.Nodes() {
		before[n.Name] = enis(l, n)[1]
	}
	// The second node's carries every tag of Berth's, besides.
	second := l.Nodes()[1]
	tags := vpc.Tags{eni.TagCluster: second.Cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: second.InstanceID}
	harness.OK(t, l.Cloud.CreateTags([]string{before[second.Name].ID}, tags))
	for i, n := range l.Nodes() {
		t.Run([]string{"foreign", "unmanaged", "EFA"}[i], func(t *testing.T) {
			for k := range 6 { // two ENIs of three addresses are left to Berth
				add(t, n, fmt.Sprintf("p%d", k))
			}
			full(t, n, "seventh")
			was := before[n.Name]
			now, _ := l.Books().ENI(was.ID)
			if now.Attachment == nil || !slices.Equal(was.Secondary, now.Secondary) || was.Attachment.DeleteOnTermination != now.Attachment.DeleteOnTermination {
				t.Errorf("it was changed from %+v to %+v", was, now)
			}
			for _, e := range document(t, n).ENIs {
				if e.ID == was.ID {
					t.Errorf("it is counted: %+v", e)
				}
			}
			for _, p := range n.Pods() {
				if was.Owns(p.Addr()) {
					t.Errorf("pod %s has its address %s", p.Name, p.Addr())
				}
			}
			removeAll(t, n)
		})
	}
	harness.Eventually(t, patience, "Berth's own ENIs go back", func() error {
		if got := len(l.Books().ENIs); got != 6 {
			return fmt.Errorf("%d ENIs, want two a node", got)
		}
		return nil
	})
	harness.Settle(t, l)
}

// TestOrphans leaves detached ENIs of several owners: only those of this
// cluster's vanished instances are removed.
func TestOrphans(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 2, InstanceType: "t3.small", DaemonArgs: quick("--orphan-age=2s", "--orphan-interval=1s")})
	n, other := l.Nodes()[0], l.Nodes()[1]
	leave := func(cluster, owner, instance, description string) string {
		tags := vpc.Tags{
			eni.TagCluster: cluster, eni.TagOwner: owner, eni.TagInstanceID: instance,
			eni.TagCreatedAt: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339),
		}
		e, err := l.Cloud.CreateNetworkInterface(vpc.CreateRequest{SubnetID: enis(l, n)[0].SubnetID, Description: description, Tags: tags})
		harness.OK(t, err)
		return e.ID
	}
	gone := other.InstanceID
	harness.OK(t, l.Cloud.TerminateInstance(other.Name))
	const unknown = "i-00000000000000bad"
	kept := map[string]string{
		"another cluster's":                leave("other", eni.Owner, gone, eni.Description(gone)),
		"another owner's":                  leave(n.Cluster, "somebody", gone, eni.Description(gone)),
		"somebody's":                       leave(n.Cluster, eni.Owner, gone, "a database's"),
		"another one's by its description": leave(n.Cluster, eni.Owner, gone, eni.Description(n.InstanceID)),
	}
	orphan := leave(n.Cluster, eni.Owner, gone, eni.Description(gone))
	never := leave(n.Cluster, eni.Owner, unknown, eni.Description(unknown))
	adopted := leave(n.Cluster, eni.Owner, gone, eni.Description(unknown)) // attached to another instance by hand, and then adopted
	harness.Eventually(t, patience, "the orphans are removed", func() error {
		for _, id := range []string{orphan, never, adopted} {
			if _, ok := l.Books().ENI(id); ok {
				return fmt.Errorf("%s is there", id)
			}
		}
		return nil
	})
	for what, id := range kept {
		if _, ok := l.Books().ENI(id); !ok {
			t.Errorf("%s ENI was removed", what)
		}
		harness.OK(t, l.Cloud.DeleteNetworkInterface(id))
	}
}
