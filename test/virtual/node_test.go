package virtual

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berthnet/berth/internal/berthd"
	"github.com/berthnet/berth/internal/carrier"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/datapath/datapathfake"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/rpc"
)

// pause is how long a kubelet waits before it starts a daemon again.
const pause = time.Second

// node is a machine that outlives its daemons.
type node struct {
	t        *testing.T
	root     string // has a state directory for each daemon in turn
	settings []string
	clock    virtualClock
	kernel   *datapathfake.Kernel
	cloud    *cloudfake.Cloud // nil where there is none
	pods     pods
	log      logBuffer

	ctx  context.Context // ends with the node
	stop context.CancelFunc
	done chan struct{} // closed once the last daemon has ended

	mu     sync.Mutex
	daemon *daemon  // the one that runs; guarded by mu, as are
	halts  []string // failpoints at which daemons were halted
}

// daemon is one life of berthd.
type daemon struct {
	*world
	number int
	dir    string
	client rpc.NodeClient
}

// virtualClock is a bubble's time, also since the boot.
type virtualClock struct {
	clock.Real
	boot time.Time
}

// Boot implements clock.Clock.
func (c virtualClock) Boot() time.Duration { return time.Since(c.boot) }

// newNode makes a node, within a bubble. Its daemons have settings besides those that
// all have. Call start next.
func newNode(t *testing.T, settings ...string) *node {
	t.Helper()
	root, err := os.MkdirTemp("", "virtual") // short: a socket's path is among the settings
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	n := &node{t: t, root: root, settings: settings, clock: virtualClock{boot: time.Now().Add(-time.Hour)}, kernel: datapathfake.NewKernel()}
	n.pods = newPods(n)
	n.ctx, n.stop = context.WithCancel(t.Context())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemons' log:\n%s", &n.log)
		}
	})
	return n
}

// arm arms failpoints for the daemon that runs when they are hit.
func (n *node) arm(spec string) {
	n.t.Helper()
	restore, err := failpoint.SetHalt(spec, n.halt)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(restore)
}

// halt halts the daemon that runs.
func (n *node) halt(name string) {
	n.mu.Lock()
	d := n.daemon
	n.halts = append(n.halts, name)
	n.mu.Unlock()
	d.halt(name, func() {
		next := n.dirOf(d.number + 1)
		if err := os.Rename(d.dir, next); err != nil {
			n.t.Errorf("moving the state directory away from a daemon that is halted: %v", err)
		}
		_ = os.Remove(filepath.Join(next, "berthd.lock")) // the kernel unlocks what a killed process had
	})
}

func (n *node) dirOf(daemon int) string { return filepath.Join(n.root, fmt.Sprint(daemon)) }

// start runs a daemon, and another one each time one is halted, until the node is closed.
func (n *node) start() {
	n.done = make(chan struct{})
	n.mu.Lock()
	n.daemon = n.newDaemon(1)
	n.mu.Unlock()
	go func() {
		defer close(n.done)
		for d := n.daemon; ; d = n.daemon {
			<-d.ended
			if d.alive() == nil { // it ended by itself, or the node was closed
				if d.err != nil || n.ctx.Err() == nil {
					n.t.Errorf("berthd ended: %v", d.err)
				}
				return
			}
			select {
			case <-n.ctx.Done():
				return
			case <-time.After(pause):
			}
			next := n.newDaemon(d.number + 1)
			n.mu.Lock()
			n.daemon = next
			n.mu.Unlock()
		}
	}()
}

// close ends the daemon in order.
func (n *node) close() {
	n.stop()
	<-n.done
}

// running is the daemon that runs, or was halted last.
func (n *node) running() *daemon {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.daemon
}

// newDaemon starts a daemon with the state directory of its number.
func (n *node) newDaemon(number int) *daemon {
	d := &daemon{world: newWorld(n.ctx, fmt.Sprintf("berthd %d", number)), number: number, dir: n.dirOf(number)}
	flags := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	loader := config.NewLoader(flags)
	err := flags.Parse(append([]string{
		"--node-name=" + nodeName, "--cluster-name=" + cluster, "--state-dir=" + d.dir, "--socket=" + filepath.Join(d.dir, "berthd.sock"),
		"--introspection-address=", "--metrics-address=", "--install-cni=false", "--cri-socket=",
	}, n.settings...))
	if err != nil {
		n.t.Fatal(err)
	}
	cfg, err := loader.Load(nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	socket := bufconn.Listen(1 << 16)
	conn, err := grpc.NewClient("passthrough:///berthd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return socket.DialContext(ctx) }))
	if err != nil {
		n.t.Fatal(err)
	}
	d.client = rpc.NewNodeClient(conn)
	log := slog.New(slog.NewTextHandler(&n.log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("daemon", number)
	d.run(func(ctx context.Context) error {
		defer conn.Close()
		return berthd.RunWith(ctx, cfg, log, berthd.Dependencies{
			Clock:        n.clock,
			OpenDatapath: func() (carrier.Node, error) { return n.kernel.Open(d.do), nil },
			InspectNetns: n.kernel.InspectNetns,
			Listen:       func(string) (net.Listener, error) { return socket, nil },
			Metadata:     func(aws.Options) cloud.Metadata { return metadata{n.cloud, d.world} },
			Cloud: func(context.Context, aws.Options) (pace.Calls, error) {
				return n.cloud.Client(d.request), nil
			},
		})
	})
	return d
}

// What all nodes have in common.
const (
	nodeName = "node-1"
	cluster  = "test"
	instance = "i-0123456789abcdef0"
	subnetID = "subnet-1"
)

// metadata is the instance metadata service of the node.
type metadata struct {
	cloud *cloudfake.Cloud
	world *world
}

// Identity implements cloud.Metadata.
func (m metadata) Identity(ctx context.Context) (id cloud.Identity, err error) {
	err = m.world.request(ctx, func(context.Context) error {
		for _, e := range m.cloud.Truth() {
			if e.Attachment != nil && e.Attachment.InstanceID == instance && e.Attachment.DeviceIndex == 0 {
				id = cloud.Identity{
					InstanceID: instance, InstanceType: instanceType, Region: "zone", Zone: e.Zone, VPCID: e.VPCID, SubnetID: e.SubnetID,
					PrimaryMAC: e.MAC, PrimaryIPv4: e.Primary, VPCCIDRs: vpcCIDRs,
				}
				return nil
			}
		}
		return fmt.Errorf("no instance %s", instance)
	})
	return id, err
}

// instanceType has three ENIs, with addresses for nine pods.
const instanceType = "t3.small"

var vpcCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8::/56")}

// logBuffer keeps a log for the case that a test fails.
type logBuffer struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

// Write implements io.Writer.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

// String implements fmt.Stringer.
func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
