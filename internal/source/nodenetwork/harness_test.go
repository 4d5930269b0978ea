package nodenetwork

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	operatormode "github.com/berthnet/berth/deploy/operator-mode"
	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/lab/run/kube"
	"github.com/berthnet/berth/internal/lab/run/poll"
	"github.com/berthnet/berth/internal/source"
	enisource "github.com/berthnet/berth/internal/source/eni"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/crashsource"
)

const (
	instance = "i-0a1b2c3d"
	itype    = "m5.large"
	eth0     = "eni-0000"
	eth1     = "eni-1111"
	longest  = 3 * time.Minute // for what takes milliseconds on a quiet machine
)

func TestMain(m *testing.M) {
	os.Exit(crashsource.Main(func() int {
		if err := harness.KubeUp(kube.Options{}); err != nil {
			fmt.Println("FAIL:", err)
			return 1
		}
		defer func() {
			if err := harness.KubeDown(); err != nil {
				fmt.Println(err)
			}
		}()
		if err := harness.ControlPlane.Apply(context.Background(), operatormode.Roles); err != nil {
			fmt.Println("FAIL:", err)
			return 1
		}
		return m.Run()
	}, child))
}

const nodeName = "node-1"

// links is a Datapath in which every link is there.
type links struct {
	mu  sync.Mutex // guards set
	set map[string]eni.ENI
}

func (l *links) SetENI(_ context.Context, e eni.ENI) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set[e.ID] = e
	return nil
}

func (l *links) RemoveENI(_ context.Context, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.set, id)
	return nil
}

// machine is a node whose daemon can be stopped and started again, the operator's
// hand, and an administrator's.
type machine struct {
	t     *testing.T
	dir   string
	api   client.Client
	log   *logs
	spec  *v1alpha1.NodeNetworkSpec // nil: no auto-creation
	cfg   *rest.Config
	tune  func(*Config)
	links *links
	*enisource.Source
	stop func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	harness.KubeClean(t)
	return &machine{
		t: t, dir: t.TempDir(), api: harness.KubeClient(t),
		log: &logs{t: t}, cfg: harness.DaemonConfig(t, nodeName), links: &links{set: map[string]eni.ENI{}},
		spec: &v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: itype},
	}
}

// startMachine is one whose daemon has made the object, and makes every report at
// once, with requests that go through something.
func startMachine(t *testing.T, through ...transport.WrapperFunc) *machine {
	t.Helper()
	m := newMachine(t)
	m.spec.ENI.PreAllocate = new(int32(256))
	for _, w := range through {
		m.cfg.Wrap(w)
	}
	m.begin()
	return m
}

// begin starts the daemon, and waits for the object that it makes.
func (m *machine) begin() *v1alpha1.NodeNetwork {
	m.t.Helper()
	m.start()
	return m.appears("the object", func(*v1alpha1.NodeNetwork) bool { return true })
}

// start starts the daemon's source. It ends with the test at the latest.
func (m *machine) start() {
	m.t.Helper()
	cfg := Config{
		NodeName: nodeName, Spec: m.spec, InstanceID: instance, Datapath: m.links, Cooling: time.Millisecond,
		Store: enisource.Files{Dir: m.dir}, Logger: slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if m.tune != nil {
		m.tune(&cfg)
	}
	var err error
	m.Source, err = newSource(cfg, m.cfg)
	harness.OK(m.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func(s *enisource.Source) {
		defer close(done)
		_ = s.Run(ctx)
	}(m.Source)
	m.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	m.t.Cleanup(m.stop)
}

func key(i int) attachment.Key {
	return attachment.Key{Network: "pods", ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"}
}

func request(i int) source.Request {
	return source.Request{Key: key(i), Pod: attachment.Pod{Namespace: "ns", Name: fmt.Sprintf("pod%d", i), UID: fmt.Sprintf("uid-%d", i)}}
}

// add starts a pod.
func (m *machine) add(i int) source.Lease {
	m.t.Helper()
	l, err := m.try(i, longest)
	harness.OK(m.t, err)
	return l
}

// gets starts a pod, which is to get 10.0.0.LAST.
func (m *machine) gets(i, last int) {
	m.t.Helper()
	if l := m.add(i); l.IPv4 != address(last) {
		m.t.Errorf("pod %d got %v, want %v", i, l.IPv4, address(last))
	}
}

// getsNothing starts a pod for which there is no address.
func (m *machine) getsNothing(i int) {
	m.t.Helper()
	if l, err := m.try(i, 300*time.Millisecond); err == nil {
		m.t.Errorf("pod %d got %v", i, l.IPv4)
	}
}

// reports waits until the daemon has reported so many pods.
func (m *machine) reports(pods int32) *v1alpha1.NodeNetwork {
	m.t.Helper()
	return m.appears(fmt.Sprintf("%d pods are reported", pods), func(o *v1alpha1.NodeNetwork) bool { return o.Status.IPAM.UsedCount == pods })
}

func (m *machine) try(i int, within time.Duration) (source.Lease, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	return m.Acquire(ctx, request(i))
}

// until waits for something that no event tells of.
func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), longest)
	defer cancel()
	if poll.Until(ctx, poll.True(ok)) != nil {
		m.t.Fatalf("waited %v for: %s\nobject: %+v", longest, what, m.find())
	}
}

// object reads the NodeNetwork as it is.
func (m *machine) object() *v1alpha1.NodeNetwork {
	m.t.Helper()
	o := m.find()
	if o == nil {
		m.t.Fatal("there is no object")
	}
	return o
}

func (m *machine) find() *v1alpha1.NodeNetwork {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o := &v1alpha1.NodeNetwork{}
	err := kube.Again(ctx, "read the object", func() error { return m.api.Get(ctx, client.ObjectKey{Name: nodeName}, o) })
	if err != nil {
		return nil
	}
	return o
}

// appears waits until the object is as a test wants it.
func (m *machine) appears(what string, ok func(*v1alpha1.NodeNetwork) bool) *v1alpha1.NodeNetwork {
	m.t.Helper()
	var o *v1alpha1.NodeNetwork
	m.until(what, func() bool {
		o = m.find()
		return o != nil && ok(o)
	})
	return o
}

// operator changes the object as the operator does: its status, then the rest.
func (m *machine) operator(change func(*v1alpha1.NodeNetwork)) {
	m.t.Helper()
	before, owner := m.object(), client.FieldOwner(v1alpha1.OwnerOperator)
	after := before.DeepCopy()
	change(after)
	harness.OK(m.t, m.api.Status().Patch(m.t.Context(), after.DeepCopy(), client.MergeFrom(before), owner))
	harness.OK(m.t, m.api.Patch(m.t.Context(), after, client.MergeFrom(before), owner))
}

// give makes addresses 10.0.0.FROM to TO available on eth1, besides what is.
func give(from, to int) func(*v1alpha1.NodeNetwork) {
	return func(o *v1alpha1.NodeNetwork) {
		o.Status.ENI.Limits = &v1alpha1.ENILimits{ENIs: 3, AddressesPerENI: 10, Prefixes: true}
		o.Status.ENI.ENIs = map[string]v1alpha1.ENI{
			eth0: {MAC: "02:00:00:00:00:00", DeviceIndex: 0, PrimaryIPv4: "10.0.0.4", SubnetID: "subnet-1", SubnetCIDR: "10.0.0.0/24"},
			eth1: {MAC: "02:00:00:00:00:01", DeviceIndex: 1, PrimaryIPv4: "10.0.0.5", SubnetID: "subnet-1", SubnetCIDR: "10.0.0.0/24"},
		}
		if o.Spec.IPAM.Available == nil {
			o.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{}
		}
		for i := from; i <= to; i++ {
			o.Spec.IPAM.Available[address(i).String()] = v1alpha1.AvailableAddress{Resource: eth1}
		}
		o.Status.ENI.Available = int32(len(o.Spec.IPAM.Available))
	}
}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

// logs passes a log to the test's output and keeps it.
type logs struct {
	t  *testing.T
	mu sync.Mutex // guards b
	b  strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	return l.t.Output().Write(p)
}

func (l *logs) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}
