package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/introspect"
)

// unbound returns the NIC of a port that is not bound to any node yet.
func unbound(ifName, port string) attachment.NIC {
	nic := testNIC(ifName, port)
	nic.Plug = attachment.Plug{}
	return nic
}

// An ADD waits for its NICs, then for an address, then until its NICs are active, in
// total no longer than the longer of the two waits.
func TestAddWaitsForNICs(t *testing.T) {
	const noNICs, noLinks, noTraffic = "no NICs for the pod: ", "the pod's NICs are not on the node yet: ", "the pod's NICs carry no packets yet: "
	const bound, build = "NIC eth1: port p-1 is bound to no node", "NIC eth1: port p-1 is BUILD"
	for name, tc := range map[string]struct {
		prepare func(n *node, r *running)
		after   time.Duration
		code    uint // 0: success
		reason  string
		says    string
	}{
		"no wait": {func(_ *node, _ *running) {}, 0, 0, "", ""},
		"bound in time": {func(_ *node, r *running) {
			r.nics.bind("pod-a", unbound("eth1", "p-1"))
			time.AfterFunc(50*time.Second, func() { r.nics.bind("pod-a", testNIC("eth1", "p-1")) })
		}, 50 * time.Second, 0, "", ""},
		"never bound": {func(_ *node, r *running) { r.nics.bind("pod-a", unbound("eth1", "p-1")) },
			time.Minute, types.ErrTryAgainLater, "port-build", noNICs + bound},
		"no address": {func(_ *node, r *running) { r.source.Drain() },
			time.Minute, types.ErrTryAgainLater, "subnet-full", noAddress + "the fake source has no free address"},
		"no address for a pod without NICs": {func(_ *node, r *running) { r.nics.bind("pod-a"); r.source.Drain() },
			45 * time.Second, types.ErrTryAgainLater, "subnet-full", noAddress + "the fake source has no free address"},
		"shared wait for NICs and address": {func(_ *node, r *running) {
			r.nics.bind("pod-a", unbound("eth1", "p-1"))
			r.source.Drain()
			time.AfterFunc(50*time.Second, func() { r.nics.bind("pod-a", testNIC("eth1", "p-1")) })
		}, time.Minute, types.ErrTryAgainLater, "subnet-full", noAddress},
		"link appears in time": {func(_ *node, r *running) {
			r.nics.delay(true)
			time.AfterFunc(55*time.Second, func() { r.nics.delay(false) })
		}, 55 * time.Second, 0, "", ""},
		"link never appears": {func(_ *node, r *running) { r.nics.delay(true) },
			time.Minute, types.ErrTryAgainLater, "port-build", noLinks + "NIC eth1: port p-1 has no link"},
		"DEL during the wait for the link": {func(_ *node, r *running) {
			r.nics.delay(true)
			time.AfterFunc(time.Second, func() { _ = r.attachments.del(context.Background(), keyFor("a")) })
		}, time.Second, types.ErrTryAgainLater, "deleted", noLinks + errDeleted.Error()},
		"active in time": {func(_ *node, r *running) {
			r.nics.hush(true)
			time.AfterFunc(55*time.Second, func() { r.nics.hush(false) })
		}, 55 * time.Second, 0, "", ""},
		"never active": {func(_ *node, r *running) { r.nics.hush(true) },
			time.Minute, types.ErrTryAgainLater, "port-build", noTraffic + build},
		"DEL during the wait for the binding": {func(_ *node, r *running) {
			r.nics.bind("pod-a", unbound("eth1", "p-1"))
			time.AfterFunc(time.Second, func() { _ = r.attachments.del(context.Background(), keyFor("a")) })
		}, time.Second, types.ErrTryAgainLater, "deleted", noNICs + errDeleted.Error()},
		"DEL during the wait for activity": {func(_ *node, r *running) {
			r.nics.hush(true)
			time.AfterFunc(time.Second, func() { _ = r.attachments.del(context.Background(), keyFor("a")) })
		}, time.Second, types.ErrTryAgainLater, "deleted", noTraffic + errDeleted.Error()},
		"daemon shuts down": {func(_ *node, r *running) {
			r.nics.hush(true)
			time.AfterFunc(time.Second, func() { r.drain(part.ErrDraining) })
		}, time.Second, types.ErrTryAgainLater, "draining", "berthd is being restarted"},
		"NICs fail": {func(n *node, _ *running) { n.board.set("Acquire", errors.New("no idea")) },
			0, types.ErrTryAgainLater, "source", noNICs + "no idea"},
		"no address for other pods": {func(_ *node, r *running) {
			r.source.Drain()
			r.nics.bind("pod-a", testBranch("p-1"))
		}, 0, 0, "", ""},
		"no NIC with the interface name": {func(_ *node, r *running) { r.source.Nothing = true },
			0, types.ErrInvalidNetworkConfig, "no-nic", "no NIC of the pod is named eth0"},
		"port of another pod": {func(n *node, r *running) {
			other := recordOf("b", attachment.Lease{IPv4: n.addrs[1]})
			other.NICs = []attachment.NIC{testNIC("eth1", "p-1")}
			must(t, r.Store.Put(other))
		}, 0, types.ErrTryAgainLater, "port-in-use", "port p-1 of NIC eth1 is still plugged for berth/b/eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newPortNode(t, "10.0.0.5", "10.0.0.6")
				n.nicWait = time.Minute
				r := n.assemble()
				r.nics.bind("pod-a", testNIC("eth1", "p-1"))
				ctx, end := context.WithCancel(context.Background())
				var reaped = make(chan struct{})
				go func() { defer close(reaped); r.reaper.run(ctx) }()
				defer func() { end(); <-reaped }()
				start := time.Now()
				tc.prepare(n, r)
				want := attachment.Record{Key: keyFor("a"), Netns: attachment.Netns{Path: n.newNetns("a")}, Pod: attachment.Pod{Name: "pod-a"}}
				rec, err := r.attachments.add(ctx, want, attachment.PodOptions{})
				if took := time.Since(start); took != tc.after {
					t.Errorf("ADD took %v, want %v", took, tc.after)
				}
				if tc.code == 0 {
					must(t, err)
					n.board.want(t, "p-1")
					return
				}
				if f := cnierror.Of(err); err == nil || f.Code != tc.code || f.Reason != tc.reason || !strings.HasPrefix(f.Message, tc.says) {
					t.Errorf("ADD = %+v, %+v; want code %d, reason %q, message %q", rec, err, tc.code, tc.reason, tc.says)
				}
				synctest.Wait()
				if _, ok := r.Store.Get(keyFor("a")); ok || len(r.attachments.acquirer.waits.adds) > 0 {
					t.Error("the failed ADD left a record or a wait")
				}
				n.board.want(t)
				n.wantKernel(t, 0, 0)
				if holder, held := r.source.Holder(n.addrs[0]); held && holder == keyFor("a") || r.source.Waiting() > 0 {
					t.Errorf("the failed ADD still holds or waits for %s", n.addrs[0])
				}
			})
		})
	}
}

// The node's document and Events give the reason for the wait, without mistaking NICs for addresses.
func TestEventsOfPodWaitingForNICs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPortNode(t, "10.0.0.5")
		n.nicWait = 10 * time.Second
		events, req := newTeller(n, false), addOf("a", n.newNetns("a"))
		nics := events.daemon.nics
		nics.bind("pod-a", unbound("eth1", "p-1"))
		start := events.daemon.Clock.Now().UTC()
		ended := make(chan struct{})
		go func() { defer close(ended); _ = events.add(t.Context(), req) }()
		synctest.Wait()
		v := askPod(t, frontOf(events.daemon), "namespace=default&name=pod-a")
		want := []introspect.Waiting{{ContainerID: "a", Interface: "eth0", Since: start, Reason: "port-build", Message: "NIC eth1: port p-1 is bound to no node"}}
		if diff := cmp.Diff(want, v.Waiting); diff != "" {
			t.Errorf("waiting (-want +got):\n%s", diff)
		}
		<-ended
		events.want(t,
			"2.5s waits for network default/pod-a port-build: NIC eth1: port p-1 is bound to no node",
			"45s failed default/pod-a port-build: no NICs for the pod: NIC eth1: port p-1 is bound to no node")
		nics.hush(true)
		nics.bind("pod-a", testNIC("eth1", "p-1"))
		ended = make(chan struct{})
		go func() { defer close(ended); _ = events.add(t.Context(), req) }()
		time.Sleep(3 * time.Second) //nolint:forbidigo // virtual time
		nics.hush(false)
		<-ended
		events.want(t,
			"2.5s waits for network default/pod-a port-build: NIC eth1: port p-1 is bound to no node",
			"45s failed default/pod-a port-build: no NICs for the pod: NIC eth1: port p-1 is bound to no node",
			"47.5s waits for network default/pod-a port-build: NIC eth1: port p-1 is BUILD",
			"48s attached default/pod-a : 10.0.0.5/32,192.168.0.12/24")
	})
}

// The sweep neither waits for a waiting ADD, nor removes it.
func TestSweepIgnoresWaitingAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPortNode(t, "10.0.0.5")
		r := n.assemble()
		r.nics.hush(true)
		r.nics.bind("", testNIC("eth1", "p-1"))
		added := make(chan error)
		go func() {
			_, err := r.attach(t.Context(), "a", n.newNetns("a"))
			added <- err
		}()
		synctest.Wait()
		n.clock.Advance(kernelTimeout)
		start := time.Now()
		r.sweeper.sweep(t.Context())
		if took := time.Since(start); took > 0 {
			t.Errorf("the sweep took %v, want no wait", took)
		}
		r.nics.hush(false)
		must(t, <-added)
		n.board.want(t, "p-1")
	})
}

// DEL of a pod with a branch returns before its branch is unplugged. The next sandbox of the pod, whose ADD gets the same
// port, waits for that.
func TestADDWaitsForTheBranchOfTheFormerSandbox(t *testing.T) {
	n := newPortNode(t)
	r := n.start()
	r.source.Nothing = true
	r.nics.bind("pod-a", testBranch("b-1"))
	mustAdd(t, r, "a", n.newNetns("a"))
	block, entered := make(chan struct{}), make(chan struct{})
	n.board.onEnter("Unplug", func() { close(entered); <-block })
	mustDel(t, r, "a")
	next := addOf("b", n.newNetns("b"))
	next.Pod = addOf("a", "").GetPod()
	r.addAfterRemoval(t, next, "a", entered, block)
	n.board.want(t, "b-1")
	if _, ok := r.Store.Get(keyFor("a")); ok {
		t.Error("the record of the former sandbox still exists")
	}
}
