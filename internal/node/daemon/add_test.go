package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/rpc"
)

func TestAddIsIdempotent(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.start()
	ns := n.newNetns("a")
	first := mustAdd(t, r, "a", ns)
	if got := first.GetAddresses(); len(got) != 1 || got[0] != "10.0.0.5/32" {
		t.Errorf("addresses %v", got)
	}
	if first.GetHost().GetName() != hostLinkName(keyFor("a")) || first.GetSandbox().GetName() != "eth0" || first.GetMtu() != 9001 {
		t.Errorf("reply %v", first)
	}
	n.kernel.dropRoutes() // the second ADD puts them back
	if again := mustAdd(t, r, "a", ns); again.String() != first.String() {
		t.Errorf("second answer %v, first %v", again, first)
	}
	n.wantKernel(t, 1, 1)
}

func TestAddInNewSandboxOfSameContainerTakesAnotherAddress(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	defer n.tick()()
	mustAdd(t, r, "a", n.newNetns("a"))
	r.wantAddress(t, "a", n.newNetns("a"), "10.0.0.6")
	if _, ok := r.Store.Cooling(n.addrs[0]); !ok {
		t.Error("the first address does not cool")
	}
}

func TestDelLeavesAnotherHolderOfTheAddressAlone(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	mustAdd(t, r, "a", n.newNetns("a"))
	mustDel(t, r, "a")
	n.clock.Advance(30 * time.Second)
	reply := mustAdd(t, r, "b", n.newNetns("b"))
	if reply.GetAddresses()[0] != "10.0.0.5/32" {
		t.Fatalf("address %v", reply.GetAddresses())
	}
	mustDel(t, r, "a")
	if rec, ok := r.Store.ByAddr(n.addrs[0]); !ok || rec.Key != keyFor("b") {
		t.Errorf("holder %v, %v", rec.Key, ok)
	}
	if _, ok := r.Store.Cooling(n.addrs[0]); ok {
		t.Error("a held address has a cooling record")
	}
	_, routes := n.kernel.all.State()
	if want := "10.0.0.5 " + hostLinkName(keyFor("b")); len(routes) != 1 || routes[0] != want {
		t.Errorf("routes %v, want %s", routes, want)
	}
}

// A source gets the annotations that it reads, also from a plugin of an earlier release, and no
// others; NICs get theirs. A request that one of them rejects gets nothing.
func TestAnnotationsReachTheSource(t *testing.T) {
	n := newPortNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8")
	r := n.start()
	r.source.Wants = []string{"berth.dev/pool", "berth.dev/vpc"}
	all := map[string]string{"berth.dev/vpc": "blue", "berth.dev/other": "x"}
	for name, tc := range map[string]struct {
		passed *rpc.Annotations
		want   attachment.PodOptions
	}{
		"some":    {&rpc.Annotations{All: all}, attachment.PodOptions{AnnotationsKnown: true, Annotations: map[string]string{"berth.dev/vpc": "blue"}}},
		"none":    {&rpc.Annotations{}, attachment.PodOptions{AnnotationsKnown: true}},
		"untold":  {nil, attachment.PodOptions{}},
		"earlier": {&rpc.Annotations{Pool: "public"}, attachment.PodOptions{AnnotationsKnown: true, Annotations: map[string]string{"berth.dev/pool": "public"}}},
	} {
		req := addOf(name, n.newNetns(name))
		req.Annotations = tc.passed
		if _, err := r.client.Add(within(t), req, grpc.WaitForReady(true)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, r.source.Wish()); diff != "" {
			t.Errorf("%s: the source hears (-want +got):\n%s", name, diff)
		}
	}
	r.source.Refuses = func(w attachment.PodOptions) error {
		return fmt.Errorf("%s is refused", w.Annotations["berth.dev/vpc"])
	}
	req := addOf("refused", n.newNetns("refused"))
	req.Annotations = &rpc.Annotations{All: all}
	if f := r.refused(t, req, types.ErrInvalidNetworkConfig); f.GetMessage() != "blue is refused" {
		t.Errorf("message %q", f.GetMessage())
	}
	acquired := n.board.count("Acquire")
	r.source.Refuses, r.source.Wants, r.nics.keys = nil, nil, []string{"berth.dev/vpc"}
	r.nics.refuses = func(req attachment.Request) error {
		return fmt.Errorf("%s of %s is refused", req.Options.Annotations["berth.dev/vpc"], req.Pod.Name)
	}
	if f := r.refused(t, req, types.ErrInvalidNetworkConfig); f.GetMessage() != "blue of pod-refused is refused" || n.board.count("Acquire") > acquired {
		t.Errorf("message %q, and NICs were acquired %d times more", f.GetMessage(), n.board.count("Acquire")-acquired)
	}
}

// A caller with a shorter deadline than the daemon's wait also gets the reason.
func TestWaitEndsBeforeItsCallerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		d := n.assemble()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := d.attach(ctx, "a", n.newNetns("a"))
		if f := cnierror.Of(err); err == nil || f.Code != types.ErrTryAgainLater || f.Reason != "subnet-full" {
			t.Errorf("err = %v", err)
		}
		if ctx.Err() != nil {
			t.Error("the answer comes when its caller has left")
		}
	})
}

func TestCancelledWaitLeavesNothing(t *testing.T) {
	n := newNode(t)
	d := n.assemble()
	ctx, cancel := context.WithCancel(context.Background())
	ns := n.newNetns("a")
	done := make(chan error)
	go func() {
		_, err := d.attach(ctx, "a", ns)
		done <- err
	}()
	waitFor(t, func() bool { return d.source.Waiting() == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if d.source.Waiting() != 0 {
		t.Error("a waiter is left")
	}
	n.wantKernel(t, 0, 0)
}

func TestDelEndsTheWaitOfItsAdd(t *testing.T) {
	for _, c := range []struct {
		name   string
		queued bool // the ADD still wants the container's lock when the DEL comes
	}{{"that waits", false}, {"that is about to wait", true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				d := n.assemble()
				ctx, ns := within(t), n.newNetns("a")
				unlock := func() {}
				if c.queued {
					var err error
					if unlock, err = d.attachments.locks.lock(ctx, "a"); err != nil {
						t.Fatal(err)
					}
				}
				added, deleted := make(chan error, 1), make(chan error, 1)
				go func() {
					_, err := d.attach(ctx, "a", ns)
					added <- err
				}()
				synctest.Wait() // the ADD waits, for the address or as the first for the lock
				go func() { deleted <- d.attachments.del(ctx, keyFor("a")) }()
				synctest.Wait()
				unlock()
				if err := <-deleted; err != nil {
					t.Errorf("DEL: %v", err)
				}
				err := <-added
				if f := cnierror.Of(err); err == nil || f.Code != types.ErrTryAgainLater || f.Reason != "deleted" {
					t.Errorf("ADD: %v", err)
				}
				if d.source.Waiting() != 0 || len(d.attachments.acquirer.waits.adds)+len(d.attachments.acquirer.waits.dels) != 0 {
					t.Errorf("%d waiters and %v are left", d.source.Waiting(), d.attachments.acquirer.waits)
				}
			})
		})
	}
}

func TestFailedAddIsUndoneAndAddressNotCooled(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	defer n.tick()()
	n.kernel.set("AddPod", errors.New("no buffer space"))
	r.refused(t, addOf("a", n.newNetns("a")), cnierror.CodeKernel)
	n.kernel.set("AddPod", nil)
	r.wantAddress(t, "b", n.newNetns("b"), "10.0.0.5")
}

func TestAddIntoMissingNetns(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	r.refused(t, addOf("a", "/run/netns/none"), types.ErrInvalidNetNS)
	if r.source.Waiting() != 0 || r.source.Cancels() != 0 {
		t.Error("an address was taken for it")
	}
}

// However many ADDs wait for an address, a DEL and a STATUS get through. An ADD beyond the limit is
// rejected at once, unless it need not wait.
func TestADDsThatWaitLeaveRoomForOthers(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	defer n.tick()()
	mustAdd(t, r, "first", n.newNetns("first"))
	ns := n.newNetns("waiting")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range maxWaiting {
		wg.Go(func() { _ = callAlone(ctx, r, "Add", addOf(fmt.Sprint("waiting-", i), ns)) })
	}
	waitFor(t, func() bool { return r.source.Waiting() == maxWaiting })
	patience := within(t)
	for range pluginConnections - maxWaiting {
		if err := callAlone(patience, r, "Add", addOf("late", ns)); err == nil || !strings.Contains(err.Error(), "no free address") {
			t.Fatalf("an ADD too many: %v", err)
		}
	}
	if err := callAlone(within(t), r, "Status", &rpc.StatusRequest{}); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	again := addOf("first", "/run/netns/first")
	if err := callAlone(within(t), r, "Add", again); err != nil {
		t.Errorf("an ADD that need not wait: %v", err)
	}
	if err := callAlone(within(t), r, "Del", delOf("first")); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

func TestDelVariants(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	defer n.tick()()
	mustDel(t, r, "never-seen")
	ns := n.newNetns("a")
	mustAdd(t, r, "a", ns)
	n.removeNetns(ns)
	mustDel(t, r, "a")
	mustDel(t, r, "a")
	if len(r.Store.Records()) != 0 {
		t.Errorf("records %v", r.Store.Records())
	}
	must(t, r.reaper.await(within(t), hostLinkName(keyFor("a")), attachment.Netns{}))
	n.wantKernel(t, 0, 0)
}

func TestGCReleasesOnlyItsNetwork(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	r := n.start()
	mustAdd(t, r, "keep", n.newNetns("keep"))
	mustAdd(t, r, "stale", n.newNetns("stale"))
	other := addOf("other", n.newNetns("other"))
	other.Attachment.Network = "another"
	if _, err := r.client.Add(within(t), other); err != nil {
		t.Fatal(err)
	}
	n.clock.Advance(time.Second)
	reply, err := r.client.GC(within(t), &rpc.GCRequest{Network: "berth", Valid: []*rpc.Attachment{{ContainerId: "keep", IfName: "eth0"}}})
	must(t, err)
	if got := reply.GetReleased(); len(got) != 1 || got[0].GetContainerId() != "stale" {
		t.Errorf("released %v, want stale", got)
	}
	if len(r.Store.Records()) != 2 {
		t.Errorf("records %v", r.Store.Records())
	}
}

func TestCheck(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	ns := n.newNetns("a")
	check := func(netns string, addrs ...string) error {
		_, err := r.client.Check(within(t), &rpc.CheckRequest{Attachment: addOf("a", "").Attachment, Netns: netns, Addresses: addrs}, grpc.WaitForReady(true))
		return err
	}
	wantFailure(t, check(ns), types.ErrUnknownContainer)
	mustAdd(t, r, "a", ns)
	if err := check(ns, "10.0.0.5/32"); err != nil {
		t.Error(err)
	}
	wantFailure(t, check(ns, "10.0.0.9/32"), cnierror.CodeMismatch)
	wantFailure(t, check(n.newNetns("b")), cnierror.CodeMismatch)
	n.kernel.dropRoutes()
	wantFailure(t, check(ns), cnierror.CodeMismatch)
}
