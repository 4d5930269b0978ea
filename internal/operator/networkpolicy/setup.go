package networkpolicy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/listener"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/operator/nodeaddress"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/internal/policy/wire"
)

// Options are the settings of network policies.
type Options struct {
	Listener  net.Listener // on an address that nodes reach; closed when the manager ends
	Namespace string       // the operator's own, with the ConfigMap
	Daemon    string       // user name of the nodes' daemons
	// Judge reports whether an address can be a pod's on its node.
	Judge func(ctx context.Context, p *corev1.Pod, a netip.Addr) (nodeaddress.Verdict, error)
	// OfNIC reports whether an address is known to belong to a PodNIC of a pod.
	OfNIC  func(types.NamespacedName, netip.Addr) bool
	Clock  clock.Clock
	Logger *slog.Logger
}

const (
	// maxCallAge limits how long a node is served after its token was reviewed.
	maxCallAge = 6 * time.Hour
	// A node has one stream on a connection, and sends little: names, UIDs and addresses of pods, and a token of a few kilobytes.
	maxStreams, maxMessage, maxHeaders = 4, 16 << 10, 32 << 10
	// connectTimeout limits the time until the TLS handshake is done.
	connectTimeout = 10 * time.Second
	// pingAfter is the idle time after which a node is probed, and pingTimeout the time it has to answer.
	pingAfter, pingTimeout = 10 * time.Second, 10 * time.Second
	// window is the flow control window in bytes. It is fixed, because otherwise gRPC sends a ping after each message to measure the
	// connection, which delays starting pods.
	window = 64 << 10
	// Connections of nodes take precedence over those of other addresses, which maxConnections and maxPerPeer limit.
	maxConnections, maxPerPeer = 20000, 4
)

// Policies are the network policies of a cluster. They are followed and served while the operator leads.
type Policies struct {
	follower  *follower
	publisher *publisher
	server    *grpc.Server
	listener  net.Listener
	manager   manager.Manager
}

// Setup makes a manager follow network policies, and serve nodes while it leads. Its cache must include the kinds of Watches.
func Setup(mgr manager.Manager, o Options) (*Policies, error) {
	api, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API for ClusterNetworkPolicies: %w", err)
	}
	found, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API for ClusterNetworkPolicies: %w", err)
	}
	f := &follower{
		feed: feed.New(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator), clock: o.Clock, log: o.Logger,
		namespaces: map[string]bool{}, held: map[string]map[string]resolve.Pod{}, policies: map[policy.Ref]*followed{}, nodes: newNodeAddresses(), unsynced: errReading,
	}
	f.feed.OfNIC = o.OfNIC
	f.optional = &watched.Optional{
		API: api, Discovery: found, Resource: clusterPolicies, Kind: kindClusterPolicy, Handler: f.clusterHandler(), Changed: f.clusterChanged, Clock: o.Clock, Log: o.Logger,
	}
	p := &Policies{
		follower: f, manager: mgr,
		listener: listener.Limit(o.Listener, listener.Limits{Total: maxConnections, PerPeer: maxPerPeer, Preferred: f.nodes.has, Work: pingTimeout}),
		publisher: &publisher{
			reader: mgr.GetAPIReader(), writer: mgr.GetClient(), namespace: o.Namespace, address: o.Listener.Addr().String(),
			serves: f.serves, clock: o.Clock, log: o.Logger,
		},
	}
	p.server = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: p.publisher.get})),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: maxCallAge, MaxConnectionAgeGrace: time.Second, Time: pingAfter, Timeout: pingTimeout}),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders), grpc.ConnectionTimeout(connectTimeout),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2, PermitWithoutStream: true}),
	)
	wire.RegisterPoliciesServer(p.server, NewServer(Server{
		Feed: f.feed, Node: reviewer{mgr.GetClient(), o.Daemon}.node, IsNode: f.nodes.has, MayAssign: mayAssign(o.Judge), Serves: f.serves, Clock: o.Clock, Log: o.Logger,
	}))
	return p, mgr.Add(manager.RunnableFunc(p.run))
}

// mayAssign returns a Server.MayAssign that uses a function for one address.
func mayAssign(judge func(context.Context, *corev1.Pod, netip.Addr) (nodeaddress.Verdict, error)) func(context.Context, string, types.NamespacedName, []netip.Addr) (bool, error) {
	return func(ctx context.Context, node string, pod types.NamespacedName, addrs []netip.Addr) (bool, error) {
		confirmed := true
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Spec: corev1.PodSpec{NodeName: node}}
		for _, a := range addrs {
			switch v, err := judge(ctx, p, a); {
			case err != nil:
				return false, err
			case v == nodeaddress.Impossible:
				return false, fmt.Errorf("%s is not an address of node %s or of the pod's PodNICs", a, node)
			default:
				confirmed = confirmed && v == nodeaddress.Confirmed
			}
		}
		return confirmed, nil
	}
}

// run serves while the operator leads.
func (p *Policies) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	running.Go(func() {
		if err := p.follower.start(ctx, p.manager.GetCache(), watched.API{Reader: p.manager.GetAPIReader(), Scheme: p.manager.GetScheme()}); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	})
	running.Go(func() { _ = p.follower.optional.Run(ctx) })
	running.Go(func() { p.follower.run(ctx) })
	running.Go(func() { p.publisher.run(ctx) })
	defer context.AfterFunc(ctx, p.server.Stop)()
	if err := p.server.Serve(p.listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve network policies: %w", err)
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Alive returns quickly unless a lock is held that all work needs.
func (p *Policies) Alive() { p.follower.feed.Counts() }

var (
	famPolicies   = metric.New("berth_operator_network_policies", "gauge", "Network policies that the operator distributes, by kind. 0 while it does not lead.", "kind")
	famUnresolved = metric.New("berth_operator_network_policies_unresolved", "gauge", "Network policies with parts that are invalid or match nothing, such as unknown port names or exceptions outside their block. Events on the policies name these parts.")
	famNodes      = metric.New("berth_operator_network_policy_nodes", "gauge", "Nodes that are connected to this operator for the network policies of their pods.")
	famSets       = metric.New("berth_operator_network_policy_sets", "gauge", "Sets of peers that network policies on connected nodes refer to.")
	famAddresses  = metric.New("berth_operator_network_policy_addresses", "gauge", "Addresses in these sets.")
)

// Families are the metrics, for the reference page.
var Families = []metric.Family{famPolicies, famUnresolved, famNodes, famSets, famAddresses}

// Gauges are collected on each scrape.
func (p *Policies) Gauges() prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		namespaced, cluster, unresolved := p.follower.counts()
		emit(famPolicies, float64(namespaced), "NetworkPolicy")
		emit(famPolicies, float64(cluster), kindClusterPolicy)
		emit(famUnresolved, float64(unresolved))
		nodes, sets, addresses := p.follower.feed.Counts()
		emit(famNodes, float64(nodes))
		emit(famSets, float64(sets))
		emit(famAddresses, float64(addresses))
	}, Families...)
}
