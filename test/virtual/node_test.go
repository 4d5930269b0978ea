package virtual

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath/datapathfake"
	"github.com/berthnet/berth/internal/kernel/plug/plugfake"
	"github.com/berthnet/berth/internal/node/berthd"
	"github.com/berthnet/berth/internal/node/podegress"
	"github.com/berthnet/berth/internal/node/podegress/egressfake"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/test/harness/apifake"
)

// node is a machine that outlives its daemons.
type node struct {
	*program
	root     string // has a state directory for each daemon in turn
	settings []string
	clock    virtualClock
	kernel   *datapathfake.Kernel
	plugs    *plugfake.Node // ports of VPCs in pods
	tunnels  *egressfake.Kernel
	cloud    *cloudfake.Cloud // nil where there is none
	instance string           // its type there
	pods     pods
	families ipfamily.Set // of pods' addresses
	// kubeconfig is the file by which a daemon reaches the API server; nil: none does.
	kubeconfig func(w *world) string
	latency    atomic.Int64  // of the daemon's requests to the API server, in nanoseconds
	askGateway podegress.Ask // nil: there are no gateways
	log        *logBuffer

	mu     sync.Mutex
	client rpc.NodeClient // of the daemon that runs; guarded by mu
}

// virtualClock is the clock of a bubble.
type virtualClock struct {
	clock.Real
	boot time.Time
}

// Boot implements clock.Clock.
func (c virtualClock) Boot() time.Duration { return time.Since(c.boot) }

// newNode makes a node within a bubble, with further settings of its daemons. Call start next.
func newNode(t *testing.T, settings ...string) *node {
	t.Helper()
	parent := "/dev/shm" // a tmpfs, as state directories should be on
	if _, err := os.Stat(parent); err != nil {
		parent = ""
	}
	root, err := os.MkdirTemp(parent, "virtual") // short: a socket's path is among the settings
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	n := &node{
		root: root, settings: settings, clock: virtualClock{boot: time.Now().Add(-time.Hour)}, kernel: datapathfake.NewKernel(), plugs: plugfake.NewNode(), log: newLog(t),
	}
	n.tunnels = egressfake.NewKernel(func(path string) bool { _, err := n.kernel.InspectNetns(path); return err == nil })
	n.pods = newPods(n)
	n.program = &program{t: t, name: "berthd", launch: n.launch, moved: n.moved}
	return n
}

// moved renames the state directory to that of the next daemon.
func (n *node) moved(w *world) {
	next := n.dir(w.number + 1)
	if err := os.Rename(n.dir(w.number), next); err != nil {
		n.t.Errorf("moving the state directory away from a daemon that is halted: %v", err)
	}
	_ = os.Remove(filepath.Join(next, "berthd.lock")) // the kernel unlocks what a killed process had
}

// dir is the state directory of a daemon.
func (n *node) dir(daemon int) string { return filepath.Join(n.root, fmt.Sprint(daemon)) }

// daemon is the daemon that runs or was halted last, and its client.
func (n *node) daemon() (*world, rpc.NodeClient) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.running(), n.client
}

// launch starts a daemon with the state directory of its number.
func (n *node) launch(w *world) {
	dir := n.dir(w.number)
	settings := n.settings
	if n.kubeconfig != nil {
		settings = append(slices.Clone(settings), "--kubeconfig="+n.kubeconfig(w))
	}
	flags := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	loader := config.NewLoader(flags)
	err := flags.Parse(append([]string{
		"--node-name=" + nodeName, "--cluster-name=" + clusterName, "--state-dir=" + dir, "--socket=" + filepath.Join(dir, "berthd.sock"),
		"--introspection-address=", "--metrics-address=", "--install-cni=false", "--cri-socket=",
	}, settings...))
	if err != nil {
		n.t.Fatal(err)
	}
	cfg, err := loader.Load(nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	socket := bufconn.Listen(1 << 16)
	conn, err := grpc.NewClient("passthrough:///berthd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return socket.DialContext(ctx) }))
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	n.client = rpc.NewNodeClient(conn)
	n.mu.Unlock()
	log := slog.New(slog.NewTextHandler(n.log, nil)).With("berthd", w)
	w.run(func(ctx context.Context) error {
		defer conn.Close()
		return berthd.RunWith(ctx, cfg, log, berthd.Dependencies{
			Clock: n.clock,
			OpenDatapath: func() (uplinks.Node, error) {
				return n.kernel.Open(func(_ string, effect func()) error { return w.do(effect) }), nil
			},
			InspectNetns: n.kernel.InspectNetns,
			OpenPluggers: func(config.Config, *slog.Logger) (berthd.Pluggers, error) {
				return berthd.Pluggers{Plugger: n.plugs.Open(w.do), Close: func() {}}, nil
			},
			Listen:   func(string) (net.Listener, error) { return socket, nil },
			Metadata: func(aws.Options) cloud.Metadata { return metadata{n, w} },
			Cloud: func(context.Context, aws.Options) (pace.Calls, error) {
				return n.cloud.Client(w.request), nil
			},
			Egress:     func(string) podegress.Kernel { return n.tunnels.Open(w.do) },
			AskGateway: n.askGateway,
		})
	})
}

// slowly delays requests to the API server by the node's latency.
func (n *node) slowly(do apifake.Do) apifake.Do {
	return func(ctx context.Context, call func(context.Context) error) error {
		return do(ctx, func(ctx context.Context) error {
			if latency := time.Duration(n.latency.Load()); latency > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(latency):
				}
			}
			return call(ctx)
		})
	}
}

const (
	nodeName    = "node-1"
	clusterName = "test"
	instance    = "i-0123456789abcdef0"
	subnetID    = "subnet-1"
)

// metadata is the instance metadata service of the node.
type metadata struct {
	*node
	world *world
}

// Identity implements cloud.Metadata.
func (m metadata) Identity(ctx context.Context) (id cloud.Identity, err error) {
	err = m.world.request(ctx, func(context.Context) error {
		for _, e := range m.cloud.State.Truth() {
			if e.Attachment != nil && e.Attachment.InstanceID == instance && e.Attachment.DeviceIndex == 0 {
				id = cloud.Identity{
					InstanceID: instance, InstanceType: m.instance, Region: "zone", Zone: e.Zone, VPCID: e.VPCID, SubnetID: e.SubnetID,
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

// logBuffer keeps the programs' log until the test ends, and shows it if it has failed.
type logBuffer struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

func newLog(t *testing.T) *logBuffer {
	l := &logBuffer{}
	t.Cleanup(func() {
		if t.Failed() {
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Logf("the programs' log:\n%s", l.text)
		}
	})
	return l
}

// Write implements io.Writer.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}
