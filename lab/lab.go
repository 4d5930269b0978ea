// Package lab is a whole lab in one process: a virtual cloud, the fabric that
// carries its packets, and nodes with real berthd processes and pods. The
// vpclab command keeps one running; tests start as many as they like.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	// Dir holds the nodes' directories and logs. Keep it short: sockets lie in it.
	Dir string
	// ID names the lab's namespaces; IDOf(Dir) when empty.
	ID string
	// BinDir is where berthd and berth are; where this program is when empty.
	BinDir string
	// Spec is what the cloud holds; DefaultSpec(Nodes, InstanceType) when nil.
	Spec         *spec.Spec
	Nodes        int    // default 2
	InstanceType string // default m5.large

	Mode Mode // NodeMode when empty
	// IPFamilies are those of which each pod gets an address in node mode and operator mode,
	// and berthd gets the flag; only IPv4 when empty. With IPv6 the spec's VPCs and subnets have
	// blocks of it (WithIPv6), and each node an address. In the other modes it is empty.
	IPFamilies ipfamily.Set
	// IPv6Egress has pods without an IPv6 address reach the IPv6 world as their node, and berthd
	// gets the flag. The VPC has IPv6 then. Pods without an IPv4 address always reach IPv4 hosts.
	IPv6Egress bool
	// Pools are what a lab in pool mode begins with; DefaultPools() when nil.
	Pools []v1alpha1.AddressPool
	// VPCPorts lets pods have NICs that are ports of VPCs beside the interface that the
	// mode gives them. They ask for them by annotations. It is always so in port mode.
	VPCPorts bool
	// VPCs are what a lab with ports begins with; DefaultVPCs() when nil. In port mode pods
	// that name none are in the first.
	VPCs []VPC
	// PortCloud starts the provider of ports of a lab with ports; portcloud.NewModel when nil.
	// portcloud.NewBranches is for operator mode.
	PortCloud func(context.Context, portcloud.Options) (portcloud.Cloud, error)
	// Egress has pods reach the outside by gateways of Egresses, which the lab runs unless it has
	// kubelets. It takes a kernel with Foo-over-UDP (package vm).
	Egress bool
	// NetworkPolicies has berthd enforce network policies.
	NetworkPolicies bool
	// NodeNetworkTemplates has NodeNetworkTemplates count in node mode: there is a Kubernetes
	// API then. In operator mode they count in any case.
	NodeNetworkTemplates bool
	// OperatorCount is how many berth-operator processes there are where the mode, or
	// VPCPorts, Egress or NetworkPolicies, has operators, 1 when 0; one of them leads.
	OperatorCount int
	OperatorArgs  []string          // of every berth-operator
	OperatorEnv   map[string]string // likewise
	// RestartOperators starts those again that end by themselves, as a kubelet
	// does: one that loses its Lease ends.
	RestartOperators bool
	// Kubelets makes the nodes whole machines and the Kubernetes API a whole
	// cluster's, in any mode; nil: the lab itself acts as runtimes, kubelets and
	// controllers, and starts berthd and berth-operator as processes.
	Kubelets *Kubelets
	// KubeAssets is the folder of the control plane's programs;
	// $KUBEBUILDER_ASSETS when empty.
	KubeAssets string

	// DaemonArgs and BerthdEnv are given to every berthd, beyond what the lab
	// itself sets (directories, endpoints, names).
	DaemonArgs []string
	BerthdEnv  map[string]string
	// NoDaemons leaves berthd to be started by Node.Start, and berth-operator by
	// Operator.Start.
	NoDaemons bool

	Log          *slog.Logger // discards when nil
	Progress     func(string) // called with one line a step; may be nil
	CloudOptions []vpc.Option // clock, seed
}

// Lab is a running one.
type Lab struct {
	Options
	Cloud  *vpc.Cloud // nil in pool and port mode, as is Fabric
	Fabric *fabric.Fabric
	Site   *site.Site      // in pool and port mode, else nil
	Ports  portcloud.Cloud // where pods have ports, else nil
	Kube   *Cluster        // nil in node mode without kubelets, ports, egress and templates

	Chart *Chart // of a lab with kubelets

	machines  *machines
	follower  *follower
	operators *operators
	gateways  *gateways     // nil without egress
	services  []io.Closer   // of the cloud, and echo servers
	ended     chan struct{} // closed when the lab is
	closing   sync.Once
	trouble   troubles
}

// troubles are errors in the lab itself, where no caller waits for them.
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

// Start raises a lab and waits until every node can take pods. Leftovers of an earlier lab of the same ID are removed
// first.
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
		return o, errors.New("a lab makes network namespaces: run it as root")
	}
	if o.Dir == "" {
		return o, errors.New("lab directory: none given")
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
			return o, fmt.Errorf("find %s: %w (build the programs first, or say where they are)", program, err)
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

// completeSpec is Spec as the lab has it.
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

// WaitReady waits until all daemons and operators are ready or, with kubelets, until all Nodes are Ready and names are
// resolved.
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

// Operators are all there are, running or not; none in node mode.
func (l *Lab) Operators() []*Operator { return l.operators.list }

// Leader returns the operator that leads, by the Lease; nil when none does.
func (l *Lab) Leader(ctx context.Context) (*Operator, error) { return l.operators.leader(ctx) }

// WaitEvents waits until the fabric has applied every event of the cloud so far. Calls of a busy cloud may return
// before that.
func (l *Lab) WaitEvents() { l.follower.catchUp() }

// Snapshot is a snapshot of EC2's state; empty where there is no EC2.
func (l *Lab) Snapshot() vpc.Snapshot {
	if l.Cloud == nil {
		return vpc.Snapshot{}
	}
	return l.Cloud.Snapshot()
}

// RouterPath is the namespace of the router.
func (l *Lab) RouterPath() string {
	if l.Site != nil {
		return l.Site.RouterPath()
	}
	return l.Fabric.RouterPath()
}

// OutsidePath is the namespace of the host on the internet, or outside the site.
func (l *Lab) OutsidePath() string {
	if l.Site != nil {
		return l.Site.OutsidePath()
	}
	return l.Fabric.InternetPath()
}

// Err returns errors of the lab itself.
func (l *Lab) Err() error { return l.trouble.all() }

// note keeps an error for Err.
func (l *Lab) note(err error) {
	if err != nil {
		l.Log.Error("lab trouble", "err", err)
		l.trouble.add(err)
	}
}

// Close removes the lab except for its directory's logs. A second Close does nothing.
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
