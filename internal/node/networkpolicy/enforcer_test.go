package networkpolicy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/policytable"
	operator "github.com/berthnet/berth/internal/operator/networkpolicy"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/internal/policy/wire"
)

// kernel is a table in memory. It knows elements by changes alone, as the kernel does.
type kernel struct {
	mu     sync.Mutex
	fail   error
	refuse policy.Ref        // no pod may have it
	tries  int               // Apply was called
	pods   []policytable.Pod // nil: unknown
	sets   map[policy.SetID]map[policy.Element]bool

	foreign  chan string   // what other software changes
	ends     []time.Time   // when connections were looked at
	endTakes time.Duration // to list connections
	open     []policytable.Connection
	failEnd  error

	compared comparison
}

func (k *kernel) Apply(pods []policytable.Pod, elements policytable.Elements, changed policy.SetChanges) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.sets
	k.tries++
	if k.fail != nil {
		k.sets, k.pods = nil, nil
		return k.fail
	}
	for _, p := range pods {
		if slices.ContainsFunc(p.Policies, func(p *policy.Policy) bool { return p.Ref == k.refuse }) {
			k.sets = nil // pods stay, as the kernel has what it had
			return unix.EMSGSIZE
		}
	}
	k.sets, k.pods = map[policy.SetID]map[policy.Element]bool{}, slices.Clone(pods)
	for _, p := range pods {
		for _, of := range p.Policies {
			for id := range of.Sets() {
				if have := before[id]; have != nil {
					k.sets[id] = have
					continue
				}
				k.sets[id] = map[policy.Element]bool{}
				elements(id, func(e policy.Element) { k.sets[id][e] = true })
			}
		}
	}
	k.change(changed)
	return nil
}

func (k *kernel) ApplyElements(_ policytable.Elements, changed policy.SetChanges) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sets == nil {
		return policytable.ErrUnknown
	}
	k.change(changed)
	return nil
}

func (k *kernel) change(changed policy.SetChanges) {
	for id, change := range changed {
		if change.Whole && k.sets[id] != nil {
			k.sets[id] = map[policy.Element]bool{}
		}
		for e, came := range change.Elements {
			switch {
			case k.sets[id] == nil:
			case came:
				k.sets[id][e] = true
			default:
				delete(k.sets[id], e)
			}
		}
	}
}

func (k *kernel) Present() (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sets != nil, nil
}

func (k *kernel) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sets = nil
}

// fails makes the kernel fail all changes with an error; nil: none any more.
func (k *kernel) fails(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// refuses makes the kernel refuse a policy; empty: none any more.
func (k *kernel) refuses(p policy.Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = p
}

// flush is what other software does.
func (k *kernel) flush() {
	k.mu.Lock()
	k.pods, k.sets = nil, nil
	k.mu.Unlock()
	k.foreign <- "the table was removed"
}

func (k *kernel) Watch(context.Context) (<-chan string, error) { return k.foreign, nil }

func (*kernel) Refused() ([]policytable.Refused, error) { return nil, nil }

func (k *kernel) Connections() ([]policytable.Connection, error) {
	k.mu.Lock()
	k.ends = append(k.ends, time.Now())
	wait, list, err := k.endTakes, slices.Clone(k.open), k.failEnd
	k.mu.Unlock()
	sleep(wait)
	return list, err
}

func (k *kernel) End(list []policytable.Connection, allowed func(policy.Flow) bool) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.open)
	k.open = slices.DeleteFunc(k.open, func(c policytable.Connection) bool { return slices.Contains(list, c) && !allowed(c.Flow) })
	return n - len(k.open), nil
}

func (k *kernel) Has(id policy.SetID, e policy.Element) bool { return k.sets[id][e] }

// lets tells whether the kernel lets a packet through from one address to another.
func (k *kernel) lets(from, to netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := policy.Flow{Source: from, Destination: to, Protocol: 6, Port: 80}
	for _, p := range k.pods {
		if slices.Contains(p.Addrs, from) && !policy.Decide(p.Policies, policy.Egress, f, k).Allowed || slices.Contains(p.Addrs, to) && !policy.Decide(p.Policies, policy.Ingress, f, k).Allowed {
			return false
		}
	}
	return true
}

// cluster is an operator that nodes call, in a bubble.
type cluster struct {
	t        *testing.T
	feed     *feed.Feed
	listener atomic.Pointer[bufconn.Listener]
	server   *grpc.Server
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t}
	c.start()
	t.Cleanup(func() { c.server.Stop() })
	return c
}

// start starts an operator that knows nothing.
func (c *cluster) start() {
	c.feed = feed.New()
	listener, server := bufconn.Listen(1<<20), grpc.NewServer()
	c.server = server
	c.listener.Store(listener)
	wire.RegisterPoliciesServer(c.server, operator.NewServer(operator.Server{
		Feed: c.feed,
		Node: func(_ context.Context, token string) (string, error) {
			if token == "" {
				return "", errors.New("no token")
			}
			return token, nil
		},
		MayAssign: func(_ context.Context, _ string, _ types.NamespacedName, addrs []netip.Addr) (bool, error) {
			if slices.Contains(addrs, foreign) {
				return false, errors.New("the address is not the node's")
			}
			return false, nil
		},
		Serves: func() error { return nil },
		Clock:  clock.Real{}, Log: slog.New(slog.DiscardHandler),
	}))
	go func() { _ = server.Serve(listener) }()
}

var foreign = netip.MustParseAddr("192.0.2.99")

// node starts a node whose token is its name.
func (c *cluster) node(name, dir string) (*Enforcer, *kernel, func()) {
	c.t.Helper()
	return c.nodeWith(name, dir, func(*Options) {})
}

// nodeWith is node with other options.
func (c *cluster) nodeWith(name, dir string, with func(*Options)) (*Enforcer, *kernel, func()) {
	c.t.Helper()
	k := &kernel{foreign: make(chan string, 1)}
	o := Options{
		Kernel: k, Dir: dir, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
		Dial: func(context.Context) (Leader, error) {
			conn, err := grpc.NewClient("passthrough:operator",
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.listener.Load().DialContext(ctx) }),
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					return streamer(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+name), desc, cc, method, opts...)
				}))
			if err != nil {
				return Leader{}, err
			}
			return Leader{PoliciesClient: wire.NewPoliciesClient(conn), End: func() { _ = conn.Close() }}, nil
		},
	}
	with(&o)
	e := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
	})
	c.t.Cleanup(stop)
	return e, k, stop
}

func resolved(name, node string) resolve.Pod {
	return resolve.Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, UID: types.UID("uid-of-" + name), Node: node, Labels: map[string]string{"app": name}}
}

func running(name, addr string) Pod {
	return Pod{PodName: policy.PodName{Namespace: "default", Name: name}, UID: "uid-of-" + name, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
}

// clientsOnly lets pods with the label app=client reach those with app=server.
func clientsOnly() compile.Compiled {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "clients-only"}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": "server"}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}}
	return compile.NetworkPolicy(p)
}

// fill has an operator know a server and a client.
func (c *cluster) fill() {
	c.feed.SetPolicy(clientsOnly())
	c.feed.SetPod(resolved("server", "one"))
	c.feed.SetPod(resolved("client", "two"))
}

// withServer returns a filled cluster, and its node "one" with the server.
func withServer(t *testing.T) (c *cluster, one *Enforcer, k *kernel, server Pod) {
	t.Helper()
	c = newCluster(t)
	c.fill()
	one, k, _ = c.node("one", t.TempDir())
	server = running("server", "10.0.0.1")
	must(t, add(t, one, server))
	return c, one, k, server
}

// addClient adds a client on another node, which the server's policy allows.
func (c *cluster) addClient() resolve.Pod {
	client := resolved("client", "two")
	client.Addrs = running("client", "10.0.0.2").Addrs
	c.feed.SetPod(client)
	return client
}

// add does what an ADD does.
func add(t *testing.T, e *Enforcer, p Pod) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := e.Known(ctx, p.PodName, p.UID); err != nil {
		return err
	}
	if err := e.Set(ctx, p.Name, p); err != nil {
		return err
	}
	if done := e.Announce(p); done != nil {
		<-done
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The kernel has a pod's policies before the pod comes, once while it is there, and no more once it is gone.
func TestPoliciesComeBeforeTheirPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		c.feed.SetPod(resolved("neighbour", "one")) // no policy selects it
		one, kernel, _ := c.node("one", t.TempDir())
		server := running("server", "10.0.0.1")
		expect := func(when string, addrs ...int) {
			t.Helper()
			sleep(time.Second)
			kernel.mu.Lock()
			defer kernel.mu.Unlock()
			var have []int
			for _, p := range kernel.pods {
				if len(p.Policies) != 1 {
					t.Errorf("%s: a pod has %d policies, expected 1", when, len(p.Policies))
				}
				have = append(have, len(p.Addrs))
			}
			if !slices.Equal(have, addrs) {
				t.Errorf("%s: the kernel has pods with %v addresses, expected %v", when, have, addrs)
			}
		}
		expect("before the ADD", 0)
		must(t, add(t, one, server))
		expect("after the ADD", 1)
		one.Remove(server.Name)
		expect("after the DEL", 0)
		c.feed.DeletePod(types.NamespacedName(server.PodName))
		expect("without the Pod")
	})
}

// A pod's policies are in force when its ADD returns, and those who allow it let it through by then.
func TestPoliciesAreInForceWhenPodsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, kernelOfOne, _ := c.node("one", t.TempDir())
		two, _, _ := c.node("two", t.TempDir())
		server, client, stranger := running("server", "10.0.0.1"), running("client", "10.0.0.2"), running("stranger", "10.0.0.3")
		must(t, add(t, one, server))
		if kernelOfOne.lets(client.Addrs[0], server.Addrs[0]) {
			t.Error("the server is reached before it is known who may reach it")
		}
		began := time.Now()
		must(t, add(t, two, client))
		if !kernelOfOne.lets(client.Addrs[0], server.Addrs[0]) {
			t.Error("a client that is allowed does not reach the server once its ADD has returned")
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("the client's ADD took %s", took)
		}
		if err := add(t, two, stranger); err == nil {
			t.Error("a pod starts although nobody knows its policies")
		}
		c.feed.SetPod(resolved("stranger", "two"))
		must(t, add(t, two, stranger))
		if kernelOfOne.lets(stranger.Addrs[0], server.Addrs[0]) {
			t.Error("a stranger reaches the server")
		}
		two.Remove("client")
		c.feed.DeletePod(types.NamespacedName{Namespace: "default", Name: "client"})
		synctest.Wait()
		sleep(time.Second)
		if kernelOfOne.lets(client.Addrs[0], server.Addrs[0]) {
			t.Error("the address of a client that is gone still reaches the server")
		}
	})
}

// While the operator is away what is in force stays; a new one is told of pods whose status does not have their addresses yet; and what
// was stored is in force after a reboot without it.
func TestPoliciesOutliveTheirOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		dir := t.TempDir()
		one, kernelOfOne, stop := c.node("one", dir)
		two, _, _ := c.node("two", t.TempDir())
		server, client := running("server", "10.0.0.1"), running("client", "10.0.0.2")
		must(t, add(t, one, server))
		must(t, add(t, two, client))
		reached := func() bool {
			return kernelOfOne.lets(client.Addrs[0], server.Addrs[0]) && !kernelOfOne.lets(foreign, server.Addrs[0])
		}
		c.server.Stop()
		sleep(time.Hour)
		if !reached() {
			t.Error("policies changed while the operator was away")
		}
		c.start()
		c.fill()
		sleep(2 * time.Minute)
		if !reached() {
			t.Error("a new operator does not know the client's address")
		}
		c.server.Stop()
		stop()
		one, kernelOfOne, _ = c.node("one", dir) // with an empty kernel
		must(t, add(t, one, server))
		if !reached() {
			t.Error("what was stored is not in force after a reboot")
		}
	})
}

// A pod whose address is replaced has its policies for both addresses until it has lost the former one.
func TestPoliciesOfReplacedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, one, kernel, server := withServer(t)
		was, now := server.Addrs[0], netip.MustParseAddr("10.0.0.99")
		server.Addrs, server.Changes = []netip.Addr{now}, true
		must(t, one.Set(t.Context(), server.Name, server))
		if kernel.lets(foreign, was) || kernel.lets(foreign, now) {
			t.Error("strangers reach a pod while its address is replaced")
		}
		if server.Changes = false; one.Holds(server.Name, server) {
			t.Error("the former address of a pod stays its own")
		}
		must(t, one.Set(t.Context(), server.Name, server))
		if !kernel.lets(foreign, was) || kernel.lets(foreign, now) {
			t.Error("the policies of a pod are not those of its new address alone")
		}
	})
}

// After a connection to the operator, only the latest sandbox of a pod is announced.
func TestLatestSandboxIsAnnounced(t *testing.T) {
	name := policy.PodName{Namespace: "shop", Name: "web"}
	of := func(address string, set int) Pod {
		return Pod{PodName: name, UID: "u", Addrs: []netip.Addr{netip.MustParseAddr(address)}, set: set}
	}
	for what, tt := range map[string]struct {
		pods map[string]Pod
		want string
	}{
		"one":              {map[string]Pod{"a": of("10.0.0.1", 0)}, "10.0.0.1"},
		"another since":    {map[string]Pod{"a": of("10.0.0.1", 0), "b": of("10.0.0.2", 2), "c": of("10.0.0.3", 1)}, "10.0.0.2"},
		"several restored": {map[string]Pod{"a": of("10.0.0.1", 0), "b": of("10.0.0.2", 0)}, ""},
	} {
		e := &Enforcer{state: policy.NewState(), pods: tt.pods}
		e.state.Take(&policy.Update{Version: 1, Pods: map[policy.PodName]*policy.Selected{name: {UID: "u"}}})
		got := ""
		for _, p := range e.known() {
			got += p.Addrs[0].String()
		}
		if got != tt.want {
			t.Errorf("%s: announced are %q, want %q", what, got, tt.want)
		}
	}
}
