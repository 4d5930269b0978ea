package policies

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/node/networkpolicy"
	operator "github.com/berthnet/berth/internal/operator/networkpolicy"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/internal/policy/wire"
)

// agents is the namespace of a pod on every node, and the name of their policy.
const agents = "agents"

// Of each namespace, a quarter of the pods has a policy, and another quarter is named by it.
const kinds = 4

// nodePods is how many pods the node of Memory has, and nodeSpaces their namespaces, with spacePods in each.
const nodePods, nodeSpaces, spacePods = 50, 50, 100

// cluster is a simulated cluster.
type cluster struct {
	Order
	feed      *feed.Feed
	kernels   *kernels
	enforcers map[string]*networkpolicy.Enforcer // by node
}

func newCluster(o Order) *cluster {
	c := &cluster{Order: o, feed: feed.New(), kernels: &kernels{at: map[netip.Addr][]time.Time{}}, enforcers: map[string]*networkpolicy.Enforcer{}}
	if o.Workload == Memory {
		c.fillForNode()
		return c
	}
	for i := range o.Policies {
		c.addNamespace(spaceName(i))
		c.addPolicy(spaceName(i), "allow", "kind0", &networkingv1.NetworkPolicyPeer{PodSelector: selector("kind1")})
	}
	c.addNamespace(agents)
	peer := &networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}
	if o.Workload != Deleted {
		peer.PodSelector = selector("new")
	}
	if o.Workload != Events {
		c.addPolicy(agents, agents, "agent", peer)
	}
	for i := range o.Nodes {
		name := types.NamespacedName{Namespace: agents, Name: nodeName(i)}
		c.feed.SetPod(resolve.Pod{NamespacedName: name, UID: types.UID(nodeName(i)), Node: nodeName(i), Labels: kind("agent"), Addrs: []netip.Addr{c.address(-1 - i)}})
	}
	for i := range o.Pods {
		c.feed.SetPod(c.pod(i))
	}
	return c
}

// fillForNode makes a cluster in which one node has all policies. They name pods of its pods' namespaces, and most pods of a
// large cluster are in others.
func (c *cluster) fillForNode() {
	for i := range c.Policies {
		space := spaceName(i % nodeSpaces)
		c.addNamespace(space)
		c.addPolicy(space, fmt.Sprint("allow-", i), "kind0", &networkingv1.NetworkPolicyPeer{PodSelector: selector(fmt.Sprint("kind", 1+i/nodeSpaces%(kinds-1)))})
	}
	for i := range c.Pods {
		p := c.pod(i)
		p.Node, p.Namespace = nodeName(1), spaceName(nodeSpaces+i/spacePods)
		if i < nodePods {
			p.Node, p.Namespace, p.Labels = nodeName(0), spaceName(i%nodeSpaces), kind("kind0")
		} else if i < nodePods+nodeSpaces*spacePods {
			p.Namespace, p.Labels = spaceName(i%nodeSpaces), kind(fmt.Sprint("kind", 1+i/nodeSpaces%(kinds-1)))
		}
		c.feed.SetPod(p)
	}
}

func nodeName(i int) string  { return fmt.Sprintf("node-%04d", i) }
func spaceName(i int) string { return fmt.Sprintf("space-%04d", i) }

func kind(name string) map[string]string { return map[string]string{"kind": name} }

func selector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: kind(name)}
}

func (c *cluster) addNamespace(name string) {
	c.feed.SetNamespace(name, map[string]string{"kubernetes.io/metadata.name": name})
}

// addPolicy lets a peer reach pods of a kind.
func (c *cluster) addPolicy(namespace, name, to string, from *networkingv1.NetworkPolicyPeer) {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.PodSelector = *selector(to)
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{*from}}}
	c.feed.SetPolicy(compile.NetworkPolicy(p))
}

// address is that of a pod by its number; agents have negative ones.
func (c *cluster) address(i int) netip.Addr {
	i += 1 << 20
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// pod is a pod by its number. Those of a namespace and kind are on different nodes.
func (c *cluster) pod(i int) resolve.Pod {
	i %= c.Pods
	space, inSpace := i%c.Policies, i/c.Policies
	return resolve.Pod{
		NamespacedName: types.NamespacedName{Namespace: spaceName(space), Name: fmt.Sprintf("pod-%06d", i)}, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)),
		Node: nodeName((7919*space + 41*inSpace) % max(c.Nodes, 1)), Labels: kind(fmt.Sprint("kind", inSpace*kinds*c.Policies/c.Pods)), Addrs: []netip.Addr{c.address(i)},
	}
}

// newPod is a pod that all agents allow, without an address yet.
func (c *cluster) newPod(i int) resolve.Pod {
	p := c.pod(i)
	p.Name, p.UID, p.Labels, p.Addrs = "new-"+p.Name, "new-"+p.UID, kind("new"), nil
	return p
}

func podOf(p resolve.Pod) networkpolicy.Pod {
	return networkpolicy.Pod{PodName: policy.PodName(p.NamespacedName), UID: string(p.UID)}
}

// start starts the operator's server and the nodes.
func (c *cluster) start(ctx context.Context, parts *bubble.Parts) error {
	dir, err := os.MkdirTemp("", "bench-policies-")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = os.RemoveAll(dir) })
	listener := bufconn.Listen(32 << 10)
	server := grpc.NewServer()
	wire.RegisterPoliciesServer(server, operator.NewServer(operator.Server{
		Feed:      c.feed,
		Node:      func(_ context.Context, token string) (string, error) { return token, nil },
		MayAssign: func(context.Context, string, types.NamespacedName, []netip.Addr) (bool, error) { return false, nil },
		Serves:    func() error { return nil },
		Clock:     clock.Real{}, Log: slog.New(slog.DiscardHandler),
	}))
	parts.Start("the operator", func(ctx context.Context) error {
		context.AfterFunc(ctx, server.Stop)
		return server.Serve(listener)
	})
	for i := range c.Nodes {
		name := nodeName(i)
		if i >= c.Enforcers {
			s := c.feed.Subscribe(name)
			parts.Start(name, func(ctx context.Context) error { return c.take(ctx, s) })
			continue
		}
		e := networkpolicy.New(networkpolicy.Options{
			Kernel: &kernel{kernels: c.kernels, cost: c.Kernel, end: c.End}, Dial: dialer(listener, name), Dir: filepath.Join(dir, name),
			Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
		})
		c.enforcers[name] = e
		e.Restore(map[string]networkpolicy.Pod{agents: {PodName: policy.PodName{Namespace: agents, Name: name}, UID: name, Addrs: []netip.Addr{c.address(-1 - i)}}})
		parts.Start(name, e.Run)
	}
	return nil
}

// dialer connects a node to the operator. Its token is its name.
func dialer(to *bufconn.Listener, node string) networkpolicy.Dialer {
	return func(context.Context) (networkpolicy.Leader, error) {
		conn, err := grpc.NewClient("passthrough:operator", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return to.DialContext(ctx) }),
			grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
				return next(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+node), d, c, method, o...)
			}))
		if err != nil {
			return networkpolicy.Leader{}, err
		}
		return networkpolicy.Leader{PoliciesClient: wire.NewPoliciesClient(conn), End: func() { _ = conn.Close() }}, nil
	}
}

// take takes what a node is told, as the operator sends it, and confirms it after the time that its kernel would take. Whole
// sets are not encoded.
func (c *cluster) take(ctx context.Context, s *feed.Subscriber) error {
	const gather = 20 * time.Millisecond // as the server does
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Ready():
		}
		<-time.After(time.Until(last.Add(gather)))
		u := s.Next()
		if u.Version == 0 {
			continue
		}
		last = time.Now()
		if !u.Whole {
			for _, part := range wire.Encode(u) {
				if _, err := proto.Marshal(part); err != nil {
					return err
				}
			}
		}
		<-time.After(c.Kernel)
		c.kernels.note(u.Sets)
		s.Confirm(u.Version)
	}
}

// kernels are what nodes' kernels enforce, and since when.
type kernels struct {
	mu      sync.Mutex
	at      map[netip.Addr][]time.Time // for each node that enforces a new address
	rules   []time.Time
	updates int
}

func (k *kernels) note(changed policy.SetChanges) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.rules = append(k.rules, now)
	k.updates++
	for _, change := range changed {
		for e, came := range change.Elements {
			if came && !change.Whole {
				k.at[e.Addr] = append(k.at[e.Addr], now)
			}
		}
	}
}

// reset returns the number of updates since it was called last.
func (k *kernels) reset() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.updates
	k.updates = 0
	return n
}

// enforced returns when each node began to enforce an address.
func (k *kernels) enforced(a netip.Addr) []time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.at[a]
}

// changed returns the changes of kernels since a time.
func (k *kernels) changed(since time.Time) (list []time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, at := range k.rules {
		if !at.Before(since) {
			list = append(list, at)
		}
	}
	return list
}

// kernel is a node's kernel, which takes some time for each change.
type kernel struct {
	networkpolicy.Kernel // what is not called
	*kernels
	cost, end time.Duration
}

func (k *kernel) Apply(_ []policytable.Pod, _ policytable.Elements, changed policy.SetChanges) error {
	<-time.After(k.cost)
	k.note(changed)
	return nil
}

func (k *kernel) ApplyElements(elements policytable.Elements, changed policy.SetChanges) error {
	return k.Apply(nil, elements, changed)
}

func (k *kernel) Connections() ([]policytable.Connection, error) {
	<-time.After(k.end)
	return nil, nil
}

func (k *kernel) End([]policytable.Connection, func(policy.Flow) bool) (int, error) { return 0, nil }

func (k *kernel) Refused() ([]policytable.Refused, error)      { return nil, nil }
func (k *kernel) Present() (bool, error)                       { return true, nil }
func (k *kernel) Watch(context.Context) (<-chan string, error) { return make(chan string), nil }
