package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-logr/logr"
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
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/forward"
	"github.com/berthnet/berth/lab/network/ns"
	"github.com/berthnet/berth/lab/run/kube"
)

// Cluster is the Kubernetes side of a lab, in all modes but node mode alone: a real API
// server in the router's namespace, where nodes and operators reach it at
// apiEndpoint, with what the chart installs (deploy/chart), its workloads aside. Schedulers,
// controllers and kubelets are the lab itself.
type Cluster struct {
	*kube.ControlPlane
	// Client reads and writes as an administrator, without a cache.
	Client client.WithWatch

	// Kubeconfig is a file by which a person outside the lab is administrator.
	Kubeconfig string

	mode       Mode
	beside     bool         // pods have ports beside the interface that the mode gives them
	families   ipfamily.Set // of which ports of EC2 have addresses
	egress     bool         // pods reach the outside by gateways of Egresses
	templates  bool         // NodeNetworkTemplates count in node mode
	dir        string
	namespaces map[string]string // annotations of those that the lab makes for pods
	reports    *reports
	forward    *forward.Forward // for Kubeconfig
}

// The service accounts of the chart.
var (
	daemonAccount   = types.NamespacedName{Namespace: "kube-system", Name: "berthd"}
	operatorAccount = types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}
)

// raiseKube starts the control plane and the operators, with the cloud and the VPCs where pods
// have ports. There is none of it in node mode alone.
func (l *Lab) raiseKube(ctx context.Context) error {
	if !l.hasKube() {
		return nil
	}
	if l.hasPorts() {
		if err := l.raisePortCloud(ctx); err != nil {
			return err
		}
	}
	o := kube.Options{CRDs: deploy.CRDs()}
	if l.Egress {
		o = o.Workloads()
	}
	if err := l.startKube(ctx, o); err != nil {
		return err
	}
	release := deploy.InMode(string(l.Mode), l.clusterName())
	if l.VPCPorts {
		release.Values["ports"] = map[string]any{"enabled": true}
	}
	if l.hasBranches() {
		release.Values["daemon"] = map[string]any{"settings": map[string]any{trunkSetting: true}}
	}
	if l.Egress {
		release.Values["egress"] = map[string]any{"enabled": true, "image": map[string]any{"repository": gatewayProgram, "tag": gatewayImageTag}}
	}
	if l.NodeNetworkTemplates {
		release.Values["nodeNetworkTemplates"] = map[string]any{"enabled": true}
	}
	objects, err := deploy.Render(release)
	if err != nil {
		return err
	}
	if err := l.Kube.ApplyObjects(ctx, objects.Access()); err != nil {
		return fmt.Errorf("install the roles of %s mode: %w", l.Mode, err)
	}
	if !l.hasOperators() {
		return nil
	}
	if err := l.raiseOperators(ctx); err != nil {
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

// startKube starts a control plane in the router's namespace, with what o says
// further, and opens it to the outside.
func (l *Lab) startKube(ctx context.Context, o kube.Options) error {
	o.Assets, o.Dir, o.Netns, o.Address = l.KubeAssets, filepath.Join(l.Dir, kubeDir), l.RouterPath(), l.apiEndpoint()
	if o.Address.Is6() {
		o.Families = ipfamily.OnlyIPv6
	}
	control, carried, err := l.controlPlane(ctx, o)
	if err != nil {
		return err
	}
	l.Kube = &Cluster{ControlPlane: control, mode: l.Mode, beside: l.VPCPorts && l.Mode != PortMode, families: l.IPFamilies, egress: l.Egress, templates: l.NodeNetworkTemplates, dir: o.Dir, reports: newReports(l.note)}
	if l.Kube.Client, err = newClient(control); err != nil {
		return err
	}
	if carried != nil {
		l.Kube.forward, l.Kube.Kubeconfig = carried, control.AdminKubeconfig()
		// Programs in the lab's namespaces reach it where it would be.
		l.Kube.ControlPlane = control.In(l.RouterPath(), netip.AddrPortFrom(o.Address, control.Endpoint().Port()))
	} else if err := l.Kube.open(); err != nil {
		return fmt.Errorf("open the Kubernetes API to the outside: %w", err)
	}
	l.Progress("Kubernetes API, real; KUBECONFIG=" + l.Kube.Kubeconfig)
	return nil
}

// apiEndpoint is where the Kubernetes API is served: by IPv6 only where nodes are of the cluster
// with addresses of IPv6 alone, of whose family the API server must be, or have no other.
func (l *Lab) apiEndpoint() netip.Addr {
	books := l.Books()
	native := slices.ContainsFunc(books.Instances, func(i vpc.Instance) bool { return IPv6Only(books, i.ID) })
	if native || l.Kubelets != nil && l.PodFamilies() == ipfamily.OnlyIPv6 {
		return fabric.APIEndpoint6
	}
	return fabric.APIEndpoint
}

// controlPlane starts one or, where another process runs one for this machine, carries the
// router's connections to it.
func (l *Lab) controlPlane(ctx context.Context, o kube.Options) (*kube.ControlPlane, *forward.Forward, error) {
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
	cfg.ServerName = inside.Addr().String() // that of the certificate
	cfg.Host = "https://" + c.forward.Addr().String()
	c.Kubeconfig = filepath.Join(c.dir, "kubeconfig")
	return kube.WriteKubeconfig(c.Kubeconfig, cfg)
}

func newClient(control *kube.ControlPlane) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	ctrllog.SetLogger(logr.Discard()) // errors come as such; without, a lab that is half a minute old is told of a missing logger
	cfg := control.Config()
	cfg.WarningHandler = rest.NoWarnings{} // advice for persons who write manifests
	return client.NewWithWatch(cfg, client.Options{Scheme: scheme})
}

// kubeconfig writes what lets a program act as a service account's pod on a
// node, or as the account itself when node is empty.
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

// NodeNetwork reads a node's object.
func (c *Cluster) NodeNetwork(ctx context.Context, node string) (*v1alpha1.NodeNetwork, error) {
	o := &v1alpha1.NodeNetwork{}
	return o, c.read(ctx, "NodeNetwork", node, o)
}

func (c *Cluster) read(ctx context.Context, kind, name string, o client.Object) error {
	if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, o); err != nil {
		return fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	return nil
}

// NodeNetworks lists them all.
func (c *Cluster) NodeNetworks(ctx context.Context) ([]v1alpha1.NodeNetwork, error) {
	list := &v1alpha1.NodeNetworkList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list NodeNetworks: %w", err)
	}
	return list.Items, nil
}

// CreateNodeNetwork makes a node's object before its daemon does, as a person
// may.
func (c *Cluster) CreateNodeNetwork(ctx context.Context, o *v1alpha1.NodeNetwork) error {
	if err := c.Client.Create(ctx, o); err != nil {
		return fmt.Errorf("create NodeNetwork %s: %w", o.Name, err)
	}
	return nil
}

// EditNodeNetwork changes a node's object as a person does with kubectl edit.
func (c *Cluster) EditNodeNetwork(ctx context.Context, node string, change func(*v1alpha1.NodeNetwork)) error {
	o, err := c.NodeNetwork(ctx, node)
	if err != nil {
		return err
	}
	edited := o.DeepCopy()
	change(edited)
	if err := c.Client.Patch(ctx, edited, client.MergeFrom(o)); err != nil {
		return fmt.Errorf("edit NodeNetwork %s: %w", node, err)
	}
	return nil
}

// Watch sends a node's object whenever it changes, until stop is called or ctx
// ends; then the channel is closed.
func (c *Cluster) Watch(ctx context.Context, node string) (objects <-chan *v1alpha1.NodeNetwork, stop func(), err error) {
	w, err := c.Client.Watch(ctx, &v1alpha1.NodeNetworkList{}, client.MatchingFields{"metadata.name": node})
	if err != nil {
		return nil, nil, fmt.Errorf("watch NodeNetwork %s: %w", node, err)
	}
	out := make(chan *v1alpha1.NodeNetwork)
	go func() {
		defer close(out)
		for e := range w.ResultChan() {
			if o, ok := e.Object.(*v1alpha1.NodeNetwork); ok {
				out <- o
			}
		}
	}()
	return out, w.Stop, nil
}

// closeKube ends the operators, the lab's reports and the control plane.
func (l *Lab) closeKube() error {
	if l.Kube == nil {
		return nil
	}
	var errs []error
	for _, o := range l.operators {
		errs = append(errs, o.Kill())
	}
	if l.Kube.forward != nil {
		errs = append(errs, l.Kube.forward.Close())
	}
	l.Kube.reports.close()
	return errors.Join(append(errs, l.Kube.Stop())...)
}

// clusterName is what daemons and operators know the cluster by.
func (l *Lab) clusterName() string { return clusterName(l.ID) }

func clusterName(lab string) string { return "vpclab-" + lab }

// Reported returns once the API server knows of all that happened to the lab's
// nodes and pods, or ctx ends. There is nothing to report in node mode.
func (l *Lab) Reported(ctx context.Context) error {
	if l.Kube == nil {
		return nil
	}
	return l.Kube.reports.wait(ctx)
}
