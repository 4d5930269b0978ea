// Package demo shows Berth's main job on the lab: pods get addresses of the VPC,
// or of a data centre's pools, through the real plugin and daemon, and reach each
// other, the nodes and the outside while EC2 misbehaves and daemons are killed. Each claim is a proof
// that passes or fails with figures; nothing but the cloud is imitated.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/node"
)

// DefaultDir is where the demo's lab is by default.
const DefaultDir = "/run/vpclab/demo"

// Options say what to show.
type Options struct {
	Lab     lab.Options
	Program string    // how vpclab was called, for the commands to try next
	Keep    bool      // leave the lab up, steered by its control socket
	Out     io.Writer // gets the report, line by line
	// Done is called once all proofs were tried, with what failed, before a lab
	// that is kept is served.
	Done func(error) error
}

// patience is how long the lab may take to come up, and each proof: it only ends
// what hangs.
const patience = 3 * time.Minute

// size is what the nodes of a mode can hold and what is put on them.
type size struct {
	instanceType string
	addresses    int // for pods
	pods         int // a node, to begin with: they need more than one ENI
}

// maxENIs of a node of either size, the primary included.
const maxENIs = 3

// sizes are small enough that a handful of pods lands on several ENIs. Operator
// mode leaves the primary one to the node.
var sizes = map[lab.Mode]size{
	lab.NodeMode:     {instanceType: "t3.small", addresses: 9, pods: 5},
	lab.OperatorMode: {instanceType: "t3.medium", addresses: 10, pods: 6},
	lab.PoolMode:     {pods: 10}, // a block holds 8
	lab.PortMode:     {},
}

// sizes6 are those with IPv6-only pods: of types without prefixes, since one prefix would have
// an address for every pod. All addresses of a secondary ENI are for pods.
var sizes6 = map[lab.Mode]size{
	lab.NodeMode:     {instanceType: "t2.small", addresses: 8, pods: 5},
	lab.OperatorMode: {instanceType: "t2.medium", addresses: 12, pods: 7},
}

func sizeOf(o lab.Options) size {
	if o.PodFamilies() == ipfamily.OnlyIPv6 {
		return sizes6[o.Mode]
	}
	return sizes[o.Mode]
}

// stage is what the proofs act on.
type stage struct {
	size
	lab     *lab.Lab
	nodes   []*node.Node
	release func() // of the lock on the lab's directory

	operators *operators
	ports     *ports
	cluster   *cluster
	egress    *egress
	branches  *branches
	pools     *pools
	beside    sync.WaitGroup // goroutines of the proof that is being tried (start)
}

func newStage(l *lab.Lab, size size, quote func(string), release func()) *stage {
	return &stage{
		size: size, lab: l, nodes: l.Nodes(), release: release,
		operators: &operators{lab: l}, ports: &ports{lab: l, nodes: l.Nodes()}, cluster: &cluster{lab: l, nodes: l.Nodes(), quote: quote},
		egress: &egress{lab: l, nodes: l.Nodes()}, branches: &branches{lab: l, nodes: l.Nodes()}, pools: &pools{lab: l},
	}
}

// try tries a proof and returns its figures, or why it failed.
func (s *stage) try(ctx context.Context, p proof) (figures string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	err = attempt(func() { figures = p.try(ctx, s) })
	cancel()
	s.beside.Wait()
	return figures, err
}

// errFailed reports that all proofs were tried, and not all passed.
var errFailed = errors.New("not every proof passed")

// Run raises a lab, tries every proof and removes the lab again, or serves it
// until ctx ends with Keep. An error means that a proof failed or
// could not be tried.
func Run(ctx context.Context, o Options) error {
	o, err := o.complete()
	if err != nil {
		return err
	}
	t := &reporter{out: o.Out, began: time.Now(), proofs: len(proofsOf(o.Lab))}
	o.Lab.Progress = t.note
	more, lacks := o.branches()
	if more && lacks == nil {
		t.proofs += len(branchProofs)
	}
	s, err := raise(ctx, o.Lab, t)
	if err != nil {
		return errors.Join(err, done(o, err))
	}
	defer func() { s.release() }()
	failed := s.play(ctx, t)
	switch {
	case failed != nil || !more:
	case lacks != nil:
		t.notRun("per-pod security groups", lacks)
	default:
		if err := s.clear(); err != nil {
			return errors.Join(err, done(o, err))
		}
		next, err := raise(ctx, branchLab(o.Lab), t)
		if err != nil {
			return errors.Join(err, done(o, err))
		}
		s = next
		failed = s.play(ctx, t)
	}
	if failed == nil {
		failed = t.summary()
	}
	if !o.Keep || ctx.Err() != nil {
		err := s.clear()
		if err == nil {
			t.after(o.Program)
		}
		return errors.Join(failed, err, done(o, failed))
	}
	t.next(o.Program, s.lab)
	err = control.Serve(ctx, s.lab, func() error { return done(o, failed) })
	return errors.Join(failed, err, s.lab.Close())
}

// raise brings a lab up, in a directory that is locked until release.
func raise(ctx context.Context, o lab.Options, t *reporter) (*stage, error) {
	switch {
	case o.Kubelets != nil:
		t.say("Raising a cluster of %d nodes with containerd, kubelet and kube-proxy on this machine, for Berth in %s mode ...", o.Nodes, o.Mode)
	case o.Egress:
		t.say("Raising a data centre with %d nodes, whose pods reach the outside by gateways ...", o.Nodes)
	case o.Mode == lab.PoolMode:
		t.say("Raising a data centre with %d nodes on this machine ...", o.Nodes)
	case o.Mode == lab.PortMode:
		t.say("Raising an OpenStack with %d nodes on this machine ...", o.Nodes)
	case ofBranches(o):
		t.say("Raising a VPC with %d nodes (%s) that have trunks on this machine ...", o.Nodes, o.InstanceType)
	default:
		t.say("Raising a VPC with %d nodes (%s) on this machine ...", o.Nodes, o.InstanceType)
	}
	if o.Kubelets == nil && o.PodFamilies() == ipfamily.OnlyIPv6 {
		t.say("%s", aboutIPv6)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab directory: %w", err)
	}
	release, err := control.Lock(o.Dir)
	if err != nil {
		return nil, err
	}
	up, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l, err := lab.Start(up, o)
	if err != nil {
		release()
		return nil, fmt.Errorf("raise the lab: %w", err)
	}
	return newStage(l, sizeOf(o), t.quote, release), nil
}

// branches reports whether the demo of branches follows, in its own lab, and why it cannot.
func (o Options) branches() (more bool, lacks error) {
	switch {
	case o.Lab.Mode != lab.OperatorMode || o.Lab.Kubelets != nil || ofBranches(o.Lab):
		return false, nil
	case o.Keep:
		return true, errors.New("this lab is kept, and it takes another: leave --keep out")
	}
	return true, lacksVLANs()
}

// complete fills in what the demo needs of its lab; what the caller says wins.
func (o Options) complete() (Options, error) {
	if o.Lab.Mode == "" {
		o.Lab.Mode = lab.NodeMode
	}
	if _, ok := sizes[o.Lab.Mode]; !ok {
		return o, fmt.Errorf("mode %q: want one of %v", o.Lab.Mode, lab.Modes)
	}
	if o.Lab.Nodes < 2 {
		return o, fmt.Errorf("%d nodes: the demo needs 2 at least", o.Lab.Nodes)
	}
	if o.Lab.Kubelets != nil {
		return o.completeCluster(), nil
	}
	if ofBranches(o.Lab) {
		if o.Lab.IPFamilies == ipfamily.OnlyIPv6 {
			return o, fmt.Errorf("IP families %q: the demo of branches shows IPv4 too: leave them out", o.Lab.IPFamilies)
		}
		o.Lab = branchLab(o.Lab)
		return o, nil
	}
	if o.Lab.IPFamilies == "" {
		o.Lab.IPFamilies = familiesIn(o.Lab.Mode)
	}
	args := []string{"--exclude-snat-cidrs=192.168.100.0/24"}
	size := sizeOf(o.Lab)
	o.Lab.InstanceType = size.instanceType
	switch o.Lab.Mode {
	case lab.OperatorMode:
		args = append(args, operatorModeArgs...)
		o.Lab.OperatorCount, o.Lab.RestartOperators = 2, true
		o.Lab.OperatorArgs = append(slices.Clone(operatorArgs), o.Lab.OperatorArgs...)
		s := labSpec(o.Lab.Nodes, size.instanceType)
		o.Lab.Spec = &s
	case lab.PoolMode:
		if o.Lab.Egress {
			return o.completeEgress(), nil
		}
		args = slices.Clone(poolArgs)
		o.Lab.Nodes = max(o.Lab.Nodes, 3)
		o.Lab.OperatorCount, o.Lab.RestartOperators = 2, true
		o.Lab.OperatorArgs = append(slices.Clone(poolOperatorArgs), o.Lab.OperatorArgs...)
		o.Lab.Pools = demoPools()
	case lab.PortMode:
		args = slices.Clone(portArgs)
		o.Lab.OperatorCount, o.Lab.RestartOperators = 2, true
		o.Lab.OperatorArgs = append(slices.Clone(portOperatorArgs), o.Lab.OperatorArgs...)
	}
	o.Lab.DaemonArgs = append(args, o.Lab.DaemonArgs...)
	return o, nil
}

// completeEgress is the same for a lab with egress.
func (o Options) completeEgress() Options {
	o.Lab.Nodes, o.Lab.RestartOperators = max(o.Lab.Nodes, 3), true
	o.Lab.DaemonArgs = append(slices.Clone(lab.EgressArgs), o.Lab.DaemonArgs...)
	o.Lab.Pools = lab.EgressPools()
	return o
}

// completeCluster is the same for a lab with kubelets: Berth comes later, by a proof.
func (o Options) completeCluster() Options {
	if o.Lab.IPFamilies == "" {
		o.Lab.IPFamilies = familiesIn(o.Lab.Mode)
	}
	o.Lab.Nodes, o.Lab.NoDaemons = 3, true
	if o.Lab.Mode != lab.NodeMode {
		o.Lab.OperatorCount = 2
	}
	if o.Lab.Mode == lab.PortMode {
		o.Lab.OperatorArgs = append(slices.Clone(portClusterArgs), o.Lab.OperatorArgs...)
	}
	return o
}

func done(o Options, err error) error {
	if o.Done == nil {
		return nil
	}
	return o.Done(err)
}

// play tries the proofs one after the other. The error is of one who ends it before; what
// failed, the reporter has.
func (s *stage) play(ctx context.Context, t *reporter) error {
	t.say("")
	for i, p := range proofsOf(s.lab.Options) {
		began := time.Now()
		trial, cancel := context.WithTimeout(ctx, patience)
		figures, err := s.try(trial, p)
		cancel()
		if ctx.Err() != nil { // interrupted, which proves nothing
			return context.Cause(ctx)
		}
		t.verdict(p.name, figures, time.Since(began), err)
		if err == nil {
			continue
		}
		s.showLogs(t)
		if i == 0 {
			break // without its pods there is nothing to go on with
		}
	}
	return nil
}

// showLogs shows packets that the fabric dropped and the daemons' logs after a failure.
func (s *stage) showLogs(t *reporter) {
	var drops map[string]fabric.Drops
	if s.lab.Fabric != nil {
		var err error
		if drops, err = s.lab.Fabric.Drops(); err != nil {
			t.say("    read the fabric's drop counters: %v", err)
		}
	}
	for _, n := range s.nodes {
		for _, e := range s.lab.Snapshot().InstanceENIs(n.InstanceID) {
			if d := drops[e.ID]; len(d) > 0 {
				t.say("    dropped in the VPC, from or to ENI %d of %s: %v", e.Attachment.DeviceIndex, n.Name, d)
			}
		}
	}
	if s.lab.Kubelets != nil {
		s.cluster.report(t)
		return
	}
	for _, n := range s.nodes {
		t.say("    the end of %s:", n.LogFile())
		t.quote(n.LogTail(8))
	}
	for _, o := range s.lab.Operators() {
		t.say("    the end of %s:", o.LogFile())
		t.quote(o.LogTail(8))
	}
}

// clear removes the lab. Leftovers are an error.
func (s *stage) clear() error {
	defer s.release() // which went with the directory
	err := s.lab.Close()
	_, sweepErr := lab.Sweep(s.lab.Dir, s.lab.ID)
	if err = errors.Join(err, sweepErr, os.RemoveAll(s.lab.Dir)); err != nil {
		return fmt.Errorf("remove the lab: %w", err)
	}
	return nil
}
