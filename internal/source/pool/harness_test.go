package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/lab/run/kube"
	"github.com/berthnet/berth/internal/lab/run/poll"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/crashsource"
)

const (
	namespace = "ns"
	longest   = 3 * time.Minute // for what takes milliseconds on a quiet machine
)

func TestMain(m *testing.M) {
	os.Exit(crashsource.Main(func() int { return harness.Kube(m.Run, prepare) }, child))
}

// prepare installs who berthd is, what it may do, and the policies that narrow
// that.
func prepare() error {
	dir := os.DirFS(filepath.Join(harness.Tree(), "deploy", "pool-mode"))
	files := fstest.MapFS{}
	for _, name := range []string{"admission.yaml", "rbac.yaml", "rbac/berthd/role.yaml", "rbac/berth-operator/role.yaml"} {
		data, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		files[name] = &fstest.MapFile{Data: data}
	}
	return harness.ControlPlane.Apply(context.Background(), files)
}

var account = types.NamespacedName{Namespace: "kube-system", Name: "berthd"}

// routes is a data path of which a test can tell the order of things.
type routes struct {
	mu     sync.Mutex // guards all below
	blocks map[string]datapath.Block
	fail   error
	broken string // the block that cannot be routed
	calls  int
}

func (r *routes) SetBlocks(_ context.Context, blocks []datapath.Block) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.fail != nil {
		return r.fail
	}
	r.blocks = map[string]datapath.Block{}
	failed := map[string]error{}
	for _, b := range blocks {
		if b.Name == r.broken {
			failed[b.Name] = errors.New("no route to " + b.Name)
			continue
		}
		r.blocks[b.Name] = b
	}
	if len(failed) > 0 {
		return &datapath.BlocksError{Failed: failed}
	}
	return nil
}

func (r *routes) breakBlock(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = name
}

func (r *routes) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for name := range r.blocks {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (r *routes) failWith(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

// machine is a node whose daemon can be stopped and started again, and an
// administrator's hand.
type machine struct {
	t      *testing.T
	dir    string
	api    client.Client
	log    *logs
	cfg    *rest.Config
	tune   func(*Config)
	routes *routes
	wishes map[string]string // pools that pods name, by pod
	*Source
	stop func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	harness.KubeClean(t)
	m := &machine{t: t, dir: t.TempDir(), api: harness.KubeClient(t), log: &logs{t: t}, routes: &routes{}, wishes: map[string]string{}, tune: func(*Config) {}}
	token, err := harness.ControlPlane.NodeToken(t.Context(), account, nodeID)
	if err != nil {
		t.Fatal(err)
	}
	m.cfg = harness.ControlPlane.ConfigWithToken(token)
	m.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeID}})
	m.namespace(namespace, "")
	return m
}

// start starts the daemon's source, with the leases that its records tell of. It
// ends with the test at the latest.
func (m *machine) start(leases ...restored) {
	m.t.Helper()
	m.prepare(leases...)
	m.run()
}

type restored struct {
	pod   int
	lease source.Lease
}

func (m *machine) prepare(leases ...restored) {
	m.t.Helper()
	api, err := kubeapi.New(m.cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	cfg := Config{
		NodeName: nodeID, Datapath: m.routes, StateDir: m.dir, Cooling: time.Millisecond, Watermark: 25, ReleaseDelay: time.Hour,
		Clock: unhurried{}, Logger: slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	m.tune(&cfg)
	if m.Source, err = newSource(cfg, api); err != nil {
		m.t.Fatal(err)
	}
	for _, l := range leases {
		if err := m.Restore(podRequest(l.pod), l.lease); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *machine) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func(s *Source) {
		defer close(done)
		_ = s.Run(ctx)
	}(m.Source)
	m.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	m.t.Cleanup(m.stop)
}

func (m *machine) create(o client.Object) {
	m.t.Helper()
	if err := m.api.Create(m.t.Context(), o); err != nil {
		m.t.Fatal(err)
	}
}

// namespace makes a namespace, or annotates it.
func (m *machine) namespace(name, pool string) {
	m.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := m.api.Create(m.t.Context(), ns)
	if err == nil {
		m.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}})
	} else if !apierrors.IsAlreadyExists(err) {
		m.t.Fatal(err)
	}
	m.annotate(ns, pool)
}

func (m *machine) annotate(o client.Object, pool string) {
	m.t.Helper()
	value := "null"
	if pool != "" {
		value = fmt.Sprintf("%q", pool)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationPool, value)
	if err := m.api.Patch(m.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		m.t.Fatal(err)
	}
}

// pool makes an AddressPool of subnets "IPv4 IPv6".
func (m *machine) pool(name string, bits int32, podNamespaces []string, subnets ...string) {
	m.t.Helper()
	p := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AddressPoolSpec{BlockSizeBits: &bits, PodNamespaces: podNamespaces}}
	for _, s := range subnets {
		var sub v1alpha1.PoolSubnet
		for f := range strings.FieldsSeq(s) {
			if strings.Contains(f, ":") {
				sub.IPv6 = f
			} else {
				sub.IPv4 = f
			}
		}
		p.Spec.Subnets = append(p.Spec.Subnets, sub)
	}
	m.create(p)
}

// pods makes pods FROM to TO of this node.
func (m *machine) pods(from, to int) {
	m.t.Helper()
	for i := from; i <= to; i++ {
		m.podNamed(namespace, fmt.Sprint("pod", i), "")
	}
}

func (m *machine) podNamed(namespace, name, pool string) *corev1.Pod {
	m.t.Helper()
	no := false
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName: nodeID, AutomountServiceAccountToken: &no,
			Containers:  []corev1.Container{{Name: "c", Image: "c"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if pool != "" {
		p.Annotations = map[string]string{v1alpha1.AnnotationPool: pool}
		m.wishes[name] = pool
	}
	m.create(p)
	return p
}

// add starts a pod.
func (m *machine) add(i int) source.Lease {
	m.t.Helper()
	l, err := m.try(i, longest)
	if err != nil {
		m.t.Fatalf("pod %d: %v", i, err)
	}
	return l
}

func (m *machine) try(i int, within time.Duration) (source.Lease, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	req := podRequest(i)
	req.Wish.Pool = m.wishes[req.Pod.Name]
	return m.Acquire(ctx, req)
}

// fails starts a pod that gets no address, for a reason that is known soon, and
// returns the message.
func (m *machine) fails(i int, reason string) (message string) {
	m.t.Helper()
	m.until(fmt.Sprintf("pod %d waits: %s", i, reason), func() bool {
		l, err := m.try(i, 300*time.Millisecond)
		why, ok := errors.AsType[*source.Exhausted](err)
		if !ok {
			m.t.Fatalf("pod %d: %v, %v; want %s", i, l, err, reason)
		}
		message = why.Message
		return why.Reason == reason
	})
	return message
}

// until waits for something that no event tells of.
func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), longest)
	defer cancel()
	if poll.Until(ctx, poll.True(ok)) != nil {
		m.t.Fatalf("waited %v for: %s\nblocks: %v\nrequests: %v", longest, what, m.blocks(), m.requests())
	}
}

// known waits until the daemon has seen a namespace with this annotation.
func (m *machine) known(namespace, pool string) {
	m.t.Helper()
	m.until("namespace "+namespace+" is seen", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		have, ok := m.ledger.namespaces[namespace]
		return ok && have == pool
	})
}

// read reads from the API server, also one that takes its time.
func (m *machine) read(what string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return kube.Again(ctx, what, func() error { return do(ctx) })
}

// blocks lists the AddressBlocks.
func (m *machine) blocks() (names []string) {
	list := &v1alpha1.AddressBlockList{}
	if err := m.read("list blocks", func(ctx context.Context) error { return m.api.List(ctx, list) }); err != nil {
		m.t.Log(err)
	}
	for _, b := range list.Items {
		names = append(names, b.Name)
	}
	return names
}

func (m *machine) block(name string) *v1alpha1.AddressBlock {
	b := &v1alpha1.AddressBlock{}
	err := m.read("read block "+name, func(ctx context.Context) error { return m.api.Get(ctx, client.ObjectKey{Name: name}, b) })
	if err != nil {
		return nil
	}
	return b
}

// requests lists the BlockRequests.
func (m *machine) requests() (names []string) {
	list := &v1alpha1.BlockRequestList{}
	if err := m.read("list requests", func(ctx context.Context) error { return m.api.List(ctx, list) }); err != nil {
		m.t.Log(err)
	}
	for _, r := range list.Items {
		names = append(names, r.Name)
	}
	return names
}

// settled waits until there are this many blocks, all in use, and no request.
func (m *machine) settled(blocks int) {
	m.t.Helper()
	m.until(fmt.Sprintf("%d blocks and no request", blocks), func() bool {
		return len(m.blocks()) == blocks && len(m.requests()) == 0 && len(m.routes.names()) == blocks
	})
}

// logs passes a log to the test's output and keeps it.
type logs struct {
	t  *testing.T
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	return l.t.Output().Write(p)
}
