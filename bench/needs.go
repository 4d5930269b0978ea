package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/berthnet/berth/bench/vpccni"
	"github.com/berthnet/berth/lab/network/ovn"
)

// need is what must be running for a group, besides the bench itself.
type need int

const (
	nothing              need = iota
	nodeModeLab               // a VPC with three nodes
	poolModeLab               // a lab in pool mode with one node
	portModeLab               // a lab of VPC ports with one node
	controlPlanePrograms      // a control plane's: the group raises it itself
	wholeCluster              // one with kubelets
	machineKernel             // a virtual machine with a kernel that has Foo-over-UDP
	machineLab                // in it, a lab of address pools whose pods reach the outside by gateways
	machineBranches           // in it, a lab in operator mode with one node, which has a trunk
	comparison                // what Berth and the Amazon VPC CNI are run with: the group raises its labs itself
)

// What groups need and is built elsewhere than from a package of this module.
const (
	referencePlugins = "reference-plugins"
	controlPlane     = "control-plane"
	amazonVPCCNI     = "amazon-vpc-cni"
	clusterImages    = "lab-images"
	openVSwitch      = "open-vswitch" // with OVN
	virtualMachine   = "virtual-machine"
)

// parts are what must be there before the bench starts: packages whose
// programs are in bench.binDir, and those above.
var parts = map[need][]string{
	nodeModeLab:          {"./cmd/berth", "./cmd/berthd", "./bench/null", referencePlugins},
	poolModeLab:          {"./cmd/berth", "./cmd/berthd", "./cmd/berth-operator", referencePlugins, controlPlane},
	portModeLab:          {"./cmd/berth", "./cmd/berthd", "./cmd/berth-operator", "./bench/null", openVSwitch, controlPlane},
	controlPlanePrograms: {"./cmd/berth-operator", controlPlane},
	wholeCluster:         {clusterImages, controlPlane},
	machineKernel:        {virtualMachine},
	machineLab:           {"./cmd/berth", "./cmd/berthd", "./cmd/berth-egress", "./cmd/berth-operator", virtualMachine, controlPlane},
	machineBranches:      {"./cmd/berth", "./cmd/berthd", "./cmd/berth-operator", virtualMachine, controlPlane},
	comparison:           {"./cmd/berth", "./cmd/berthd", amazonVPCCNI, controlPlane},
}

// needed are the parts of groups, each once.
func needed(chosen []group) []string {
	var all []string
	for _, g := range chosen {
		all = append(all, parts[g.needs]...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// check looks for what the chosen groups need, and names what is missing.
func (b *bench) check(chosen []group) error {
	var programs []string
	for _, part := range needed(chosen) {
		if b.options.inside && (part == virtualMachine || part == controlPlane) {
			continue // this is the machine, whose host has the control plane
		}
		switch part {
		case referencePlugins:
			if b.options.refDir == "" {
				return errors.New("-reference-dir is empty: expected the directory that holds ptp and host-local")
			}
			programs = append(programs, filepath.Join(b.options.refDir, "ptp"), filepath.Join(b.options.refDir, "host-local"))
		case controlPlane:
			b.options.assets = os.Getenv("KUBEBUILDER_ASSETS")
			if b.options.assets == "" {
				return errors.New("KUBEBUILDER_ASSETS is empty: expected the directory that hack/kubebox.sh prints")
			}
			programs = append(programs, filepath.Join(b.options.assets, "kube-apiserver"))
		case openVSwitch:
			if err := ovn.Installed(); err != nil {
				return err
			}
		case virtualMachine:
			if b.options.machine == "" {
				return errors.New("-virtual-machine is empty: expected the path of hack/vm.sh")
			}
			programs = append(programs, b.options.machine)
		case clusterImages:
			if b.options.images == "" {
				return errors.New("-lab-images is empty: expected the folders that make lab-images prints, separated by colons")
			}
		case amazonVPCCNI:
			if b.options.amazonDir == "" {
				return errors.New("-amazon-vpc-cni-dir is empty: expected the directory that holds " + vpccni.Daemon + " and " + vpccni.Plugin)
			}
			programs = append(programs, filepath.Join(b.options.amazonDir, vpccni.Daemon), filepath.Join(b.options.amazonDir, vpccni.Plugin))
		default:
			programs = append(programs, filepath.Join(b.options.binDir, path.Base(part)))
		}
	}
	for _, p := range programs {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("a program to measure is missing: %w", err)
		}
	}
	return nil
}
