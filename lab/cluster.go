package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/forward"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// Cluster is the Kubernetes side of a lab, in all modes but plain node mode: a real API server in the router's
// namespace, which nodes and operators reach at apiEndpoint, with the objects of the chart (deploy/chart) except
// its workloads. The lab itself acts as scheduler, controllers and kubelets.
type Cluster struct {
	*kube.ControlPlane
	// Client reads and writes as an administrator, without a cache.
	Client client.WithWatch

	// Kubeconfig is the path of an administrator's kubeconfig for use outside the lab.
	Kubeconfig string

	// Workloads returns pods of the chart, in a lab without kubelets.
	Workloads Workloads

	vpcs    []string // of the VPC objects that the lab created
	dir     string
	assets  string // directory of kubectl
	nodes   *nodeObjects
	forward *forward.Forward // for Kubeconfig
}

// Service accounts of the chart.
var (
	daemonAccount   = types.NamespacedName{Namespace: "kube-system", Name: "berthd"}
	operatorAccount = types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}
)

// raiseKube starts the control plane and the operators and, if pods have ports, the cloud and the VPCs. Plain node
// mode has none of them.
func (b builder) raiseKube(ctx context.Context) error {
	l := b.lab
	if !l.hasKube() {
		return nil
	}
	if l.hasPorts() {
		if err := b.raisePortCloud(ctx); err != nil {
			return err
		}
	}
	o := kube.Options{CRDs: deploy.CRDs()}
	if l.Egress {
		o = o.Workloads()
	}
	if err := b.startKube(ctx, o); err != nil {
		return err
	}
	release := deploy.InMode(string(l.Mode), l.clusterName())
	if l.VPCPorts {
		release.Values["ports"] = map[string]any{"enabled": true}
	}
	if hasBranches(l) {
		release.Values["daemon"] = map[string]any{"settings": map[string]any{trunkSetting: true}}
	}
	if l.Egress {
		release.Values["egress"] = map[string]any{"enabled": true, "image": map[string]any{"repository": gatewayProgram, "tag": gatewayImageTag}}
	}
	if l.NetworkPolicies {
		release.Values["networkPolicies"] = map[string]any{"enabled": true}
	}
	if l.NodeNetworkTemplates {
		release.Values["nodeNetworkTemplates"] = map[string]any{"enabled": true}
	}
	var err error
	if l.Kube.Workloads.chart, err = deploy.Render(release); err != nil {
		return err
	}
	if err := l.Kube.ApplyObjects(ctx, l.Kube.Workloads.chart.Access()); err != nil {
		return fmt.Errorf("install the roles of %s mode: %w", l.Mode, err)
	}
	if l.CRDs != nil {
		if err := l.Kube.InstallCRDs(ctx, l.CRDs); err != nil {
			return err
		}
	}
	if !l.hasOperators() {
		return nil
	}
	if err := l.operators.start(ctx); err != nil {
		return err
	}
	if l.Egress {
		l.gateways = newGateways(l)
	}
	if !l.hasPorts() {
		return nil
	}
	return l.Kube.raiseVPCs(ctx, l.Ports.Access(), l.VPCs)
}

// startKube starts a control plane in the router's namespace, and exposes it outside the lab.
func (b builder) startKube(ctx context.Context, o kube.Options) error {
	l := b.lab
	o.Assets, o.Dir, o.Netns, o.Address = l.KubeAssets, filepath.Join(l.Dir, kubeDir), l.RouterPath(), b.apiEndpoint()
	if o.Address.Is6() {
		o.Families = ipfamily.OnlyIPv6
	}
	control, carried, err := b.controlPlane(ctx, o)
	if err != nil {
		return err
	}
	l.Kube = &Cluster{ControlPlane: control, dir: o.Dir, assets: l.KubeAssets}
	l.Kube.nodes = &nodeObjects{kube: l.Kube, options: l.Options, beside: l.VPCPorts && l.Mode != PortMode, reports: newReports(l.note)}
	if l.Kube.Client, err = newClient(control); err != nil {
		return err
	}
	if carried != nil {
		l.Kube.forward, l.Kube.Kubeconfig = carried, control.AdminKubeconfig()
		// Programs in the lab's namespaces reach it at this address.
		l.Kube.ControlPlane = control.In(l.RouterPath(), netip.AddrPortFrom(o.Address, control.Endpoint().Port()))
	} else if err := l.Kube.open(); err != nil {
		return fmt.Errorf("expose the Kubernetes API outside the lab: %w", err)
	}
	l.Progress("Kubernetes API server; KUBECONFIG=" + l.Kube.Kubeconfig)
	return nil
}

// apiEndpoint returns the address of the Kubernetes API: IPv6 if the cluster is IPv6-only.
func (b builder) apiEndpoint() netip.Addr {
	l := b.lab
	snapshot := l.Snapshot()
	native := slices.ContainsFunc(snapshot.Instances, func(i vpc.Instance) bool { return IPv6Only(snapshot, i.ID) })
	if native || l.Kubelets != nil && l.PodFamilies() == ipfamily.OnlyIPv6 {
		return fabric.APIEndpoint6
	}
	return fabric.APIEndpoint
}

// controlPlane starts a control plane or, if another process runs one for this machine, forwards connections from
// the router's namespace to it.
func (b builder) controlPlane(ctx context.Context, o kube.Options) (*kube.ControlPlane, *forward.Forward, error) {
	l := b.lab
	remote := os.Getenv(kube.RemoteDir)
	if remote == "" {
		control, err := kube.Start(ctx, o)
		return control, nil, err
	}
	control, err := kube.Remote(remote)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, nil, err
	}
	at, err := ns.Listen(l.RouterPath(), netip.AddrPortFrom(o.Address, control.Endpoint().Port()))
	if err != nil {
		return nil, nil, fmt.Errorf("listen for the Kubernetes API: %w", err)
	}
	return control, forward.Start(at, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", control.Endpoint().String())
	}), nil
}

// open makes the API reachable from outside the lab.
func (c *Cluster) open() error {
	cfg := c.Config()
	inside, err := netip.ParseAddrPort(strings.TrimPrefix(cfg.Host, "https://"))
	if err != nil {
		return err
	}
	if c.forward, err = forwardPort(c.Netns, inside); err != nil {
		return err
	}
	cfg.ServerName = inside.Addr().String() // name in the certificate
	cfg.Host = "https://" + c.forward.Addr().String()
	c.Kubeconfig = filepath.Join(c.dir, "kubeconfig")
	return kube.WriteKubeconfig(c.Kubeconfig, cfg)
}

func newClient(control *kube.ControlPlane) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	ctrllog.SetLogger(logr.Discard()) // errors are returned; controller-runtime complains about a missing logger after half a minute
	cfg := control.Config()
	cfg.WarningHandler = rest.NoWarnings{} // warnings for authors of manifests
	return client.NewWithWatch(cfg, client.Options{Scheme: scheme})
}

// kubeconfig writes a kubeconfig with a token of the service account, bound to a pod on a node if one is given.
func (c *Cluster) kubeconfig(ctx context.Context, file string, account types.NamespacedName, node string) error {
	var token string
	var err error
	if node == "" {
		token, err = c.Token(ctx, account, (*corev1.Pod)(nil))
	} else {
		token, err = c.NodeToken(ctx, account, node)
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return kube.WriteKubeconfig(file, c.ConfigWithToken(token))
}

// object is a pointer to an API type.
type object[T any] interface {
	*T
	client.Object
}

// read reads an object. Errors name its kind.
func read[T any, P object[T]](ctx context.Context, c *Cluster, kind string, key client.ObjectKey) (P, error) {
	o := P(new(T))
	if err := c.Client.Get(ctx, key, o); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", kind, name(key), err)
	}
	return o, nil
}

// edit changes an object as a user does with kubectl edit.
func edit[T any, P object[T]](ctx context.Context, c *Cluster, kind string, key client.ObjectKey, change func(P)) error {
	o, err := read[T, P](ctx, c, kind, key)
	if err != nil {
		return err
	}
	edited := o.DeepCopyObject().(P)
	change(edited)
	if err := c.Client.Patch(ctx, edited, client.MergeFrom(o)); err != nil {
		return fmt.Errorf("edit %s %s: %w", kind, name(key), err)
	}
	return nil
}

// name formats a key, without the slash if it has no namespace.
func name(key client.ObjectKey) string { return strings.TrimPrefix(key.String(), "/") }

// NodeNetwork reads a node's NodeNetwork.
func (c *Cluster) NodeNetwork(ctx context.Context, node string) (*v1alpha1.NodeNetwork, error) {
	return read[v1alpha1.NodeNetwork](ctx, c, "NodeNetwork", client.ObjectKey{Name: node})
}

// EditNodeNetwork changes a node's NodeNetwork as a user does with kubectl edit.
func (c *Cluster) EditNodeNetwork(ctx context.Context, node string, change func(*v1alpha1.NodeNetwork)) error {
	return edit(ctx, c, "NodeNetwork", client.ObjectKey{Name: node}, change)
}

// NodeNetworks lists all NodeNetworks.
func (c *Cluster) NodeNetworks(ctx context.Context) ([]v1alpha1.NodeNetwork, error) {
	list := &v1alpha1.NodeNetworkList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list NodeNetworks: %w", err)
	}
	return list.Items, nil
}

// clusterName is the name that daemons and operators use for the cluster.
func (o Options) clusterName() string { return clusterName(o.ID) }

func clusterName(lab string) string { return "vpclab-" + lab }

// WaitReports waits until the API server has all changes of nodes and pods so far. In node mode there is nothing to
// report.
func (l *Lab) WaitReports(ctx context.Context) error {
	if l.Kube == nil {
		return nil
	}
	return l.Kube.nodes.reports.wait(ctx)
}

// close stops the lab's reports and the control plane.
func (c *Cluster) close() error {
	var err error
	if c.forward != nil {
		err = c.forward.Close()
	}
	c.nodes.reports.close()
	return errors.Join(err, c.Stop())
}

// Kubectl runs the real kubectl against the cluster and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.assets, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// WaitDeployment waits until all replicas of a Deployment are Ready and match its latest template.
func (c *Cluster) WaitDeployment(ctx context.Context, namespace, name string) error {
	return poll.Until(ctx, func() error {
		d := &appsv1.Deployment{}
		if err := c.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, d); err != nil {
			return err
		}
		s, want := d.Status, int32(1)
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		if s.ObservedGeneration < d.Generation || s.UpdatedReplicas < want || s.Replicas > want || s.ReadyReplicas < want {
			return fmt.Errorf("deployment %s/%s: %d of %d replicas are ready, %d are updated, %d exist", namespace, name, s.ReadyReplicas, want, s.UpdatedReplicas, s.Replicas)
		}
		return nil
	})
}

// WaitNodesReady waits until Nodes are Ready, which requires a network plugin.
func (c *Cluster) WaitNodesReady(ctx context.Context, nodes ...*node.Node) error {
	return poll.Until(ctx, func() error {
		for _, n := range nodes {
			o := &corev1.Node{}
			if err := c.Client.Get(ctx, client.ObjectKey{Name: n.Name}, o); err != nil {
				return err
			}
			if ready := condition(o, corev1.NodeReady); ready.Status != corev1.ConditionTrue {
				return fmt.Errorf("node %s is not Ready: %s", n.Name, ready.Message)
			}
		}
		return nil
	})
}

// forwardPort forwards a loopback port to a port inside a namespace of the lab, for programs outside such as kubectl.
func forwardPort(path string, to netip.AddrPort) (*forward.Forward, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return forward.Start(l, func(ctx context.Context) (net.Conn, error) {
		return ns.Dial(ctx, path, "tcp", to, netip.Addr{})
	}), nil
}
