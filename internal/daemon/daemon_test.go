package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/heartbeat"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

// node is a machine that outlives the daemons that are started on it: its
// kernel, its directory, its namespaces.
type node struct {
	t      *testing.T
	dir    string
	kernel *fakeKernel
	clock  *clock.Fake
	ident  attachment.Node
	addrs  []netip.Addr
	listed map[string]bool // what the runtime lists; nil: there is no runtime to ask

	mu     sync.Mutex // guards netns
	netns  map[string]attachment.Netns
	nextNS uint64
}

// running is one daemon on a node and a client of it.
type running struct {
	*Daemon
	front  *Front
	source *sourcefake.Source
	client rpc.NodeClient
	conn   *grpc.ClientConn
	socket string
	stop   func() error
}

func newNode(t *testing.T, addrs ...string) *node {
	n := &node{
		t: t, dir: t.TempDir(), kernel: newFakeKernel(), clock: clock.NewFake(time.Unix(1700000000, 0)),
		ident: attachment.Node{InstanceID: "i-1", BootID: "boot-1"}, netns: map[string]attachment.Netns{},
	}
	for _, a := range addrs {
		n.addrs = append(n.addrs, netip.MustParseAddr(a))
	}
	return n
}

// newNetns makes a namespace known and returns its path.
func (n *node) newNetns(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nextNS++
	path := "/run/netns/" + name
	n.netns[path] = attachment.Netns{Path: path, Dev: 4, Inode: 4026530000 + n.nextNS}
	return path
}

func (n *node) removeNetns(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.netns, path)
}

func (n *node) inspect(path string) (attachment.Netns, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ns, ok := n.netns[path]; ok {
		return ns, nil
	}
	return attachment.Netns{}, fmt.Errorf("%s %w", path, errNetnsGone)
}

// Sandboxes implements Sandboxes.
func (n *node) Sandboxes(context.Context) (map[string]bool, error) { return n.listed, nil }

// assemble makes a daemon without running it.
func (n *node) assemble() *running {
	n.t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, bad, err := attachment.Open(filepath.Join(n.dir, "attachments"), n.ident, log)
	if err != nil {
		n.t.Fatal(err)
	}
	src := sourcefake.New(n.clock, 30*time.Second, n.addrs...)
	r := &running{socket: filepath.Join(n.dir, "berthd.sock")}
	o := Options{
		Source: src, Kernel: n.kernel, Store: store, Quarantined: bad, Metrics: NewMetrics(), Clock: n.clock, Log: log,
		StateDir: n.dir, WarmWait: 45 * time.Second, DrainTimeout: 5 * time.Second, NetnsGrace: time.Minute,
		InspectNetns: n.inspect,
	}
	if n.listed != nil {
		o.Sandboxes = n
	}
	r.Daemon, r.source = New(o), src
	return r
}

// start runs a daemon until the test or stop ends it.
func (n *node) start() *running {
	n.t.Helper()
	r := n.assemble()
	l, err := Listen(r.socket)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	r.front = NewFront(FrontOptions{Plugin: l, Socket: r.socket, Metrics: r.Metrics, Clock: n.clock, Log: r.Log})
	go func() { done <- r.Run(ctx, r.front) }()
	r.conn, err = grpc.NewClient("unix://"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	r.client = rpc.NewNodeClient(r.conn)
	r.stop = sync.OnceValue(func() error {
		cancel()
		advance := n.tick() // the fake clock stands still, the reaper must not wait for it
		defer advance()
		return errors.Join(<-done, r.conn.Close())
	})
	n.t.Cleanup(func() {
		if err := r.stop(); err != nil {
			n.t.Errorf("daemon ended with %v", err)
		}
	})
	return r
}

// tick lets short waits of the daemon (the reaper's gathering) pass while a
// test waits for real; the returned function ends it.
func (n *node) tick() (stop func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
				n.clock.Advance(time.Millisecond)
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

func addOf(container, netns string) *rpc.AddRequest {
	return &rpc.AddRequest{
		Attachment: &rpc.Attachment{Network: "berth", ContainerId: container, IfName: "eth0"},
		Netns:      netns,
		Pod:        &rpc.Pod{Namespace: "default", Name: "pod-" + container, Uid: "uid-" + container},
	}
}

func delOf(container string) *rpc.DelRequest {
	return &rpc.DelRequest{Attachment: &rpc.Attachment{Network: "berth", ContainerId: container, IfName: "eth0"}}
}

func keyFor(container string) attachment.Key {
	return attachment.Key{Network: "berth", ContainerID: container, IfName: "eth0"}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func mustAdd(t *testing.T, r *running, container, netns string) *rpc.AddReply {
	t.Helper()
	reply, err := r.client.Add(within(t), addOf(container, netns), grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("ADD %s: %v", container, err)
	}
	return reply
}

func mustDel(t *testing.T, r *running, container string) {
	t.Helper()
	if _, err := r.client.Del(within(t), delOf(container), grpc.WaitForReady(true)); err != nil {
		t.Fatalf("DEL %s: %v", container, err)
	}
}

// wantFailure checks the CNI error that a call carried.
func wantFailure(t *testing.T, err error, code uint) *rpc.Failure {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*rpc.Failure); ok {
			if f.GetCode() != uint32(code) {
				t.Fatalf("CNI code %d (%s), want %d", f.GetCode(), f.GetMessage(), code)
			}
			return f
		}
	}
	t.Fatalf("error %v carries no Failure", err)
	return nil
}

func (n *node) wantKernel(t *testing.T, links, routes int) {
	t.Helper()
	l, r := n.kernel.state()
	if len(l) != links || len(r) != routes {
		t.Errorf("kernel has links %v and routes %v, want %d and %d", l, r, links, routes)
	}
}

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
	n.kernel.mu.Lock()
	clear(n.kernel.routes) // someone removed them: the second ADD puts them back
	n.kernel.mu.Unlock()
	if again := mustAdd(t, r, "a", ns); again.String() != first.String() {
		t.Errorf("second answer %v, first %v", again, first)
	}
	n.wantKernel(t, 1, 1)
}

func TestAddInNewSandboxOfSameContainerTakesAnotherAddress(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.start()
	defer n.tick()()
	mustAdd(t, r, "a", n.newNetns("a"))
	if got := mustAdd(t, r, "a", n.newNetns("a")).GetAddresses()[0]; got != "10.0.0.6/32" {
		t.Errorf("address %s, want the other one: the first cools", got)
	}
	if _, ok := r.Store.Cooling(n.addrs[0]); !ok {
		t.Error("the first address does not cool")
	}
}

func TestDelVariants(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
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
	if err := r.reaper.await(within(t), hostLinkName(keyFor("a")), attachment.Netns{}); err != nil {
		t.Fatal(err)
	}
	n.wantKernel(t, 0, 0)
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
	_, routes := n.kernel.state()
	if want := "10.0.0.5 " + hostLinkName(keyFor("b")); len(routes) != 1 || routes[0] != want {
		t.Errorf("routes %v, want %s", routes, want)
	}
}

func TestAddWithoutAddressNamesTheReason(t *testing.T) {
	n := newNode(t)
	r := n.start()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := r.client.Add(ctx, addOf("a", n.newNetns("a")), grpc.WaitForReady(true))
	f := wantFailure(t, err, types.ErrTryAgainLater)
	if f.GetMessage() != "no address for the pod: the fake source has no free address" {
		t.Errorf("message %q", f.GetMessage())
	}
	if r.source.Waiting() != 0 || len(r.Store.Records()) != 0 {
		t.Errorf("%d waiters and records %v left", r.source.Waiting(), r.Store.Records())
	}
}

func TestCancelledWaitLeavesNothing(t *testing.T) {
	n := newNode(t)
	d := n.assemble()
	ctx, cancel := context.WithCancel(context.Background())
	ns := n.newNetns("a")
	done := make(chan error)
	go func() {
		_, err := d.add(ctx, addRequest{key: keyFor("a"), netns: ns})
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

func TestAddCancelledDuringKernelWorkIsUndone(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	d := n.assemble()
	loops, stop := context.WithCancel(context.Background())
	defer stop()
	go d.reaper.run(loops)
	defer n.tick()()
	ctx, cancel := context.WithCancel(context.Background())
	n.kernel.onEnter("AddPod", cancel)
	_, err := d.add(ctx, addRequest{key: keyFor("a"), netns: n.newNetns("a")})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	n.wantKernel(t, 0, 0)
	if len(d.Store.Records()) != 0 || d.source.Cancels() != 1 {
		t.Errorf("records %v, %d cancels", d.Store.Records(), d.source.Cancels())
	}
}

func TestFailedAddIsUndoneAndAddressNotCooled(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	defer n.tick()()
	n.kernel.set("AddPod", errors.New("no buffer space"))
	_, err := r.client.Add(within(t), addOf("a", n.newNetns("a")), grpc.WaitForReady(true))
	wantFailure(t, err, CodeKernel)
	n.kernel.set("AddPod", nil)
	if got := mustAdd(t, r, "b", n.newNetns("b")).GetAddresses()[0]; got != "10.0.0.5/32" {
		t.Errorf("address %s", got)
	}
}

func TestAddIntoMissingNetns(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	_, err := r.client.Add(within(t), addOf("a", "/run/netns/none"), grpc.WaitForReady(true))
	wantFailure(t, err, types.ErrInvalidNetNS)
	if r.source.Waiting() != 0 || r.source.Cancels() != 0 {
		t.Error("an address was taken for it")
	}
}

func TestBadRequests(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	for name, req := range map[string]*rpc.AddRequest{
		"no container":  {Netns: "/x", Attachment: &rpc.Attachment{IfName: "eth0"}},
		"no attachment": {Netns: "/x"},
		"long ifname":   {Netns: "/x", Attachment: &rpc.Attachment{ContainerId: "a", IfName: "abcdefghijklmnop"}},
		"path ifname":   {Netns: "/x", Attachment: &rpc.Attachment{ContainerId: "a", IfName: "../x"}},
		"no netns":      {Attachment: &rpc.Attachment{ContainerId: "a", IfName: "eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.client.Add(within(t), req, grpc.WaitForReady(true))
			wantFailure(t, err, types.ErrInvalidEnvironmentVariables)
		})
	}
}

func TestPanicBecomesAnError(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	defer n.tick()()
	ns := n.newNetns("a")
	n.kernel.onEnter("AddPod", func() { panic("boom") })
	_, err := r.client.Add(within(t), addOf("a", ns), grpc.WaitForReady(true))
	wantFailure(t, err, types.ErrInternal)
	n.kernel.onEnter("AddPod", nil)
	mustAdd(t, r, "a", ns) // the container's lock is free, the half-made attachment was cleared
	mustDel(t, r, "a")
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
	if err != nil {
		t.Fatal(err)
	}
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
	wantFailure(t, check(ns, "10.0.0.9/32"), CodeMismatch)
	wantFailure(t, check(n.newNetns("b")), CodeMismatch)
	n.kernel.mu.Lock()
	clear(n.kernel.routes)
	n.kernel.mu.Unlock()
	wantFailure(t, check(ns), CodeMismatch)
}

func TestStatusRemembersAcrossRestarts(t *testing.T) {
	n := newNode(t)
	r := n.start()
	ask := func(r *running) error {
		_, err := r.client.Status(within(t), &rpc.StatusRequest{}, grpc.WaitForReady(true))
		return err
	}
	wantFailure(t, ask(r), types.ErrPluginNotAvailable)
	r.source.Supply(netip.MustParseAddr("10.0.0.5"))
	if err := ask(r); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = n.start() // its source knows no address
	if err := ask(r); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	n.ident.InstanceID = "i-2"
	wantFailure(t, ask(n.start()), types.ErrPluginNotAvailable)
}

func TestHeartbeatOutlivesARestartOfAUsableNode(t *testing.T) {
	n := newNode(t)
	r := n.restart(nil)
	waitFor(t, func() bool { return n.clock.Waiting() > 0 })
	if heartbeat.Recent(r.socket, n.clock.Boot()) {
		t.Error("a node without any address yet has a heartbeat")
	}
	r.source.Supply(netip.MustParseAddr("10.0.0.5"))
	n.clock.Advance(heartbeat.Interval)
	waitFor(t, func() bool { return heartbeat.Recent(r.socket, n.clock.Boot()) })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if !heartbeat.Recent(r.socket, n.clock.Boot()) {
		t.Error("the end of the daemon took the heartbeat with it")
	}
}

func TestInstallsOnceAnAddressIsUsable(t *testing.T) {
	n := newNode(t)
	r := n.assemble()
	var mu sync.Mutex
	calls, fail := 0, errors.New("read-only file system")
	r.Install = func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		calls++
		return fail
	}
	called := func() int {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.supplyLoop(ctx) })
	defer wg.Wait()
	defer cancel()
	waitFor(t, func() bool { return n.clock.Waiting() > 0 })
	if called() != 0 {
		t.Error("installed without a usable address")
	}
	r.source.Supply(netip.MustParseAddr("10.0.0.5"))
	n.clock.Advance(firstInterval)
	waitFor(t, func() bool { return called() == 1 && n.clock.Waiting() > 0 })
	if c, _ := r.conditions.get(ConditionInstalled); c.Healthy || c.Message != fail.Error() {
		t.Errorf("condition %+v", c)
	}
	mu.Lock()
	fail = nil
	mu.Unlock()
	n.clock.Advance(supplyInterval)
	waitFor(t, func() bool { c, _ := r.conditions.get(ConditionInstalled); return c.Healthy })
}

func TestDrainFailsWaitersAndFinishesKernelWork(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	entered, goOn := make(chan struct{}), make(chan struct{})
	n.kernel.onEnter("AddPod", func() { close(entered); <-goOn })
	working := make(chan error, 1)
	go func() {
		_, err := r.client.Add(within(t), addOf("a", n.newNetns("a")), grpc.WaitForReady(true))
		working <- err
	}()
	<-entered
	waiting := make(chan error, 1)
	go func() {
		_, err := r.client.Add(within(t), addOf("b", n.newNetns("b")))
		waiting <- err
	}()
	waitFor(t, func() bool { return r.source.Waiting() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	f := wantFailure(t, <-waiting, types.ErrTryAgainLater)
	if f.GetMessage() != "berthd is being restarted; try again" {
		t.Errorf("message %q", f.GetMessage())
	}
	close(goOn)
	if err := <-working; err != nil {
		t.Errorf("the ADD at work: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	n.wantKernel(t, 1, 1)
}

func TestDeadlineIsEnforcedForCallersWithoutOne(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	d := n.assemble()
	var left time.Duration
	_, err := d.observe(context.Background(), "Del", &rpc.DelRequest{},
		func(ctx context.Context, _ any) (any, error) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return nil, nil
		})
	if err != nil || left <= 0 || left > callLimit {
		t.Errorf("time left %v, %v", left, err)
	}
}

func TestTwoDaemonsCannotServeOneNode(t *testing.T) {
	dir := t.TempDir()
	first, err := AcquireLock(context.Background(), dir, clock.Real{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := AcquireLock(ctx, dir, clock.Real{}); err == nil {
		t.Fatal("a second daemon got the lock")
	}
	got := make(chan error, 1)
	go func() {
		second, err := AcquireLock(within(t), dir, clock.Real{})
		if err == nil {
			err = second.Release()
		}
		got <- err
	}()
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("the successor: %v", err)
	}
}

func TestListenReplacesAStaleSocketOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil { // the socket's file stays, as after a kill
		t.Fatal(err)
	}
	l, err = Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := Listen(t.TempDir()); err == nil {
		t.Error("Listen replaced a directory")
	}
}

// waitFor waits for what another goroutine is about to do.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("not in time")
		case <-time.After(time.Millisecond):
		}
	}
}

func sourceRequest(container string) source.Request { return source.Request{Key: keyFor(container)} }

// recordOf is the record that an ADD begins with.
func recordOf(container string, lease attachment.Lease) attachment.Record {
	return attachment.Record{
		Key: keyFor(container), Lease: lease, HostLink: hostLinkName(keyFor(container)), State: attachment.Pending,
		Since: time.Unix(1700000000, 0).UTC(),
	}
}
