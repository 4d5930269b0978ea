package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/confirm"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/sourcenode"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

const (
	nodeID    = sourcenode.Name
	namespace = sourcetest.Namespace
	longest   = sourcenode.Longest
)

var key, podRequest = sourcetest.Key, sourcetest.Request

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(sourcenode.Main(m, deploy.PoolMode, child))
}

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
	*sourcenode.Node
	*Source
	tune   func(*Config)
	routes *routes
	poolOf map[string]string // pools that pods name, by pod
	stop   func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{Node: sourcenode.New(t), routes: &routes{}, poolOf: map[string]string{}, tune: func(*Config) {}}
	m.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeID}})
	m.namespace(namespace, "")
	return m
}

// start starts the daemon's source, with the leases that its records tell of. It
// ends with the test at the latest.
func (m *machine) start(leases ...restored) {
	m.T.Helper()
	m.prepare(leases...)
	m.run()
}

type restored struct {
	pod   int
	lease source.Lease
}

func (m *machine) prepare(leases ...restored) {
	m.T.Helper()
	api, err := kubeapi.New(m.Config)
	harness.OK(m.T, err)
	cfg := Config{
		NodeName: nodeID, Datapath: m.routes, StateDir: m.Dir, Cooling: time.Millisecond, Watermark: 25, ReleaseDelay: time.Hour,
		Clock: unhurried{}, Logger: sourcetest.Logger(m.Log),
	}
	m.tune(&cfg)
	m.Source, err = newSource(cfg, api)
	harness.OK(m.T, err)
	for _, l := range leases {
		harness.OK(m.T, m.Restore(podRequest(l.pod), l.lease))
	}
}

func (m *machine) run() { m.stop = sourcetest.Run(m.T, m.Source) }

// namespace makes a namespace, or annotates it.
func (m *machine) namespace(name, pool string) {
	m.T.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := m.API.Create(m.T.Context(), ns)
	if err == nil {
		m.Create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}})
	} else if !apierrors.IsAlreadyExists(err) {
		m.T.Fatal(err)
	}
	m.annotate(ns, pool)
}

func (m *machine) annotate(o client.Object, pool string) {
	m.T.Helper()
	value := "null"
	if pool != "" {
		value = fmt.Sprintf("%q", pool)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationPool, value)
	harness.OK(m.T, m.API.Patch(m.T.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// pool makes an AddressPool of subnets "IPv4 IPv6".
func (m *machine) pool(name string, bits int32, podNamespaces []string, subnets ...string) {
	m.T.Helper()
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
	m.Create(p)
}

// pods makes pods FROM to TO of this node.
func (m *machine) pods(from, to int) {
	m.T.Helper()
	for i := from; i <= to; i++ {
		m.podNamed(namespace, fmt.Sprint("pod", i), "")
	}
}

func (m *machine) podNamed(namespace, name, pool string) *corev1.Pod {
	m.T.Helper()
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
		m.poolOf[name] = pool
	}
	m.Create(p)
	return p
}

// begin starts an operator, and a daemon whose first pod has an address of a pool of
// these subnets. The other pods are there only. A pool that is not the default one
// keeps nothing warm.
func (m *machine) begin(pool string, bits int32, pods int, subnets ...string) source.Lease {
	m.T.Helper()
	m.pool(pool, bits, nil, subnets...)
	if pool != v1alpha1.DefaultPool {
		m.namespace(namespace, pool)
	}
	m.pods(0, pods-1)
	m.startOperator()
	m.start()
	l := m.add(0)
	m.untilAllInUse(1)
	return l
}

// add starts a pod.
func (m *machine) add(i int) source.Lease {
	m.T.Helper()
	l, err := m.try(i, longest)
	if err != nil {
		m.T.Fatalf("pod %d: %v", i, err)
	}
	return l
}

func (m *machine) try(i int, within time.Duration) (source.Lease, error) {
	return sourcetest.Try(m.T, m, podRequest(i), within)
}

// Acquire tells of the pod's annotation, as the runtime does.
func (m *machine) Acquire(ctx context.Context, r source.Request) (source.Lease, error) {
	if pool, ok := m.poolOf[r.Pod.Name]; ok {
		r.Options = annotated(pool)
	}
	return m.Source.Acquire(ctx, r)
}

// fails starts a pod that gets no address, for a reason that is known soon, and
// returns the message.
func (m *machine) fails(i int, reason string) (message string) {
	m.T.Helper()
	m.until(fmt.Sprintf("pod %d waits: %s", i, reason), func() bool {
		l, err := m.try(i, 300*time.Millisecond)
		why, ok := errors.AsType[*source.Exhausted](err)
		if !ok {
			m.T.Fatalf("pod %d: %v, %v; want %s", i, l, err, reason)
		}
		message = why.Message
		return why.Reason == reason
	})
	return message
}

// until waits for something that no event tells of.
func (m *machine) until(what string, ok func() bool) {
	m.T.Helper()
	m.Until(what, ok, func() string { return fmt.Sprintf("blocks: %v\nrequests: %v", m.blocks(), m.requests()) })
}

// sees waits until the daemon knows something.
func (m *machine) sees(what string, ok func(l *holdings) bool) {
	m.T.Helper()
	m.until("the daemon sees "+what, func() (seen bool) {
		m.state.with(func(n *holdings, _ time.Time) { seen = ok(n) })
		return seen
	})
}

// known waits until the daemon has seen a namespace with this annotation.
func (m *machine) known(namespace, pool string) {
	m.T.Helper()
	m.sees("namespace "+namespace, func(l *holdings) bool {
		have, ok := l.pools.namespaces[namespace]
		return ok && have == pool
	})
}

// blocks lists the AddressBlocks.
func (m *machine) blocks() (names []string) {
	list := &v1alpha1.AddressBlockList{}
	m.List(list)
	for _, b := range list.Items {
		names = append(names, b.Name)
	}
	return names
}

func (m *machine) block(name string) *v1alpha1.AddressBlock {
	b := &v1alpha1.AddressBlock{}
	if !m.Get(name, b) {
		return nil
	}
	return b
}

// drain deletes a block.
func (m *machine) drain(name string) {
	m.T.Helper()
	harness.OK(m.T, m.API.Delete(m.T.Context(), &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: name}}))
}

// requests lists the BlockRequests.
func (m *machine) requests() (names []string) {
	list := &v1alpha1.BlockRequestList{}
	m.List(list)
	for _, r := range list.Items {
		names = append(names, r.Name)
	}
	return names
}

// untilAllInUse waits until there are this many blocks, all in use, and no request.
func (m *machine) untilAllInUse(blocks int) {
	m.T.Helper()
	m.until(fmt.Sprintf("%d blocks and no request", blocks), func() bool {
		return len(m.blocks()) == blocks && len(m.requests()) == 0 && len(m.routes.names()) == blocks
	})
}

// empty reports whether nothing is left of blocks.
func (m *machine) empty() bool {
	return len(m.blocks()) == 0 && len(m.requests()) == 0 && len(m.routes.names()) == 0
}

// operator is berth-operator's controllers, with the rights that they have in a
// cluster, and what stops them from making blocks.
type operator struct {
	m      *machine
	served atomic.Int64  // requests that have got a block
	blocks chan struct{} // of limited: has one for each block that may be made
	stop   func()
}

// startOperator answers requests until the test ends, or stop is called.
func (m *machine) startOperator() *operator {
	m.T.Helper()
	o := &operator{m: m}
	o.start()
	return o
}

// startLimitedOperator makes so many blocks, and then none.
func (m *machine) startLimitedOperator(blocks int) *operator {
	m.T.Helper()
	o := &operator{m: m, blocks: make(chan struct{}, blocks)}
	for range blocks {
		o.blocks <- struct{}{}
	}
	o.start()
	return o
}

func (o *operator) start() {
	t := o.m.T
	t.Helper()
	cfg := harness.OperatorConfig(t, deploy.PoolMode)
	if o.blocks != nil {
		cfg.Wrap(harness.Through(o.hold))
	}
	mgr, err := controllers.Manager(cfg, addresspool.Watches())
	harness.OK(t, err)
	_, err = addresspool.Setup(t.Context(), mgr, addresspool.Options{
		Logger: sourcetest.Logger(t.Output()), MaxPods: 1024, RequestServed: func(time.Duration) { o.served.Add(1) },
	})
	harness.OK(t, err)
	o.stop = controllers.Run(t, mgr)
}

// hold keeps back requests for blocks that are not to be made.
func (o *operator) hold(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/addressblocks") {
		select {
		case <-o.blocks:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return next.RoundTrip(r)
}

// faults are on the way to the API server, where requests are held and replies lost.
type faults struct {
	hold func(method, path, body string) bool
	lose func(method string) bool

	held   chan struct{} // gets one for a request that is held
	passed chan struct{} // closed: none is any more

	lost sync.Map // requests whose reply was lost once
}

// faults puts itself between the daemon and the API server.
func (m *machine) faults() *faults {
	w := &faults{held: make(chan struct{}, 100), passed: make(chan struct{})}
	m.Config.Wrap(harness.Through(w.pass))
	return w
}

// pass is one request on its way.
func (w *faults) pass(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if w.hold != nil && w.hold(r.Method, r.URL.Path, string(body)) {
		w.held <- struct{}{}
		select {
		case <-w.passed:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	resp, err := next.RoundTrip(r)
	if err != nil || w.lose == nil || !w.lose(r.Method) {
		return resp, err
	}
	if _, before := w.lost.LoadOrStore(r.Method+r.URL.Path+string(body), true); before {
		return resp, nil
	}
	resp.Body.Close()
	return nil, errors.New("the reply was lost")
}

func (w *faults) release() { close(w.passed) }

// unhurried is the machine's clock, by which the API server's first word always
// comes in time.
type unhurried struct{ clock.Real }

// After implements clock.Clock.
func (c unhurried) After(d time.Duration) <-chan time.Time {
	if d == confirm.Timeout {
		return nil
	}
	return c.Real.After(d)
}

// ticks is a clock that a test moves. It starts at the machine's time, as
// certificates and tokens are judged by that.
type ticks struct{ *clock.Fake }

func newTicks() ticks { return ticks{clock.NewFake(time.Now())} }

// flow lets time pass as it does for everybody, until stop is called: a request
// that failed is made again.
func (c ticks) flow() (stop func()) {
	const step = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(step): // the machine's time
				c.Advance(step)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
