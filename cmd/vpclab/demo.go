package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/demo"
	"github.com/berthnet/berth/lab/replay"
)

// egressMode is the egress demonstration, whose addresses come from pools. It needs a kernel with Foo-over-UDP, such as
// that of vpclab vm.
const egressMode = "egress"

// branchesMode is the demonstration of branch interfaces only. In operator mode they are shown last if the kernel has
// VLANs, as that of vpclab vm does.
const branchesMode = "branches"

// policyMode is the demonstration of network policies, in node mode.
const policyMode = "policy"

// migrateMode is the demonstration of a migration: from the Amazon VPC CNI in node mode, or with --from from a recorded
// cluster with Coil.
const migrateMode = "migrate"

// demo returns the options of a demonstration. amazon is the directory of the programs of the Amazon VPC CNI.
func (f *labFlags) demo(amazon string, keep bool) (o demo.Options, err error) {
	mode, egress, branches, policies, migrates := lab.Mode(f.mode), f.mode == egressMode, f.mode == branchesMode, f.mode == policyMode, f.mode == migrateMode
	if f.from != "" {
		return f.demoFrom(keep)
	}
	switch {
	case egress:
		mode = lab.PoolMode
	case branches:
		mode = lab.OperatorMode
	case policies:
		mode = lab.NodeMode
	case migrates && amazon == "":
		return o, errors.New("--mode migrate: --amazon-vpc-cni must name the directory of the programs of the Amazon VPC CNI (make demo MODE=migrate builds them)")
	case migrates:
		mode, f.families = lab.NodeMode, string(ipfamily.OnlyIPv4)
	default:
		amazon = ""
	}
	if !slices.Contains(lab.Modes, mode) {
		return o, fmt.Errorf("--mode %q: want %s, %s, %s, %s or one of %v", f.mode, egressMode, branchesMode, policyMode, migrateMode, lab.Modes)
	}
	if (egress || branches) && keep {
		return o, fmt.Errorf("--keep with --mode %s: the lab ends with its virtual machine, leave it out", f.mode)
	}
	if (egress || branches || policies || migrates) && f.kubelets {
		return o, fmt.Errorf("--kubelets with --mode %s: it has no kubelets, leave it out", f.mode)
	}
	if err := f.absolute(); err != nil {
		return o, err
	}
	cloud, err := f.portCloud()
	if err != nil {
		return o, err
	}
	o.Lab = lab.Options{Dir: f.dir, BinDir: f.binDir, Nodes: f.nodes, Mode: mode, IPFamilies: ipfamily.Set(f.families), Egress: egress, VPCPorts: branches, NetworkPolicies: policies, AmazonVPCCNI: amazon, Kubelets: f.kubeletOptions(), PortCloud: cloud}
	o.Program, o.Keep = os.Args[0], keep
	return o, nil
}

// demoFrom is demo for a migration from a recorded cluster.
func (f *labFlags) demoFrom(keep bool) (o demo.Options, err error) {
	recordings := map[string]string{migrate.Coil: replay.V2Newest, migrate.CoilV1: replay.V1}
	switch {
	case f.mode != migrateMode:
		return o, fmt.Errorf("--from with --mode %s: is for --mode %s", f.mode, migrateMode)
	case recordings[f.from] == "":
		return o, fmt.Errorf("--from %q: want %s or %s, or leave it out for the Amazon VPC CNI", f.from, migrate.Coil, migrate.CoilV1)
	case keep || f.kubelets:
		return o, fmt.Errorf("--from %s with --keep or --kubelets: a recorded node has neither, leave them out", f.from)
	}
	err = f.absolute()
	o.Lab, o.Coil, o.Program = lab.Options{Dir: f.dir, BinDir: f.binDir}, recordings[f.from], os.Args[0]
	return o, err
}

func newDemo() *cobra.Command {
	var f labFlags
	var amazon string
	var keep, background bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate that pods get VPC addresses and connectivity, also during failures",
		Long: `Raise a lab with two or more nodes and at least eight pods, and run one proof
after the other: who reaches whom from which address, and what happens when
berthd is killed and EC2 fails. Only the cloud is simulated; the plugin, the
daemon and the kernel are real, and with --mode operator so are the
operator and the Kubernetes API (KUBEBUILDER_ASSETS names the folder of its
programs; hack/kubebox.sh builds them and prints it). With --kubelets the nodes run
containerd, kubelet and kube-proxy, and Berth is installed by its chart, in any mode. Exits with 0 when every proof passed.`,
		Example: `  vpclab demo
  KUBEBUILDER_ASSETS=$(hack/kubebox.sh) vpclab demo --mode operator
  vpclab demo --ip-families ipv6
  vpclab demo --keep        # leave the lab up afterwards`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.demo(amazon, keep)
			if err != nil {
				return err
			}
			o.Out = cmd.OutOrStdout()
			switch {
			case background:
				report := os.NewFile(control.ReportFD, "report")
				if report == nil {
					return errors.New("--background is for vpclab itself")
				}
				o.Out, o.Done = report, func(err error) error { return control.ReportEnd(report, err) }
			case keep: // the lab outlives this command, so a background process runs it
				_, err := control.Spawn(cmd.Context(), f.dir, append([]string{"demo", "--background"}, flagArgs(cmd)...), func(line string) {
					fmt.Fprintln(cmd.OutOrStdout(), line)
				})
				return err
			}
			return demo.Run(cmd.Context(), o)
		},
	}
	c.Flags().StringVar(&f.dir, "dir", demo.DefaultDir, "`directory` of the demo's lab")
	c.Flags().StringVar(&f.binDir, "bin-dir", "", "`directory` of the programs (default: where vpclab is)")
	modeFlag(c, &f.mode)
	c.Flags().StringVar(&f.families, "ip-families", "", "IP `families` of pods in node and operator mode: ipv4, ipv6 or dual (default: dual)")
	c.Flags().StringVar(&amazon, "amazon-vpc-cni", "", "`directory` of the programs of the Amazon VPC CNI, for --mode migrate")
	c.Flags().StringVar(&f.from, "from", "", "what a recorded node moves from, in --mode migrate: `coil` or coil-v1 (default: a node of the lab moves from the Amazon VPC CNI)")
	neutronFlag(c, &f.neutron)
	f.kubeletFlags(c)
	c.Flags().IntVar(&f.nodes, "nodes", 2, "how many nodes, 2 or more")
	c.Flags().BoolVar(&keep, "keep", false, "leave the lab up afterwards")
	c.Flags().BoolVar(&background, "background", false, "")
	_ = c.Flags().MarkHidden("background")
	return c
}
