// Package demo demonstrates Berth on the lab: through the real plugin and daemon, pods get addresses of the VPC, or of
// a data centre's pools, and reach each other, the nodes and the outside while EC2 fails and daemons are killed. Each
// claim is a proof that passes with figures, or fails. Only the cloud is simulated.
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

// DefaultDir is the default directory of the demo's lab.
const DefaultDir = "/run/vpclab/demo"

// Options describe a demo.
type Options struct {
	Lab lab.Options
	// Coil is the name of a recording (package replay) of a cluster with Coil, from which a node moves. Of Lab, only
	// the directories count then.
	Coil    string
	Program string    // how vpclab was invoked, for the commands to try next
	Keep    bool      // keep the lab up and serve its control socket
	Out     io.Writer // receives the report, line by line
	// Done is called with the failures after all proofs, before a kept lab is served.
	Done func(error) error
	// Subtest calls a proof. A test runs it as a subtest with the given name. If nil, proofs are called directly.
	Subtest func(name string, proof func() error)
}

// patience limits the start of the lab, and each proof.
const patience = 3 * time.Minute

// size is the capacity of a node, and the number of its pods.
type size struct {
	instanceType string
	addresses    int // for pods
	pods         int // initially per node: they need more than one ENI
}

// maxENIs is the number of ENIs of a node of either size, including the primary one.
const maxENIs = 3

// sizes are small enough that a few pods need several ENIs. In operator mode the primary ENI has no pods.
var sizes = map[lab.Mode]size{
	lab.NodeMode:     {instanceType: "t3.small", addresses: 9, pods: 5},
	lab.OperatorMode: {instanceType: "t3.medium", addresses: 10, pods: 6},
	lab.PoolMode:     {pods: 10}, // a block holds 8
	lab.PortMode:     {},
}

// sizes6 are the sizes for IPv6-only pods: of instance types without prefixes, since one prefix would have enough
// addresses for all pods. All addresses of a secondary ENI are for pods.
var sizes6 = map[lab.Mode]size{
	lab.NodeMode:     {instanceType: "t2.small", addresses: 8, pods: 5},
	lab.OperatorMode: {instanceType: "t2.medium", addresses: 12, pods: 7},
}

func sizeOf(o lab.Options) size {
	if o.AmazonVPCCNI != "" && o.PodFamilies() != ipfamily.OnlyIPv6 {
		return migrationSize(o)
	}
	if o.PodFamilies() == ipfamily.OnlyIPv6 {
		return sizes6[o.Mode]
	}
	return sizes[o.Mode]
}

// stage is the state that the proofs share.
type stage struct {
	size
	lab     *lab.Lab
	nodes   []*node.Node
	release func() // of the lock on the lab's directory

	ports     *ports
	cluster   *Cluster
	egress    *egress
	branches  *branches
	pools     *pools
	policies  *policyStage
	migration *migration
	coil      *coilMigration // then there is no lab
	beside    sync.WaitGroup // goroutines of the current proof (start)
}

func newStage(l *lab.Lab, size size, quote func(string), release func()) *stage {
	return &stage{
		size: size, lab: l, nodes: l.Nodes(), release: release,
		ports: &ports{lab: l, nodes: l.Nodes()}, cluster: &Cluster{lab: l, nodes: l.Nodes(), quote: quote},
		egress: &egress{lab: l, nodes: l.Nodes()}, branches: &branches{lab: l, nodes: l.Nodes()}, pools: &pools{lab: l},
		policies: &policyStage{lab: l, nodes: l.Nodes()}, migration: &migration{lab: l},
	}
}

// try runs a proof and returns its figures or its error.
func (s *stage) try(ctx context.Context, p proof) (figures string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	err = attempt(func() { figures = p.try(ctx, s) })
	cancel()
	s.beside.Wait()
	return figures, err
}

// errFailed means that all proofs ran, but some failed.
var errFailed = errors.New("some proofs failed")

// Run starts a lab, runs every proof and removes the lab, or with Keep serves it until ctx ends. It returns an error
// if a proof failed or could not run.
func Run(ctx context.Context, o Options) error {
	if o.Coil != "" {
		return runCoil(ctx, o)
	}
	o, err := o.complete()
	if err != nil {
		return err
	}
	t := newReporter(o, len(proofsOf(o.Lab)))
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
	failed := s.play(ctx, t, proofsOf(s.lab.Options))
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
		failed = s.play(ctx, t, proofsOf(s.lab.Options))
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

// raise starts a lab in a directory that is locked until release is called.
func raise(ctx context.Context, o lab.Options, t *reporter) (*stage, error) {
	switch {
	case o.Kubelets != nil:
		t.say("Starting a cluster of %d nodes with containerd, kubelet and kube-proxy on this machine, for Berth in %s mode ...", o.Nodes, o.Mode)
	case o.Egress:
		t.say("Starting a data centre with %d nodes, whose pods reach the outside through gateways ...", o.Nodes)
	case o.AmazonVPCCNI != "":
		t.say("Raising a VPC with %d nodes, the first of which has the Amazon VPC CNI, on this machine ...", o.Nodes)
	case ofPolicies(o):
		t.say("Raising a VPC with %d nodes that enforce network policies on this machine ...", o.Nodes)
	case o.Mode == lab.PoolMode:
		t.say("Starting a data centre with %d nodes on this machine ...", o.Nodes)
	case o.Mode == lab.PortMode:
		t.say("Starting an OpenStack with %d nodes on this machine ...", o.Nodes)
	case ofBranches(o):
		t.say("Starting a VPC with %d nodes (%s) that have trunks on this machine ...", o.Nodes, o.InstanceType)
	default:
		t.say("Starting a VPC with %d nodes (%s) on this machine ...", o.Nodes, o.InstanceType)
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
		return nil, fmt.Errorf("start the lab: %w", err)
	}
	return newStage(l, sizeOf(o), t.quote, release), nil
}

// branches reports whether the branches demo follows in a separate lab, and returns an error if it cannot run.
func (o Options) branches() (more bool, lacks error) {
	switch {
	case o.Lab.Mode != lab.OperatorMode || o.Lab.Kubelets != nil || ofBranches(o.Lab):
		return false, nil
	case o.Keep:
		return true, errors.New("it needs another lab, but this lab is kept: omit --keep")
	}
	return true, lacksVLANs()
}

// complete adds the options that the demo needs. The caller's options take precedence.
func (o Options) complete() (Options, error) {
	if o.Lab.Mode == "" {
		o.Lab.Mode = lab.NodeMode
	}
	if _, ok := sizes[o.Lab.Mode]; !ok {
		return o, fmt.Errorf("mode %q: expected one of %v", o.Lab.Mode, lab.Modes)
	}
	if o.Lab.Nodes < 2 {
		return o, fmt.Errorf("%d nodes: the demo needs at least 2", o.Lab.Nodes)
	}
	if o.Lab.IPFamilies == "" {
		o.Lab.IPFamilies = familiesIn(o.Lab.Mode)
	}
	if o.Lab.Kubelets != nil {
		return o.completeCluster(), nil
	}
	if ofBranches(o.Lab) {
		if o.Lab.IPFamilies == ipfamily.OnlyIPv6 {
			return o, fmt.Errorf("IP families %q: the branches demo needs IPv4: omit them", o.Lab.IPFamilies)
		}
		o.Lab = branchLab(o.Lab)
		return o, nil
	}
	if ofPolicies(o.Lab) {
		o.Lab = policyLab(o.Lab)
		return o, nil
	}
	if o.Lab.AmazonVPCCNI != "" {
		o.Lab = migrationLab(o.Lab)
		return o, nil
	}
	if o.Lab.Egress && o.Lab.Mode == lab.PoolMode {
		return o.completeEgress(), nil
	}
	size := sizeOf(o.Lab)
	o.Lab.InstanceType = size.instanceType
	switch o.Lab.Mode {
	case lab.OperatorMode:
		s := labSpec(o.Lab.Nodes, size.instanceType)
		o.Lab.Spec = &s
	case lab.PoolMode:
		o.Lab.Nodes, o.Lab.Pools = max(o.Lab.Nodes, 3), demoPools()
	case lab.PortMode:
		o.Lab.NetworkPolicies = true
	}
	if o.Lab.Mode != lab.NodeMode {
		o.Lab.OperatorCount, o.Lab.RestartOperators = 2, true
		o.Lab.OperatorArgs = slices.Concat(quickLeases, settings[o.Lab.Mode].operator, o.Lab.OperatorArgs)
	}
	o.Lab.DaemonArgs = slices.Concat(settings[o.Lab.Mode].daemon, o.Lab.DaemonArgs)
	return o, nil
}

// quickLeases are operator arguments that make a new leader replace a dead one sooner.
var quickLeases = []string{"--lease-duration=4s", "--renew-deadline=3s", "--retry-period=500ms"}

// settings shorten the demo: a shorter cooling period, and earlier release of excess addresses and orphans, and earlier
// repair of changes by other software.
var settings = map[lab.Mode]struct{ daemon, operator []string }{
	lab.NodeMode: {daemon: []string{onPremisesUntranslated}},
	lab.OperatorMode: {
		[]string{onPremisesUntranslated, fmt.Sprintf("--pre-allocate=%d", watermark), "--cooling-period=" + coolingPeriods[lab.OperatorMode].String()},
		[]string{"--shrink-delay=1s", "--listing-interval=3s", "--node-gone-grace=2s", "--orphan-age=20s", "--orphan-interval=10s"},
	},
	lab.PoolMode: {
		[]string{"--cooling-period=" + coolingPeriods[lab.PoolMode].String(), "--block-release-delay=2s", "--block-claim-interval=1s"},
		[]string{"--block-claim-grace=" + claimGrace.String()},
	},
	lab.PortMode: {[]string{"--repair-interval=2s"}, []string{"--listing-interval=2s"}},
}

// onPremisesUntranslated disables SNAT towards the on-premises network.
const onPremisesUntranslated = "--exclude-snat-cidrs=192.168.100.0/24"

// completeEgress is complete for a lab with egress.
func (o Options) completeEgress() Options {
	o.Lab.Nodes, o.Lab.RestartOperators = max(o.Lab.Nodes, 3), true
	o.Lab.DaemonArgs = append(slices.Clone(lab.EgressArgs), o.Lab.DaemonArgs...)
	o.Lab.Pools = lab.EgressPools()
	return o
}

// completeCluster is complete for a lab with kubelets, where a proof installs Berth.
func (o Options) completeCluster() Options {
	o.Lab.Nodes, o.Lab.NoDaemons, o.Lab.OperatorCount = 3, true, 2
	o.Lab.NetworkPolicies = o.Lab.Mode != lab.PortMode
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

// play runs the proofs in order. The reporter records failures; play returns an error if ctx ends.
func (s *stage) play(ctx context.Context, t *reporter, list []proof) error {
	t.say("")
	for i, p := range list {
		began := time.Now()
		trial, cancel := context.WithTimeout(ctx, patience)
		var figures string
		var err error
		t.subtest(p.name, func() error {
			figures, err = s.try(trial, p)
			return err
		})
		cancel()
		if ctx.Err() != nil { // interrupted: not a failure of the proof
			return context.Cause(ctx)
		}
		t.verdict(p.name, figures, time.Since(began), err)
		if err == nil {
			continue
		}
		s.showLogs(t)
		if i == 0 {
			break // subsequent proofs need these pods
		}
	}
	return nil
}

// showLogs prints packets that the fabric dropped and the daemons' logs after a failure.
func (s *stage) showLogs(t *reporter) {
	if s.coil != nil {
		showDaemons(t, s.nodes)
		return
	}
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
		s.cluster.Report(func(line string) { t.say("    %s", line) })
		return
	}
	showDaemons(t, s.nodes)
	for _, o := range s.lab.Operators() {
		t.say("    the end of %s:", o.LogFile())
		t.quote(o.LogTail(8))
	}
}

func showDaemons(t *reporter, nodes []*node.Node) {
	for _, n := range nodes {
		t.say("    the end of %s:", n.LogFile())
		t.quote(n.LogTail(8))
	}
}

// clear removes the lab. It returns an error if anything is left.
func (s *stage) clear() error {
	defer s.release() // the lock file was removed with the directory
	if s.coil != nil {
		return s.coil.close()
	}
	err := s.lab.Close()
	_, sweepErr := lab.Sweep(s.lab.Dir, s.lab.ID)
	if err = errors.Join(err, sweepErr, os.RemoveAll(s.lab.Dir)); err != nil {
		return fmt.Errorf("remove the lab: %w", err)
	}
	return nil
}
