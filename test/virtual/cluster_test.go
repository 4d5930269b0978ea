package virtual

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/operator"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/test/harness/apifake"
)

// transport sends requests of all programs to their test's API server.
var transport apifake.Transport

func TestMain(m *testing.M) {
	http.DefaultTransport = &transport // of client-go for servers without TLS
	// The other handlers delay errors of one bubble by the time of another.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] //nolint:reassign // there is no other way
	debug.SetGCPercent(400)                                   // all is garbage soon, and there is room for it
	os.Exit(m.Run())
}

// cluster is a control plane with an operator that may be halted.
type cluster struct {
	*program // the operator
	settings []string
	api      *apifake.Server
	admin    client.Client
	cloud    *cloudfake.Cloud   // nil where there is none
	vpc      *portfake.Provider // of all VPCs; nil: they are as their specs say
	dir      string
	log      *logBuffer
	made     int // kubeconfig files
}

func core(resource, kind string, namespaced bool) apifake.Kind {
	return apifake.Kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind(kind), Resource: resource, Cluster: !namespaced, Status: kind != "Namespace" && kind != "Event"}
}

func berth(resource, kind string, status bool) apifake.Kind {
	return apifake.Kind{GroupVersionKind: v1alpha1.GroupVersion.WithKind(kind), Resource: resource, Cluster: true, Status: status}
}

func namespaced(resource, kind string, status bool) apifake.Kind {
	k := berth(resource, kind, status)
	k.Cluster = false
	return k
}

// newCluster makes a control plane within a bubble, with further settings of the operator. Call start
// next.
func newCluster(t *testing.T, log *logBuffer, settings ...string) *cluster {
	t.Helper()
	c := &cluster{settings: settings, dir: t.TempDir(), log: log}
	c.program = &program{t: t, name: "berth-operator", launch: c.launch, moved: func(*world) {}}
	c.api = apifake.New(slices.Concat(egressKinds, []apifake.Kind{
		core("nodes", "Node", false), core("namespaces", "Namespace", false), core("pods", "Pod", true), core("events", "Event", true),
		{GroupVersionKind: schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"}, Resource: "events"},
		berth("nodenetworks", "NodeNetwork", true), berth("nodenetworktemplates", "NodeNetworkTemplate", true),
		berth("vpcs", "VPC", true), namespaced("podnics", "PodNIC", true), namespaced("nicpolicies", "NICPolicy", true),
		berth("addresspools", "AddressPool", true), berth("addressblocks", "AddressBlock", false), berth("blockrequests", "BlockRequest", true),
	})...)
	scheme := runtime.NewScheme()
	check(t, clientscheme.AddToScheme(scheme))
	check(t, v1alpha1.AddToScheme(scheme))
	rc, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig(func(ctx context.Context, call func(context.Context) error) error { return call(ctx) }))
	check(t, err)
	rc.QPS = -1
	c.admin, err = client.New(rc, client.Options{Scheme: scheme})
	check(t, err)
	return c
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kubeconfig writes a file by which one program reaches the API server. Requests take no time: the
// operator makes some with a mutex held, for which virtual time does not pass.
func (c *cluster) kubeconfig(do apifake.Do) string {
	c.made++
	// Host names are unique in the process.
	path, err := transport.Kubeconfig(c.dir, fmt.Sprintf("api-%d-%d", time.Now().UnixNano(), c.made), c.api, do)
	check(c.t, err)
	return path
}

// launch starts an operator.
func (c *cluster) launch(w *world) {
	flags := pflag.NewFlagSet("berth-operator", pflag.ContinueOnError)
	loader := config.NewOperatorLoader(flags)
	check(c.t, flags.Parse(append([]string{
		"--cluster-name=" + clusterName, "--kubeconfig=" + c.kubeconfig(w.request), "--leader-elect=false", "--metrics-address=",
	}, c.settings...)))
	cfg, err := loader.Load(nil)
	check(c.t, err)
	log := slog.New(slog.NewTextHandler(c.log, nil)).With("operator", w)
	deps := operator.Dependencies{
		Metrics: prometheus.NewRegistry(), Several: true,
		Cloud: func(context.Context, aws.Options) (pace.Calls, error) { return c.cloud.Client(w.request), nil },
	}
	if c.vpc != nil {
		deps.VPC = c.vpc.Client(w.request)
	}
	w.run(func(ctx context.Context) error { return operator.RunWith(ctx, cfg, log, deps) })
}

// addNode makes the Node of a node, and has its daemons reach the API server.
func (c *cluster) addNode(n *node) {
	c.t.Helper()
	check(c.t, c.admin.Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	if c.cloud != nil {
		o.Spec.ProviderID = "aws:///zone-a/" + instance
	}
	check(c.t, c.admin.Create(c.t.Context(), o))
	n.kubeconfig = func(w *world) string { return c.kubeconfig(n.slowly(w.request)) }
	n.pods.object = func(name string, exists bool) error {
		o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: nodeName}}
		if exists {
			return c.admin.Create(c.t.Context(), o)
		}
		return c.admin.Delete(c.t.Context(), o)
	}
	n.pods.ready = func(name string, addresses []string) error { return c.ready("default", name, addresses) }
}

// ready marks a Pod as ready, with addresses in CIDR form.
func (c *cluster) ready(namespace, name string, addresses []string) error {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	status := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	for _, a := range addresses {
		ip, _, _ := strings.Cut(a, "/")
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	status.PodIP = status.PodIPs[0].IP
	return patch(c.t, c.admin.Status().Patch, o, map[string]any{"status": status})
}

// patch merges fields into an object.
func patch[O any](t *testing.T, by func(context.Context, client.Object, client.Patch, ...O) error, o client.Object, fields map[string]any) error {
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return by(t.Context(), o, client.RawPatch(types.MergePatchType, body))
}

// takeBackReleases has the operator ask for the release of addresses, and pods come that need them
// before the slow daemon has confirmed it. The operator takes the release back.
func (c *cluster) takeBackReleases(n *node) {
	c.t.Helper()
	n.pods.each(90, 96, n.pods.add)
	n.settle()
	n.latency.Store(int64(8 * time.Second))
	n.pods.each(90, 96, n.pods.del)
	await(c.t, func() error {
		o := &v1alpha1.NodeNetwork{}
		if err := c.admin.Get(c.t.Context(), client.ObjectKey{Name: nodeName}, o); err != nil || len(o.Spec.IPAM.Releasing) == 0 || len(o.Status.IPAM.Released) > 0 {
			return fmt.Errorf("the node has to release %v, and has confirmed %v: %w", o.Spec.IPAM.Releasing, o.Status.IPAM.Released, err)
		}
		return nil
	})
	n.pods.each(90, 96, n.pods.add)
	n.latency.Store(0)
	n.settle()
	n.pods.each(90, 96, n.pods.del)
}

// addPool creates an address pool with blocks of four addresses.
func (c *cluster) addPool(name, ipv4, ipv6 string) {
	c.t.Helper()
	check(c.t, c.admin.Create(c.t.Context(), &v1alpha1.AddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.AddressPoolSpec{BlockSizeBits: new(int32(2)), Subnets: []v1alpha1.PoolSubnet{{IPv4: ipv4, IPv6: ipv6}}},
	}))
}

// blocksAgree compares the node's blocks, of which it must have a number, with what its kernel
// announces, and expects no open request.
func (c *cluster) blocksAgree(n *node, want int) error {
	var blocks v1alpha1.AddressBlockList
	var requests v1alpha1.BlockRequestList
	if err := errors.Join(c.admin.List(c.t.Context(), &blocks), c.admin.List(c.t.Context(), &requests)); err != nil {
		return err
	}
	var has, announced []string
	of := map[string]string{} // by request
	for _, b := range blocks.Items {
		if other, twice := of[string(b.RequestUID)]; twice {
			c.t.Errorf("%s and %s were both cut for the request %s", other, b.Name, b.RequestUID)
		}
		of[string(b.RequestUID)] = b.Name
		if b.NodeName != nodeName || b.DeletionTimestamp != nil {
			return fmt.Errorf("block %s is of %q, deleted %v", b.Name, b.NodeName, b.DeletionTimestamp)
		}
		has = append(has, b.IPv4, b.IPv6)
	}
	for p, is := range n.kernel.Blocks() {
		if !is {
			return fmt.Errorf("the block %s is not announced", p)
		}
		announced = append(announced, p.String())
	}
	slices.Sort(has)
	slices.Sort(announced)
	if len(requests.Items) > 0 || len(blocks.Items) != want {
		return fmt.Errorf("%d requests, %d blocks, want none and %d", len(requests.Items), len(blocks.Items), want)
	}
	return same("announced blocks", announced, has)
}

// nothingLeft expects no block, and one pool fewer.
func (c *cluster) nothingLeft() error {
	var blocks v1alpha1.AddressBlockList
	var pools v1alpha1.AddressPoolList
	if err := errors.Join(c.admin.List(c.t.Context(), &blocks), c.admin.List(c.t.Context(), &pools)); err != nil {
		return err
	}
	if len(blocks.Items) > 0 || len(pools.Items) != 1 {
		return fmt.Errorf("%d blocks and %d pools are left, want none and one", len(blocks.Items), len(pools.Items))
	}
	return nil
}
