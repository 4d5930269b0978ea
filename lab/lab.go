// Package lab is a whole lab in one process: a virtual cloud, the fabric that
// carries its packets, and nodes with real berthd processes and pods. The
// vpclab command keeps one running; tests start as many as they like.
package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
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
	// and berthd is told so; only IPv4 when empty. With IPv6 the spec's VPCs and subnets have
	// blocks of it (WithIPv6), and each node an address. In the other modes it is empty.
	IPFamilies ipfamily.Set
	// IPv6Egress has pods without an IPv6 address reach the IPv6 world as their node, and berthd
	// is told so. The VPC has IPv6 then. Pods without an IPv4 address reach that of IPv4 anyway.
	IPv6Egress bool
	// Pools are what a lab in pool mode begins with; DefaultPools() when nil.
	Pools []v1alpha1.AddressPool
	// VPCPorts lets pods have NICs that are ports of VPCs beside the interface that the
	// mode gives them. They ask for them by annotations. It is always so in port mode.
	VPCPorts bool
	// VPCs are what a lab with ports begins with; DefaultVPCs() when nil. In port mode pods
	// that name none are in the first.
	VPCs []VPC
	// PortCloud raises who has the ports of a lab with ports; portcloud.NewModel when nil.
	// portcloud.NewBranches is for operator mode.
	PortCloud func(context.Context, portcloud.Options) (portcloud.Cloud, error)
	// Egress has pods reach the outside by gateways of Egresses, which the lab runs unless it has
	// kubelets. It takes a kernel with Foo-over-UDP (package vm).
	Egress bool
	// NodeNetworkTemplates has NodeNetworkTemplates count in node mode: there is a Kubernetes
	// API then. In operator mode they count in any case.
	NodeNetworkTemplates bool
	// OperatorCount is how many berth-operator processes there are where the mode, or
	// VPCPorts or Egress, has operators, 1 when 0; one of them leads.
	OperatorCount int
	OperatorArgs  []string          // of every berth-operator
	OperatorEnv   map[string]string // likewise
	// RestartOperators starts those again that end by themselves, as a kubelet
	// does: one that loses its Lease ends.
	RestartOperators bool
	// Kubelets makes the nodes whole machines and the Kubernetes API a whole
	// cluster's, in any mode; nil: the lab itself stands for runtimes, kubelets and
	// controllers, and starts berthd and berth-operator as processes.
	Kubelets *Kubelets
	// KubeAssets is the folder of the control plane's programs;
	// $KUBEBUILDER_ASSETS when empty.
	KubeAssets string

	// DaemonArgs and BerthdEnv are given to every berthd, beyond what the lab
	// itself tells it (directories, endpoints, names).
	DaemonArgs []string
	BerthdEnv  map[string]string
	// NoDaemons leaves berthd to be started by Node.Start, and berth-operator by
	// Operator.Start.
	NoDaemons bool

	Log          *slog.Logger // discards when nil
	Progress     func(string) // told one line a step; may be nil
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

	servers   []*http.Server
	echoes    []*echo.Server
	operators []*Operator
	gateways  *gateways     // nil without egress
	cancel    func()        // ends the subscription to the cloud's events
	ended     chan struct{} // closed when the lab is
	givenUp   chan struct{} // closed when who wanted the lab gives it up while it is raised
	kubeUp    chan struct{} // closed when kubelets may join
	booting   sync.WaitGroup

	following sync.Mutex // held while one event is followed

	mu       sync.Mutex // guards all below; never held across I/O
	nodes    map[string]*machine
	followed uint64     // the last event that the fabric has followed
	moved    *sync.Cond // on mu; when followed or closed changed
	trouble  []error    // what went wrong where nobody could be told
	closed   bool
}

// Start raises a lab and returns when every node can take pods. Leftovers of
// an earlier lab of the same ID are removed first.
func Start(ctx context.Context, o Options) (*Lab, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	l := &Lab{Options: o, nodes: map[string]*machine{}, cancel: func() {}, ended: make(chan struct{}), givenUp: make(chan struct{}), kubeUp: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { close(l.givenUp) })
	defer stop()
	l.moved = sync.NewCond(&l.mu)
	if err := l.raise(ctx); err != nil {
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

// raise starts the parts in the order in which they need each other.
func (l *Lab) raise(ctx context.Context) error {
	if swept, err := Sweep(l.Dir, l.ID); err != nil {
		return fmt.Errorf("remove leftovers of an earlier lab: %w", err)
	} else if len(swept) > 0 {
		l.Progress(fmt.Sprintf("removed %d leftovers of an earlier lab", len(swept)))
	}
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return fmt.Errorf("lab directory: %w", err)
	}
	switch l.Mode {
	case PoolMode:
		return l.raiseSite(ctx)
	case PortMode:
		return l.raisePorts(ctx)
	default:
		return l.raiseEC2(ctx)
	}
}

// raiseEC2 raises a lab with a VPC of EC2.
func (l *Lab) raiseEC2(ctx context.Context) error {
	var err error
	if l.Cloud, err = vpc.New(*l.Spec, l.CloudOptions...); err != nil {
		return err
	}
	books := l.Cloud.Snapshot()
	if l.Fabric, err = fabric.New(fabric.Options{ID: l.ID, CIDRs: cidrs(books), Subnets: books.Subnets, EgressOnly: egressOnly(books)}); err != nil {
		return err
	}
	l.Progress(fmt.Sprintf("VPC %s with %d subnets; internet host %s, on-premises host %s",
		books.VPCs[0].CIDRs[0], len(books.Subnets), fabric.InternetHost, fabric.OnPremHost))
	if l.HasIPv6() {
		l.Progress(fmt.Sprintf("VPC %s of IPv6; internet host %s, on-premises host %s", books.VPCs[0].IPv6CIDRs[0], fabric.InternetHost6, fabric.OnPremHost6))
	}
	if err := l.serve(); err != nil {
		return err
	}
	if l.Kubelets != nil { // machines boot while the control plane starts
		return l.raiseCluster(ctx, l.follow)
	}
	if err := l.raiseKube(ctx); err != nil {
		return err
	}
	if err := l.follow(); err != nil {
		return err
	}
	return l.settle(ctx)
}

// settle waits until the lab is up, unless daemons are left to others.
func (l *Lab) settle(ctx context.Context) error {
	if err := l.Reported(ctx); err != nil {
		return errors.Join(err, l.Trouble())
	}
	if l.NoDaemons {
		return nil
	}
	if err := l.WaitReady(ctx); err != nil || !l.hasPorts() {
		return err
	}
	return l.WaitVPCs(ctx)
}

func cidrs(b vpc.Books) []netip.Prefix {
	var out []netip.Prefix
	for _, v := range b.VPCs {
		out = append(append(out, v.CIDRs...), v.IPv6CIDRs...)
	}
	return out
}

// egressOnly tells whether IPv6 leaves by an egress-only internet gateway.
func egressOnly(b vpc.Books) bool {
	return slices.ContainsFunc(b.RouteTables, func(t vpc.RouteTable) bool { return slices.ContainsFunc(t.Routes, vpc.Route.EgressOnly) })
}

// WaitReady returns when the daemon of every node is ready, and every operator; with
// kubelets, when every Node is Ready and names are resolved.
func (l *Lab) WaitReady(ctx context.Context) error {
	if l.Kubelets != nil {
		return l.waitCluster(ctx)
	}
	nodes := l.Nodes()
	errs := make([]error, len(nodes)+len(l.operators))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			if errs[i] = n.WaitReady(ctx); errs[i] == nil {
				l.Progress("node " + n.Name + " is ready")
			}
		})
	}
	for i, o := range l.operators {
		wg.Go(func() {
			if errs[len(nodes)+i] = o.WaitReady(ctx); errs[len(nodes)+i] == nil {
				l.Progress(o.Name + " is ready")
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Nodes lists the nodes by name.
func (l *Lab) Nodes() []*node.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*node.Node
	for _, name := range slices.Sorted(maps.Keys(l.nodes)) {
		out = append(out, l.nodes[name].Node)
	}
	return out
}

func (l *Lab) machines() []*machine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.nodes))
}

// Node returns a node by name.
func (l *Lab) Node(name string) (*node.Node, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.nodes[name]; m != nil {
		return m.Node, nil
	}
	return nil, fmt.Errorf("no node %q; there are %v", name, slices.Sorted(maps.Keys(l.nodes)))
}

// Books are EC2's books as they are now; empty where there is no EC2.
func (l *Lab) Books() vpc.Books {
	if l.Cloud == nil {
		return vpc.Books{}
	}
	return l.Cloud.Snapshot()
}

// RouterPath is the namespace of whatever belongs to no node.
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

// Trouble is what went wrong in the lab itself while it ran.
func (l *Lab) Trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.trouble...)
}

func (l *Lab) note(err error) {
	if err == nil {
		return
	}
	l.Log.Error("lab trouble", "err", err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = append(l.trouble, err)
}

// Close removes everything of the lab but its directory's logs. A second Close
// does nothing.
func (l *Lab) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.moved.Broadcast()
	l.mu.Unlock()
	if closed {
		return nil
	}
	close(l.ended)
	l.cancel()
	l.following.Lock() // an event that is being followed ends first
	defer l.following.Unlock()
	var errs []error
	for _, s := range l.servers {
		errs = append(errs, s.Close())
	}
	for _, e := range l.echoes {
		errs = append(errs, e.Close())
	}
	if l.Cloud != nil {
		l.Cloud.Close()
	}
	if l.gateways != nil {
		errs = append(errs, l.gateways.close())
	}
	errs = append(errs, l.closeKube())
	l.booting.Wait()
	nodes := l.machines()
	ended := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { ended[i] = errors.Join(n.PowerOff(), n.scrapHost()) })
	}
	wg.Wait()
	errs = append(errs, ended...)
	for _, dir := range []string{filepath.Join(disksDir, l.ID), disksDir} {
		_ = os.Remove(dir) // unless somebody has a disk there
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
