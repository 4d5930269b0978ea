package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthnet/berth/bench/ready"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/node"
)

const (
	// nodeType has room for 15 × 49 pods.
	nodeType = "m5.16xlarge"
	// warmAddresses is how many of them are assigned before anything is measured.
	warmAddresses = 620
	// warmUp is how many first runs of everything are not counted.
	warmUp = 5
)

// benchDaemonArgs are of every daemon.
var benchDaemonArgs = []string{"--cooling-period=1s", "--cni-chain=", "--log-level=warn"}

// options are the flags of the program.
type options struct {
	binDir, refDir string // Berth's programs, and the reference plugins
	amazonDir      string // the Amazon VPC CNI's programs
	images         string // folders of the images of a whole cluster's machines, separated by colons
	machine        string // the script that runs a command in a virtual machine
	inside         bool   // this process runs in that machine
	assets         string // the control plane's programs
	rounds         int    // runs behind each median of what a lab measures
}

// profiles is the directory of CPU profiles; empty: none are made.
type profiles struct {
	dir  string
	made int
}

// next names the file of one more profile, or returns "".
func (p *profiles) next(name string) string {
	if p.dir == "" {
		return ""
	}
	p.made++
	return filepath.Join(p.dir, fmt.Sprintf("%02d-%s.pprof", p.made, name))
}

// bench has what all measurements share, and raises the lab that the next group needs.
type bench struct {
	options  options
	profiles profiles

	up      need           // which lab is up
	cluster *ready.Cluster // nil unless up is wholeCluster
	bed     *testbed       // nil unless a lab with nodes is up
}

// testbed is a lab with up to three nodes and, where a group compares with them, the reference plugins
// in a namespace of their own.
type testbed struct {
	options options
	dirs    dirs

	lab              *lab.Lab
	idle, few, many  *node.Node // a node that stays empty, one with few pods, one that is filled
	podName          string     // the Pod in podNamespace that all sandboxes belong to; empty: none
	refNetns         string
	berth, reference *runtime
	null             *runtime // a plugin that does nothing
	sandboxes        *runtime // makes namespaces for measurements that call no plugin
}

// provide sees to it that the lab is up while it is needed, and only then.
func (b *bench) provide(ctx context.Context, n need) error {
	if n == b.up {
		return nil
	}
	if err := b.close(); err != nil {
		return err
	}
	switch n {
	case nodeModeLab, poolModeLab, portModeLab, machineLab, machineBranches:
		b.up, b.bed = n, &testbed{options: b.options}
		return b.bed.open(ctx, n)
	case wholeCluster:
		b.up = n
		return b.raiseCluster(ctx)
	}
	return nil
}

// raiseCluster raises the one whose machines are whole.
func (b *bench) raiseCluster(ctx context.Context) (err error) {
	say("raising a cluster of whole machines")
	b.cluster, err = ready.Raise(ctx, ready.Order{BinDir: b.options.binDir, Assets: b.options.assets, Images: filepath.SplitList(b.options.images), Say: say})
	return err
}

func (b *testbed) open(ctx context.Context, n need) (err error) {
	for _, dir := range []*string{&b.options.binDir, &b.options.refDir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if err := b.dirs.makeAll(); err != nil {
		return err
	}
	switch n {
	case portModeLab:
		return b.raisePortMode(ctx)
	case machineLab:
		return b.raiseEgressLab(ctx)
	case machineBranches:
		return b.raiseBranchLab(ctx)
	}
	raise := b.raise
	if n == poolModeLab {
		raise = b.raisePoolMode
	}
	if err := raise(ctx); err != nil {
		return err
	}
	return b.network()
}

func (b *testbed) raise(ctx context.Context) (err error) {
	say("raising a lab with three %s nodes", nodeType)
	s := lab.DefaultSpec(3, nodeType)
	s.Throttle = "none" // the cloud's pace is no part of what is measured
	s.Delays, s.Consistency = spec.Delays{}, spec.Consistency{}
	for i := range s.VPCs[0].Subnets { // with room for two full nodes each
		s.VPCs[0].Subnets[i].CIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i) << 6}), 18)
	}
	b.lab, err = lab.Start(ctx, lab.Options{
		Dir: b.dirs.run, ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: b.options.binDir, Spec: &s, NoDaemons: true,
		DaemonArgs: benchDaemonArgs,
	})
	if err != nil {
		return fmt.Errorf("raise a lab: %w", err)
	}
	nodes := b.lab.Nodes()
	b.idle, b.few, b.many = nodes[0], nodes[1], nodes[2]
	for _, n := range nodes {
		if n != b.idle {
			n.Args = append(n.Args, fmt.Sprintf("--minimum-ip-target=%d", warmAddresses), "--warm-ip-target=1")
		}
		if err := n.Start(); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
	}
	for _, n := range []*node.Node{b.few, b.many} {
		if err := waitWarm(ctx, n, warmAddresses); err != nil {
			return err
		}
	}
	return nil
}

// waitWarm returns once a node has that many addresses to hand out.
func waitWarm(ctx context.Context, n *node.Node, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if err := lab.WaitAvailable(ctx, n, want); err != nil {
		return fmt.Errorf("%w\n%s", err, n.LogTail(10))
	}
	return nil
}

// network prepares the runtimes of Berth and of the reference.
func (b *testbed) network() error {
	if err := b.dirs.install(filepath.Join(b.options.binDir, "berth"), filepath.Join(b.options.refDir, "ptp"), filepath.Join(b.options.refDir, "host-local")); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-reference", b.lab.ID)
	if err := ns.Create(name); err != nil {
		return err
	}
	b.refNetns = name
	if err := b.runBerth(); err != nil {
		return err
	}
	if b.podName != "" {
		b.berth.args = [][2]string{{"K8S_POD_NAMESPACE", podNamespace}, {"K8S_POD_NAME", b.podName}}
	}
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"reference","plugins":[{"type":"ptp","mtu":9001,
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.250.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`,
		filepath.Join(b.dirs.data, "host-local"))
	ref, err := libcni.NetworkConfFromBytes([]byte(conf))
	if err != nil {
		return fmt.Errorf("configure the reference plugins: %w", err)
	}
	b.reference = newRuntime(ns.Path(name), b.lab.ID+"-r", filepath.Join(b.dirs.data, "cache-reference"), b.dirs.plugins, ref)
	b.sandboxes = newRuntime("", b.lab.ID+"-s", "", "", nil)
	return nil
}

// installBerth prepares the runtime of Berth alone.
func (b *testbed) installBerth() error {
	if err := b.dirs.install(filepath.Join(b.options.binDir, "berth")); err != nil {
		return err
	}
	return b.runBerth()
}

// runBerth prepares the runtime of Berth, whose plugin is installed.
func (b *testbed) runBerth() error {
	list, err := berthList(b.few)
	if err != nil {
		return err
	}
	b.berth = newRuntime(b.few.Netns, b.lab.ID+"-b", filepath.Join(b.dirs.data, "cache-berth"), b.dirs.plugins, list)
	return nil
}

// berthList is the configuration that a node's daemon installed.
func berthList(n *node.Node) (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(n.ConfDir(), []string{".conflist"})
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("find the installed CNI configuration in %s: %w", n.ConfDir(), err)
	}
	list, err := libcni.NetworkConfFromFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("read the installed CNI configuration: %w", err)
	}
	return list, nil
}

// close ends the lab and everything on it, however far it came.
func (b *testbed) close() error {
	var errs []error
	for _, r := range []*runtime{b.berth, b.reference, b.null, b.sandboxes} {
		if r != nil {
			errs = append(errs, r.close())
		}
	}
	if b.refNetns != "" {
		errs = append(errs, ns.Remove(b.refNetns))
	}
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	return errors.Join(append(errs, b.dirs.removeAll())...)
}

// close ends what is up.
func (b *bench) close() (err error) {
	if b.bed != nil {
		err = b.bed.close()
	}
	if b.cluster != nil {
		err = errors.Join(err, b.cluster.Close())
	}
	b.bed, b.cluster, b.up = nil, nil, nothing
	return err
}
