// Package lab runs a whole lab in one process: a virtual cloud, the fabric that carries its packets, and nodes with real
// berthd processes and pods. The vpclab command keeps one running; tests can start several.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
)

// Options describe a lab. Only Dir is needed.
type Options struct {
	// Dir contains the nodes' directories, sockets and logs. Keep it short because of the sockets.
	Dir string
	// ID is part of the lab's namespace names; default IDOf(Dir).
	ID string
	// BinDir contains berthd and berth; default is the directory of this program.
	BinDir string
	// Spec is the cloud's content; default DefaultSpec(Nodes, InstanceType).
	Spec         *spec.Spec
	Nodes        int    // default 2
	InstanceType string // default m5.large
	// Simulated reports whether the instance of a name is no machine of the lab: EC2 has it and its ENIs, and the caller
	// simulates its Node and its daemon. If nil, all instances are machines.
	Simulated func(name string) bool

	Mode Mode // default NodeMode
	// IPFamilies are the families of pods' addresses in node mode and operator mode, which berthd gets as a flag; default
	// IPv4. With IPv6, the spec's VPCs and subnets get IPv6 blocks (WithIPv6), and each node an IPv6 address. In the other
	// modes it must be empty.
	IPFamilies ipfamily.Set
	// IPv6Egress lets pods without an IPv6 address reach IPv6 destinations as their node; berthd gets it as a flag. The
	// VPC then has IPv6. Pods without an IPv4 address always reach IPv4 hosts.
	IPv6Egress bool
	// Pools are the initial pools of a lab in pool mode; default DefaultPools().
	Pools []v1alpha1.AddressPool
	// VPCPorts lets pods request, with annotations, NICs that are ports of VPCs, in addition to the interface that the
	// mode gives them. It is always set in port mode.
	VPCPorts bool
	// VPCs are the initial VPCs of a lab with ports; default DefaultVPCs(). In port mode, pods that name none are in the
	// first.
	VPCs []VPC
	// PortCloud starts the provider of ports of a lab with ports; default portcloud.NewModel. portcloud.NewBranches is for
	// operator mode.
	PortCloud func(context.Context, portcloud.Options) (portcloud.Cloud, error)
	// Egress lets pods reach the outside through gateways of Egresses, which the lab runs unless it has kubelets. It
	// requires a kernel with Foo-over-UDP (package vm).
	Egress bool
	// NetworkPolicies has berthd enforce network policies.
	NetworkPolicies bool
	// CRDs are kinds of other projects (*.yaml), which are installed before operators start.
	CRDs fs.FS
	// NodeNetworkTemplates enables NodeNetworkTemplates in node mode, which then has a Kubernetes API. In operator mode
	// they are always enabled.
	NodeNetworkTemplates bool
	// AmazonVPCCNI is the directory of the programs of the Amazon VPC CNI, which nodes in node mode can run instead of
	// berthd (NewAmazonVPCCNI). The lab then has a Kubernetes API.
	AmazonVPCCNI string
	// OperatorCount is the number of berth-operator processes if the mode, VPCPorts, Egress or NetworkPolicies requires operators; default
	// 1. One of them leads.
	OperatorCount int
	OperatorArgs  []string          // of every berth-operator
	OperatorEnv   map[string]string // likewise
	// RestartOperators restarts operators that exit, as a kubelet does: one that loses its Lease exits.
	RestartOperators bool
	// Kubelets makes the nodes whole machines and the Kubernetes API that of a whole cluster, in any mode. If nil, the
	// lab itself acts as runtimes, kubelets and controllers, and starts berthd and berth-operator as processes.
	Kubelets *Kubelets
	// KubeAssets is the directory of the control plane's programs; default $KUBEBUILDER_ASSETS.
	KubeAssets string

	// DaemonArgs and BerthdEnv apply to every berthd, in addition to the lab's own settings (directories, endpoints,
	// names).
	DaemonArgs []string
	BerthdEnv  map[string]string
	// NoDaemons leaves starting berthd to Node.Start, and berth-operator to Operator.Start.
	NoDaemons bool

	Log          *slog.Logger // default: discards
	Progress     func(string) // called with one line per step; may be nil
	CloudOptions []vpc.Option // clock, seed
}

// Lab is a running lab.
type Lab struct {
	Options
	Cloud  *vpc.Cloud // nil in pool and port mode, like Fabric
	Fabric *fabric.Fabric
	Site   *site.Site      // nil except in pool and port mode
	Ports  portcloud.Cloud // nil unless pods have ports
	Kube   *Cluster        // nil in node mode without kubelets, ports, egress and templates

	Chart *Chart // of a lab with kubelets

	machines  *machines
	follower  *follower
	operators *operators
	gateways  *gateways     // nil without egress
	services  []io.Closer   // of the cloud, and echo servers
	ended     chan struct{} // closed when the lab is closed
	closing   sync.Once
	trouble   troubles
}

// troubles are errors in the lab itself that no caller waits for.
type troubles struct {
	mu   sync.Mutex // guards list
	list []error
}

func (t *troubles) add(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, err)
}

func (t *troubles) all() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.list...)
}

// Start starts a lab and waits until every node can take pods. It first removes leftovers of an earlier lab with the
// same ID.
func Start(ctx context.Context, o Options) (*Lab, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	l := &Lab{Options: o, ended: make(chan struct{})}
	l.machines, l.follower, l.operators, l.Chart = newMachines(l), newFollower(l), &operators{lab: l}, &Chart{l}
	stop := context.AfterFunc(ctx, func() { close(l.machines.givenUp) })
	defer stop()
	if err := (builder{l}).raise(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (o Options) complete() (Options, error) {
	if os.Geteuid() != 0 {
		return o, errors.New("a lab creates network namespaces: run it as root")
	}
	if o.Dir == "" {
		return o, errors.New("lab directory: not set")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("lab directory: %w", err)
	}
	o.Dir = dir
	if o.ID == "" {
		o.ID = IDOf(dir)
	}
	if o.BinDir == "" {
		exe, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find this program's directory: %w", err)
		}
		o.BinDir = filepath.Dir(exe)
	}
	if o.BinDir, err = filepath.Abs(o.BinDir); err != nil {
		return o, fmt.Errorf("directory of the programs: %w", err)
	}
	if o, err = o.completeMode(); err != nil {
		return o, err
	}
	if o, err = o.completeKubelets(); err != nil {
		return o, err
	}
	for _, program := range o.programs() {
		if _, err := os.Stat(filepath.Join(o.BinDir, program)); err != nil && !o.NoDaemons && o.Kubelets == nil {
			return o, fmt.Errorf("find %s: %w (build the programs first, or set their directory)", program, err)
		}
	}
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	if o.InstanceType == "" {
		o.InstanceType = "m5.large"
	}
	if o, err = o.completeSpec(); err != nil {
		return o, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o, nil
}

// completeSpec completes Spec for the lab.
func (o Options) completeSpec() (Options, error) {
	if o.Spec == nil && o.Mode.HasEC2() {
		s := DefaultSpec(o.Nodes, o.InstanceType)
		o.Spec = &s
	}
	o, err := o.completeFamilies()
	if err != nil {
		return o, err
	}
	o.Spec = o.inCluster()
	return o, nil
}

// WaitReady waits until all daemons and operators are ready or, with kubelets, until all Nodes are Ready and DNS
// works.
func (l *Lab) WaitReady(ctx context.Context) error {
	if l.Kubelets != nil {
		if err := l.Kube.WaitNodesReady(ctx, l.Nodes()...); err != nil {
			return err
		}
		l.Progress(fmt.Sprintf("%d nodes are Ready", len(l.Nodes())))
		if err := l.Kube.WaitDeployment(ctx, addons.Namespace, addons.DNS); err != nil {
			return err
		}
		l.Progress("CoreDNS is ready")
		return nil
	}
	var ready errgroup.Group
	wait := func(name string, of interface{ WaitReady(context.Context) error }) {
		ready.Go(func() error {
			err := of.WaitReady(ctx)
			if err == nil {
				l.Progress(name + " is ready")
			}
			return err
		})
	}
	for _, n := range l.Nodes() {
		wait("node "+n.Name, n)
	}
	for _, o := range l.operators.list {
		wait(o.Name, o)
	}
	return ready.Wait()
}

// Nodes lists the nodes by name.
func (l *Lab) Nodes() []*node.Node { return l.machines.nodes() }

// Node returns a node by name.
func (l *Lab) Node(name string) (*node.Node, error) {
	m, err := l.machines.get(name)
	if err != nil {
		return nil, err
	}
	return m.Node, nil
}

// Operators returns all operators, running or not; none in node mode.
func (l *Lab) Operators() []*Operator { return l.operators.list }

// Leader returns the leading operator according to the Lease, or nil.
func (l *Lab) Leader(ctx context.Context) (*Operator, error) { return l.operators.leader(ctx) }

// WaitEvents waits until the fabric has applied every event of the cloud so far. Calls of a busy cloud may return
// earlier.
func (l *Lab) WaitEvents() { l.follower.catchUp() }

// Snapshot returns a snapshot of EC2's state, empty if there is no EC2.
func (l *Lab) Snapshot() vpc.Snapshot {
	if l.Cloud == nil {
		return vpc.Snapshot{}
	}
	return l.Cloud.Snapshot()
}

// RouterPath returns the network namespace of the router.
func (l *Lab) RouterPath() string {
	if l.Site != nil {
		return l.Site.RouterPath()
	}
	return l.Fabric.RouterPath()
}

// OutsidePath returns the network namespace of the host on the internet, or outside the site.
func (l *Lab) OutsidePath() string {
	if l.Site != nil {
		return l.Site.OutsidePath()
	}
	return l.Fabric.InternetPath()
}

// Err returns errors of the lab itself.
func (l *Lab) Err() error { return l.trouble.all() }

// note records an error for Err.
func (l *Lab) note(err error) {
	if err != nil {
		l.Log.Error("lab error", "err", err)
		l.trouble.add(err)
	}
}

// Close removes the lab except its directory's logs. A second Close does nothing.
func (l *Lab) Close() (err error) {
	l.closing.Do(func() { err = l.close() })
	return err
}

func (l *Lab) close() error {
	close(l.ended)
	l.follower.close()
	var errs []error
	for _, s := range l.services {
		errs = append(errs, s.Close())
	}
	if l.Cloud != nil {
		l.Cloud.Close()
	}
	if l.gateways != nil {
		errs = append(errs, l.gateways.close())
	}
	errs = append(errs, l.operators.kill())
	if l.Kube != nil {
		errs = append(errs, l.Kube.close())
	}
	errs = append(errs, l.machines.close())
	for _, dir := range []string{filepath.Join(disksDir, l.ID), disksDir} {
		_ = os.Remove(dir) // unless another lab has a disk there
	}
	if l.Fabric != nil {
		errs = append(errs, l.Fabric.Close())
	}
	if l.Ports != nil {
		errs = append(errs, l.Ports.Close())
	}
	if l.Site != nil {
		errs = append(errs, l.Site.Close())
	}
	return errors.Join(errs...)
}
