package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/egresspart"
	"github.com/berthnet/berth/internal/node/daemon/nicpart"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/daemon/policypart"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/source/nodelocal"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

// node is a machine with a kernel, a directory and namespaces, which outlives the daemons that a test
// starts on it.
type node struct {
	t        *testing.T
	dir      string
	kernel   *fakeKernel
	clock    *clock.Fake
	ident    attachment.Node
	addrs    []netip.Addr
	listed   map[string]bool // container IDs that the runtime lists; nil: no runtime
	board    *switchboard    // simulated switch of NICs; nil: daemons have no NICs
	tunnels  *tunnels        // simulated egress; nil: daemons have none
	policies *fakeEnforcer   // of network policies; nil: daemons have none

	nodeLocal   bool          // pods have node-local addresses of the family that they lack
	chained     bool          // another network creates the pods' interfaces
	warmWait    time.Duration // real time, because contexts use it
	gatewayWait time.Duration
	nicWait     time.Duration

	mu     sync.Mutex                  // guards netns
	netns  map[string]datapath.NetnsID // by path
	nextNS uint64
}

// running is a daemon running on a node, with a client.
type running struct {
	*Daemon
	front  *Front
	source *sourcefake.Source
	nics   *fakeNICs
	egress *fakeEgress
	client rpc.NodeClient
	socket string
	stop   func() // may be called once; a failure fails the test
}

func newNode(t *testing.T, addrs ...string) *node {
	n := &node{
		t: t, dir: t.TempDir(), kernel: newFakeKernel(), clock: clock.NewFake(time.Unix(1700000000, 0)),
		ident: attachment.Node{InstanceID: "i-1", BootID: "boot-1"}, netns: map[string]datapath.NetnsID{},
		warmWait: 45 * time.Second,
	}
	for _, a := range addrs {
		n.addrs = append(n.addrs, netip.MustParseAddr(a))
	}
	return n
}

// newNetns creates a namespace and returns its path.
func (n *node) newNetns(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nextNS++
	path := "/run/netns/" + name
	n.netns[path] = datapath.NetnsID{Dev: 4, Inode: 4026530000 + n.nextNS}
	return path
}

func (n *node) removeNetns(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.netns, path)
}

func (n *node) inspect(path string) (datapath.NetnsID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok := n.netns[path]; ok {
		return id, nil
	}
	return datapath.NetnsID{}, datapath.ErrNoNetns
}

// Sandboxes implements Sandboxes.
func (n *node) Sandboxes(context.Context) (map[string]bool, error) { return n.listed, nil }

// assemble creates a daemon without running it.
func (n *node) assemble() *running {
	n.t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, bad, err := attachment.Open(filepath.Join(n.dir, "attachments"), n.ident, log)
	must(n.t, err)
	src := sourcefake.New(n.clock, 30*time.Second, n.addrs...)
	r := &running{socket: filepath.Join(n.dir, "berthd.sock")}
	o := Options{
		Source: src, Kernel: n.kernel, Store: store, Quarantined: bad, Metrics: NewMetrics(), Clock: n.clock, Log: log,
		Node: Node{StateDir: n.dir, Chained: n.chained}, Times: Times{WarmWait: n.warmWait, DrainTimeout: time.Minute, NetnsGrace: time.Minute},
		InspectNetns: n.inspect, Parts: []part.Part{nicpart.Unconfigured(log), egresspart.Unconfigured(log)},
	}
	if n.nodeLocal {
		o.Source = nodelocal.New(src, true, true, n.clock)
	}
	if n.listed != nil {
		o.Sandboxes = n
	}
	if n.board != nil {
		n.board.mu.Lock()
		n.board.records = func() *attachment.Store { return store }
		n.board.mu.Unlock()
		r.nics = newFakeNICs(n.board)
		o.Parts[0] = nicpart.New(nicpart.Options{NICs: r.nics, Store: store, Wait: n.nicWait, Count: o.Metrics.CountNICs, Log: log})
		o.RepairInterval = time.Hour
	}
	src.Nothing = n.chained
	if n.tunnels != nil {
		n.tunnels.mu.Lock()
		n.tunnels.records = func() *attachment.Store { return store }
		n.tunnels.mu.Unlock()
		r.egress = newFakeEgress(n.tunnels)
		o.Parts[1] = egresspart.New(egresspart.Options{
			Egress: r.egress, Store: store, GatewayWait: n.gatewayWait, Count: o.Metrics.CountEgress, Clients: EgressClients, InspectNetns: n.inspect, Log: log,
		})
		o.RepairInterval = time.Hour
	}
	if n.policies != nil {
		o.Parts = append(o.Parts, policypart.New(policypart.Options{Enforcer: n.policies, Store: store, Wait: n.policies.wait, StartUnknown: n.policies.startUnknown, TunnelPort: 5555, Log: log}))
		o.RepairInterval = time.Hour
	}
	r.Daemon, r.source = New(o), src
	return r
}

// start runs a daemon until the test or stop ends it. A test that advances the clock uses restart
// instead, because a call waits for a starting daemon by the clock.
func (n *node) start() *running {
	n.t.Helper()
	r := n.assemble()
	front, end := run(n.t, r.Daemon, r.socket)
	r.front, r.client = front, rpc.NewNodeClient(dial(n.t, r.socket))
	r.stop = sync.OnceFunc(func() {
		defer n.tick()() // the reaper would wait forever for the stopped fake clock
		end()
	})
	n.t.Cleanup(r.stop)
	return r
}

// restart stops a daemon, leaving records and kernel as after a crash, starts another and waits until it
// serves.
func (n *node) restart(r *running) *running {
	n.t.Helper()
	if r != nil {
		r.stop()
	}
	next := n.start()
	defer n.tick()()
	waitFor(n.t, func() bool { return next.front.admitted() != nil })
	return next
}

// run runs a daemon on a socket until stop, which must be called once.
func run(t testing.TB, d *Daemon, socket string) (front *Front, stop func()) {
	t.Helper()
	l, err := Listen(socket)
	must(t, err)
	front = NewFront(FrontOptions{Plugin: l, Socket: socket, Metrics: d.Metrics, Clock: d.Clock, Log: d.Log})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, front) }()
	return front, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("daemon ended with error %v", err)
		}
	}
}

// dial connects a client to a daemon's socket.
func dial(t testing.TB, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// attach runs an ADD without the socket.
func (d *Daemon) attach(ctx context.Context, container, netns string) (attachment.Record, error) {
	return d.attachments.add(ctx, attachment.Record{Key: keyFor(container), Netns: attachment.Netns{Path: netns}}, attachment.PodOptions{})
}

// attached runs an attach that must succeed.
func (d *Daemon) attached(t testing.TB, container, netns string) attachment.Record {
	t.Helper()
	rec, err := d.attach(context.Background(), container, netns)
	must(t, err)
	return rec
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tick advances the clock in small steps while a test waits in real time, until the returned function
// is called.
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

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func mustAdd(t *testing.T, r *running, container, netns string) *rpc.AddReply {
	t.Helper()
	reply, err := r.client.Add(within(t), addOf(container, netns), grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("ADD of %s failed: %v", container, err)
	}
	return reply
}

// addAfterRemoval adds a pod while the reaper removes a deleted one, whose record is releasing until then. The removal closes
// entered and waits for block.
func (r *running) addAfterRemoval(t *testing.T, next *rpc.AddRequest, former string, entered, block chan struct{}) {
	t.Helper()
	added := make(chan error, 1)
	go func() {
		_, err := r.client.Add(within(t), next)
		added <- err
	}()
	<-entered // the ADD ended the batching delay
	if rec, ok := r.Store.Get(keyFor(former)); !ok || rec.State != attachment.Releasing {
		t.Errorf("record after the DEL: %v, exists %v; want releasing", rec.State, ok)
	}
	close(block)
	must(t, <-added)
}

// wantAddress adds a pod in a namespace and asserts its address.
func (r *running) wantAddress(t *testing.T, container, netns, address string) {
	t.Helper()
	if got := mustAdd(t, r, container, netns).GetAddresses(); len(got) != 1 || got[0] != address+"/32" {
		t.Errorf("addresses of %s = %v, want %s", container, got, address)
	}
}

// refused runs an ADD that must fail with a CNI code.
func (r *running) refused(t *testing.T, req *rpc.AddRequest, code uint) *rpc.Failure {
	t.Helper()
	_, err := r.client.Add(within(t), req, grpc.WaitForReady(true))
	return wantFailure(t, err, code)
}

func mustDel(t *testing.T, r *running, container string) {
	t.Helper()
	if _, err := r.client.Del(within(t), delOf(container), grpc.WaitForReady(true)); err != nil {
		t.Fatalf("DEL of %s failed: %v", container, err)
	}
}

// want asserts the health of a condition, and its reason and message.
func (c *conditions) want(t *testing.T, kind string, healthy bool, says string) {
	t.Helper()
	if c, ok := c.get(kind); !ok || c.Healthy != healthy || !strings.Contains(c.Reason+": "+c.Message, says) {
		t.Errorf("condition %s = %+v, want healthy: %v and %q", kind, c, healthy, says)
	}
}

// wantFailure asserts the CNI error of a call.
func wantFailure(t *testing.T, err error, code uint) *rpc.Failure {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*rpc.Failure); ok {
			if f.GetCode() != uint32(code) {
				t.Fatalf("CNI code = %d (%s), want %d", f.GetCode(), f.GetMessage(), code)
			}
			return f
		}
	}
	t.Fatalf("error %v has no Failure", err)
	return nil
}

func (n *node) wantKernel(t *testing.T, links, routes int) {
	t.Helper()
	l, r := n.kernel.all.State()
	if len(l) != links || len(r) != routes {
		t.Errorf("kernel has links %v and routes %v, want %d links and %d routes", l, r, links, routes)
	}
}

// waitFor waits until another goroutine makes ok true.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("timed out waiting for the condition")
		case <-time.After(time.Millisecond):
		}
	}
}

func sourceRequest(container string) attachment.Request {
	return attachment.Request{Key: keyFor(container)}
}

// recordOf returns the initial record of an ADD.
func recordOf(container string, lease attachment.Lease) attachment.Record {
	return attachment.Record{
		Key: keyFor(container), Lease: lease, HostLink: hostLinkName(keyFor(container)), State: attachment.Pending,
		Since: time.Unix(1700000000, 0).UTC(),
	}
}

// changeNICs runs one change of an attachment's NICs.
func (r *running) changeNICs(ctx context.Context, key attachment.Key) error {
	return r.keepers[0].changes.change(ctx, key)
}

func (r *running) egressKeeper() *keeper { return r.keepers[len(r.keepers)-1] }

// changeEgress runs one change of an attachment's egress.
func (r *running) changeEgress(ctx context.Context, key attachment.Key) error {
	return r.egressKeeper().changes.change(ctx, key)
}
