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
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/bench/ready"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/network/ns"
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

// bench is what all measurements share. Those on nodes share a lab with three
// (one that stays empty, one with few pods, one that is filled), or have one of
// address pools with one, and a namespace for the reference plugins.
type bench struct {
	binDir, refDir string
	images         string // folders of those of a whole cluster's machines
	machine        string // the script that runs a command in a virtual machine
	inside         bool   // this is that machine
	amazonDir      string // of the Amazon VPC CNI's programs
	assets         string // of the control plane
	profiles       string // directory; empty: none
	profiled       int
	runDir, varDir string // see makeDirs
	mounted        bool   // runDir is
	pluginDir      string // on a disk, see install
	rounds         int

	up               need // which lab is
	cluster          *ready.Cluster
	lab              *lab.Lab
	idle, few, many  *node.Node
	podName          string // of podNamespace, whose sandboxes all are; empty: of none
	refNetns         string
	berth, reference *runtime
	null             *runtime // of a plugin that does nothing
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
		b.up = n
		return b.open(ctx)
	case wholeCluster:
		b.up = n
		return b.raiseCluster(ctx)
	}
	return nil
}

// raiseCluster raises the one whose machines are whole.
func (b *bench) raiseCluster(ctx context.Context) (err error) {
	say("raising a cluster of whole machines")
	b.cluster, err = ready.Raise(ctx, ready.Order{BinDir: b.binDir, Assets: b.assets, Images: filepath.SplitList(b.images), Say: say})
	return err
}

func (b *bench) open(ctx context.Context) (err error) {
	for _, dir := range []*string{&b.binDir, &b.refDir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if err := b.makeDirs(); err != nil {
		return err
	}
	switch b.up {
	case portModeLab:
		return b.raisePortMode(ctx)
	case machineLab:
		return b.raiseEgressLab(ctx)
	case machineBranches:
		return b.raiseBranchLab(ctx)
	}
	raise := b.raise
	if b.up == poolModeLab {
		raise = b.raisePoolMode
	}
	if err := raise(ctx); err != nil {
		return err
	}
	return b.network()
}

// makeDirs makes the directories that a node has on a tmpfs (/run, with Berth's
// records) and on a disk (/var/lib/cni, with host-local's and libcni's, and
// /opt/cni/bin). The
// medium counts: on a disk, replacing a record is half of an ADD's time.
func (b *bench) makeDirs() (err error) {
	for _, dir := range []*string{&b.runDir, &b.varDir} {
		if *dir, err = os.MkdirTemp("", "bench-"); err != nil {
			return fmt.Errorf("make a directory for the lab: %w", err)
		}
	}
	if err := unix.Mount("tmpfs", b.runDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", b.runDir, err)
	}
	b.mounted = true
	return nil
}

// removeDirs takes back what makeDirs did, however far it came.
func (b *bench) removeDirs() (err error) {
	if b.mounted {
		if err = unix.Unmount(b.runDir, unix.MNT_DETACH); err != nil {
			err = fmt.Errorf("unmount %s: %w", b.runDir, err)
		}
	}
	err = errors.Join(err, os.RemoveAll(b.runDir), os.RemoveAll(b.varDir)) // an empty name is no error
	b.runDir, b.varDir, b.mounted = "", "", false
	return err
}

func (b *bench) raise(ctx context.Context) (err error) {
	say("raising a lab with three %s nodes", nodeType)
	s := lab.DefaultSpec(3, nodeType)
	s.Throttle = "none" // the cloud's pace is no part of what is measured
	s.Delays, s.Consistency = spec.Delays{}, spec.Consistency{}
	for i := range s.VPCs[0].Subnets { // with room for two full nodes each
		s.VPCs[0].Subnets[i].CIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i) << 6}), 18)
	}
	b.lab, err = lab.Start(ctx, lab.Options{
		Dir: b.runDir, ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: b.binDir, Spec: &s, NoDaemons: true,
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
func (b *bench) network() error {
	if err := b.install(filepath.Join(b.binDir, "berth"), filepath.Join(b.refDir, "ptp"), filepath.Join(b.refDir, "host-local")); err != nil {
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
		filepath.Join(b.varDir, "host-local"))
	ref, err := libcni.NetworkConfFromBytes([]byte(conf))
	if err != nil {
		return fmt.Errorf("configure the reference plugins: %w", err)
	}
	b.reference = newRuntime(ns.Path(name), b.lab.ID+"-r", filepath.Join(b.varDir, "cache-reference"), b.pluginDir, ref)
	b.sandboxes = newRuntime("", b.lab.ID+"-s", "", "", nil)
	return nil
}

// installBerth prepares the runtime of Berth alone.
func (b *bench) installBerth() error {
	if err := b.install(filepath.Join(b.binDir, "berth")); err != nil {
		return err
	}
	return b.runBerth()
}

// runBerth prepares the runtime of Berth, whose plugin is installed.
func (b *bench) runBerth() error {
	list, err := berthList(b.few)
	if err != nil {
		return err
	}
	b.berth = newRuntime(b.few.Netns, b.lab.ID+"-b", filepath.Join(b.varDir, "cache-berth"), b.pluginDir, list)
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

// close ends the lab, however far it came.
func (b *bench) close() error {
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
	if b.cluster != nil {
		errs = append(errs, b.cluster.Close())
	}
	errs = append(errs, b.removeDirs())
	b.berth, b.reference, b.null, b.sandboxes, b.refNetns, b.lab, b.cluster = nil, nil, nil, nil, "", nil, nil
	b.up, b.podName = nothing, ""
	return errors.Join(errs...)
}
