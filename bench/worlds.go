package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/ready"
	"github.com/berthnet/berth/lab/network/ovn"
	realcni "github.com/berthnet/berth/lab/run/vpccni"
)

// world is the environment that a group needs.
type world struct {
	// parts must be available before the bench starts: packages whose programs are in options.binDir,
	// and the names below.
	parts []string
	raise func(context.Context, *bench) // nil: the group sets up what it needs
}

// Parts that are not programs of this module.
const (
	referencePlugins = "reference-plugins"
	controlPlane     = "control-plane"
	amazonVPCCNI     = "amazon-vpc-cni"
	clusterImages    = "lab-images"
	openVSwitch      = "open-vswitch" // with OVN
	virtualMachine   = "virtual-machine"
	kwokController   = "kwok"
)

var (
	nothing              = &world{}
	nodeModeLab          = &world{[]string{"./cmd/berth", "./cmd/berthd", "./bench/null", referencePlugins}, onTestbed((*testbed).raiseNodeMode)}
	prefixLab            = &world{[]string{"./cmd/berth", "./cmd/berthd"}, onTestbed((*testbed).raisePrefixes)}
	poolModeLab          = &world{[]string{"./cmd/berth", "./cmd/berthd", "./cmd/berth-operator", referencePlugins, controlPlane}, onTestbed((*testbed).raisePoolMode)}
	portModeLab          = &world{[]string{"./cmd/berth", "./cmd/berthd", "./cmd/berth-operator", "./bench/null", openVSwitch, controlPlane}, onTestbed((*testbed).raisePortMode)}
	policyLab            = &world{[]string{"./cmd/berth", "./cmd/berthd", "./cmd/berth-operator", controlPlane}, onTestbed((*testbed).raisePolicies)}
	controlPlanePrograms = &world{[]string{"./cmd/berth-operator", controlPlane}, nil}
	wholeCluster         = &world{[]string{clusterImages, controlPlane}, raiseCluster}
	kwokPrograms         = &world{[]string{"./cmd/berth", "./cmd/berthd", "./cmd/berth-operator", "./cmd/berthctl", controlPlane, kwokController}, nil}
	comparison           = &world{[]string{"./cmd/berth", "./cmd/berthd", amazonVPCCNI, controlPlane}, nil}

	// In the virtual machine, whose kernel has Foo-over-UDP and 802.1Q.
	machineKernel   = &world{[]string{virtualMachine}, nil}
	machineEgress   = &world{[]string{"./cmd/berth", "./cmd/berthd", "./cmd/berth-egress", "./cmd/berth-operator", virtualMachine, controlPlane}, onTestbed((*testbed).raiseEgress)}
	machineBranches = &world{[]string{"./cmd/berth", "./cmd/berthd", "./cmd/berth-operator", virtualMachine, controlPlane}, onTestbed((*testbed).raiseBranches)}
)

// onTestbed returns a function that starts a lab on a new testbed.
func onTestbed(raise func(*testbed, context.Context)) func(context.Context, *bench) {
	return func(ctx context.Context, b *bench) {
		b.bed = &testbed{options: b.options}
		b.bed.options.binDir, b.bed.options.refDir = must.Get(filepath.Abs(b.options.binDir)), must.Get(filepath.Abs(b.options.refDir))
		must.OK(b.bed.dirs.makeAll())
		raise(b.bed, ctx)
	}
}

func raiseCluster(ctx context.Context, b *bench) {
	say("starting a cluster of machines with their own images")
	b.cluster = must.Get(ready.Raise(ctx, ready.Order{BinDir: b.options.binDir, Assets: b.options.assets, Images: filepath.SplitList(b.options.images), Say: say}))
}

type cluster = ready.Cluster

// provide sets up a world unless it is the current one, and removes the previous world.
func (b *bench) provide(ctx context.Context, w *world) {
	if w == b.up {
		return
	}
	must.OK(b.close())
	b.up = w
	if w.raise != nil {
		w.raise(ctx, b)
	}
}

// close removes the current world.
func (b *bench) close() (err error) {
	if b.bed != nil {
		err = b.bed.close()
	}
	if b.cluster != nil {
		err = errors.Join(err, b.cluster.Close())
	}
	b.bed, b.cluster, b.up = nil, nil, nil
	return err
}

// needed returns the parts that groups need, without duplicates.
func needed(chosen []group) []string {
	var all []string
	for _, g := range chosen {
		all = append(all, g.needs.parts...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// check verifies that the parts of the chosen groups are available. Its error names the missing ones.
func (b *bench) check(chosen []group) (err error) {
	o := &b.options
	var programs []string
	need := func(value, flag, expected string, names ...string) {
		if value == "" {
			err = errors.Join(err, fmt.Errorf("%s is empty: expected %s", flag, expected))
		}
		for _, name := range names {
			programs = append(programs, filepath.Join(value, name))
		}
	}
	for _, part := range needed(chosen) {
		if o.inside && (part == virtualMachine || part == controlPlane) {
			continue // inside the machine; the control plane runs on its host
		}
		switch part {
		case referencePlugins:
			need(o.refDir, "-reference-dir", "the directory of ptp and host-local", "ptp", "host-local")
		case controlPlane:
			o.assets = os.Getenv("KUBEBUILDER_ASSETS")
			need(o.assets, "KUBEBUILDER_ASSETS", "the directory that hack/kubebox.sh prints", "kube-apiserver")
		case openVSwitch:
			err = errors.Join(err, ovn.Installed())
		case kwokController:
			need(o.kwokDir, "-kwok-dir", "the directory that hack/kwok.sh prints", "kwok", "stages.yaml")
		case virtualMachine:
			need(o.machine, "-virtual-machine", "the path of hack/vm.sh", "")
		case clusterImages:
			need(o.images, "-lab-images", "the folders that make lab-images prints, separated by colons")
		case amazonVPCCNI:
			need(o.amazonDir, "-amazon-vpc-cni-dir", "the directory of "+realcni.DaemonProgram+" and "+realcni.PluginProgram, realcni.DaemonProgram, realcni.PluginProgram)
		default:
			need(o.binDir, "-bin-dir", "the directory of Berth's programs", path.Base(part))
		}
	}
	if err != nil {
		return err
	}
	for _, p := range programs {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("a program to measure is missing: %w", err)
		}
	}
	return nil
}

// split separates groups that are measured here from those that need a virtual machine.
func (b *bench) split(chosen []group) (here, machine []group) {
	for _, g := range chosen {
		if !b.options.inside && slices.Contains(g.needs.parts, virtualMachine) {
			machine = append(machine, g)
		} else {
			here = append(here, g)
		}
	}
	return here, machine
}

// Size of the virtual machine.
const (
	machineCPUs   = 2
	machineMemory = 4096 // MiB
)

// inMachine measures groups in one virtual machine: this program runs there, and writes its results to a
// shared folder.
func (b *bench) inMachine(ctx context.Context, chosen []group) (results []Result, err error) {
	defer must.Catch(&err)
	list := strings.Join(names(chosen), ",")
	say("%s: in a virtual machine", list)
	dir := must.Get(os.MkdirTemp("", "bench-"))
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	out := filepath.Join(dir, "results.json")
	args := []string{"--share", dir, "--cpus", strconv.Itoa(machineCPUs), "--memory", strconv.Itoa(machineMemory)}
	if slices.Contains(needed(chosen), controlPlane) {
		args = append(args, "--control-plane")
	}
	args = append(args, must.Get(os.Executable()), "-inside", "-only", list, "-bin-dir", must.Get(filepath.Abs(b.options.binDir)), "-rounds", strconv.Itoa(b.options.rounds), "-out", out)
	c := exec.CommandContext(ctx, b.options.machine, args...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("measure %s in a virtual machine: %w", list, err)
	}
	return read(out)
}
