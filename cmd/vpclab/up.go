package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/demo"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/host"
)

// labFlags describe the lab to start.
type labFlags struct {
	dir, specFile, instanceType, binDir string
	nodes                               int
	mode, families, from                string
	ipv6Egress                          bool
	vpcPorts, egress                    bool
	operators                           int
	daemonArgs, operatorArgs            []string
	env                                 map[string]string
	noDaemons                           bool
	kubelets                            bool
	containerd, proxy, helm, release    string
	provider, neutron                   string
	images                              []string
}

func (f *labFlags) register(c *cobra.Command) {
	dirFlag(c, &f.dir)
	c.Flags().StringVar(&f.specFile, "spec", "", "YAML `file` that describes the VPC and its instances (default: one VPC, two subnets)")
	c.Flags().IntVar(&f.nodes, "nodes", 2, "number of nodes, if no spec is given")
	c.Flags().StringVar(&f.instanceType, "instance-type", "m5.large", "instance `type` of the nodes, if no spec is given")
	c.Flags().StringVar(&f.binDir, "bin-dir", "", "`directory` of the programs (default: where vpclab is)")
	modeFlag(c, &f.mode)
	familiesFlag(c, &f.families)
	c.Flags().BoolVar(&f.ipv6Egress, "enable-v6-egress", false, "let pods without an IPv6 address reach IPv6 hosts through their node, in node and operator mode; the VPC then has IPv6 blocks")
	c.Flags().BoolVar(&f.vpcPorts, "vpc-ports", false, "let pods have NICs that are ports of VPCs, in addition to the interface of the mode; always on in port mode")
	f.providerFlags(c)
	c.Flags().BoolVar(&f.egress, "egress", false, "let pods reach the outside through gateways of Egresses; needs a kernel with Foo-over-UDP (hack/vm.sh)")
	c.Flags().IntVar(&f.operators, "operators", 2, "number of berth-operator processes, if the mode, --vpc-ports or --egress has operators; one of them leads")
	c.Flags().StringArrayVar(&f.operatorArgs, "operator-arg", nil, "further `argument` of every berth-operator (repeatable)")
	c.Flags().StringArrayVar(&f.daemonArgs, "berthd-arg", nil, "further `argument` of every berthd, such as --berthd-arg=--warm-ip-target=2 (repeatable)")
	c.Flags().BoolVar(&f.noDaemons, "no-daemons", false, "do not start berthd; use vpclab start")
	f.kubeletFlags(c)
	c.Flags().StringToStringVar(&f.env, "env", nil, "environment of every berthd, such as `WARM_ENI_TARGET=1`")
}

// kubeletFlags are the flags of labs whose nodes run kubelets.
func (f *labFlags) kubeletFlags(c *cobra.Command) {
	c.Flags().BoolVar(&f.kubelets, "kubelets", false, "run containerd, kubelet and kube-proxy on each node, in a cluster into which Berth is installed")
	c.Flags().StringVar(&f.containerd, "containerd", "", "`directory` of containerd, its shim and ctr, with --kubelets (default: this machine's own, such as Debian's package)")
	c.Flags().StringArrayVar(&f.images, "images", nil, "`directory` of images (*.tar) for the nodes, with --kubelets (repeatable); make lab-images builds and prints them")
	c.Flags().StringVar(&f.release, "release", "", "`directory` of a release of Berth to install, with --kubelets (default: the chart of vpclab's sources); make release writes one")
	c.Flags().StringVar(&f.helm, "helm", "", "`program` that installs Berth, with --kubelets (default: vpclab applies what Helm would)")
	c.Flags().StringVar(&f.proxy, "kube-proxy", string(host.NFTables), "`mode` of kube-proxy, with --kubelets: nftables or iptables")
}

// kubeletOptions returns the options of the flags, nil without --kubelets.
func (f *labFlags) kubeletOptions() *lab.Kubelets {
	if !f.kubelets {
		return nil
	}
	return &lab.Kubelets{Containerd: f.containerd, Images: f.images, Proxy: host.ProxyMode(f.proxy), Helm: f.helm, Release: f.release}
}

func dirFlag(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, "dir", lab.DefaultDir, "`directory` of the lab; one lab a directory")
}

func modeFlag(c *cobra.Command, mode *string) {
	c.Flags().StringVar(mode, "mode", string(lab.NodeMode), "where addresses come from: `node` (ENIs, by each berthd), operator (ENIs, by berth-operator), pool (address pools) or port (ports of a VPC)")
}

func familiesFlag(c *cobra.Command, families *string) {
	c.Flags().StringVar(families, "ip-families", string(ipfamily.OnlyIPv4), "IP `families` of pods in node and operator mode: ipv4, ipv6 or dual; with IPv6 the VPC has IPv6 blocks")
}

// Values of --neutron.
const (
	modelNeutron  = "model"
	realNeutron   = "real"
	hybridNeutron = "hybrid"
)

// providerFlags select the provider of ports.
func (f *labFlags) providerFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.provider, "provider", string(v1alpha1.ProviderNeutron), "provider of the ports in port mode and with --vpc-ports: `neutron`, alcor (simulated strictly, with an agent on each node; it filters nothing), or ec2 (branches of the nodes' trunks; operator mode with --vpc-ports, and a kernel with VLANs)")
	neutronFlag(c, &f.neutron)
}

func neutronFlag(c *cobra.Command, neutron *string) {
	c.Flags().StringVar(neutron, "neutron", modelNeutron, "Neutron of port mode: `model` (Neutron and Keystone simulated strictly, OVN real), real (all of them real, with OVN; hack/deps.sh neutron installs them) or hybrid (real, with Neutron's own agent and a Linux bridge for each port)")
}

// portCloud returns the provider selected by --provider and --neutron.
func (f *labFlags) portCloud() (func(context.Context, portcloud.Options) (portcloud.Cloud, error), error) {
	others := map[v1alpha1.VPCProvider]func(context.Context, portcloud.Options) (portcloud.Cloud, error){
		v1alpha1.ProviderAlcor: portcloud.NewAlcor, v1alpha1.ProviderEC2: portcloud.NewBranches,
	}
	switch p := v1alpha1.VPCProvider(f.provider); {
	case others[p] != nil && f.neutron != modelNeutron:
		return nil, fmt.Errorf("--neutron %q: is for --provider %s", f.neutron, v1alpha1.ProviderNeutron)
	case p == v1alpha1.ProviderEC2 && (lab.Mode(f.mode) != lab.OperatorMode || !f.vpcPorts):
		return nil, fmt.Errorf("--provider %s: is for --mode %s with --vpc-ports", p, lab.OperatorMode)
	case others[p] != nil:
		return others[p], nil
	case p != v1alpha1.ProviderNeutron && p != "": // demo supports Neutron only
		return nil, fmt.Errorf("--provider %q: want %s, %s or %s", f.provider, v1alpha1.ProviderNeutron, v1alpha1.ProviderAlcor, v1alpha1.ProviderEC2)
	}
	switch f.neutron {
	case modelNeutron:
		return portcloud.NewModel, nil
	case realNeutron:
		return portcloud.NewReal, nil
	case hybridNeutron:
		return portcloud.NewHybrid, nil
	}
	return nil, fmt.Errorf("--neutron %q: want %s, %s or %s", f.neutron, modelNeutron, realNeutron, hybridNeutron)
}

func (f *labFlags) options() (lab.Options, error) {
	o := lab.Options{
		Dir: f.dir, BinDir: f.binDir, Nodes: f.nodes, InstanceType: f.instanceType,
		DaemonArgs: f.daemonArgs, BerthdEnv: f.env, NoDaemons: f.noDaemons,
		Mode: lab.Mode(f.mode), IPFamilies: ipfamily.Set(f.families), IPv6Egress: f.ipv6Egress, VPCPorts: f.vpcPorts, Egress: f.egress, OperatorCount: f.operators, OperatorArgs: f.operatorArgs, RestartOperators: true,
		Kubelets: f.kubeletOptions(),
	}
	var err error
	if o.IPFamilies, err = ipfamily.Parse(f.families); err != nil {
		return o, fmt.Errorf("--ip-families: %w", err)
	}
	if m := o.Mode; (o.IPFamilies.Has(ipfamily.IPv6) || o.IPv6Egress) && m != lab.NodeMode && m != lab.OperatorMode {
		return o, fmt.Errorf("--ip-families %s, --enable-v6-egress %t: IPv6 is for --mode %s and %s", f.families, f.ipv6Egress, lab.NodeMode, lab.OperatorMode)
	}
	if o.PortCloud, err = f.portCloud(); err != nil {
		return o, err
	}
	if f.nodes < 1 || f.nodes > 100 {
		return o, fmt.Errorf("--nodes %d: want 1 to 100", f.nodes)
	}
	if f.specFile != "" {
		s, err := spec.Load(f.specFile)
		if err != nil {
			return o, err
		}
		o.Spec = &s
	}
	return o, nil
}

// flagArgs returns the flags that a command was given, with their final values, for a background process.
func flagArgs(c *cobra.Command, without ...string) (args []string) {
	c.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if s, ok := f.Value.(pflag.SliceValue); ok {
			values = s.GetSlice()
		} else if f.Value.Type() == "stringToString" { // printed in brackets
			values[0] = values[0][1 : len(values[0])-1]
		}
		for _, v := range values {
			if !slices.Contains(without, f.Name) {
				args = append(args, "--"+f.Name+"="+v)
			}
		}
	})
	return args
}

// clusterTimeout is the default of --timeout with --kubelets: machines boot and receive their images, which on a
// busy machine takes longer than starting a program.
const clusterTimeout = 5 * time.Minute

func newUp() *cobra.Command {
	var f labFlags
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "up",
		Short: "Start a lab in the background: a VPC, nodes, and berthd on each",
		Long: `Start a lab in the background: a virtual VPC that carries packets, nodes in network
namespaces, and a berthd on each. Pods are added with vpclab pod add. An
earlier lab in the same directory is removed first. Needs root.

With --mode operator there is a Kubernetes API too, and berth-operator calls EC2
for the nodes, whose role permits no call. KUBEBUILDER_ASSETS names the folder of the control
plane's programs; hack/kubebox.sh builds them and prints it.

With --vpc-ports pods of any mode may request NICs that are ports of a VPC, in addition to
the interface of the mode (docs/guides/ports/README.md).

With --egress pods reach the outside through gateways of Egresses (docs/guides/egress.md), which needs
a kernel with Foo-over-UDP.

With --kubelets the nodes run containerd, kubelet and kube-proxy, and Berth is installed
by its chart, in any mode.`,
		Example: `  vpclab up
  KUBEBUILDER_ASSETS=$(hack/kubebox.sh) vpclab up --mode operator
  KUBEBUILDER_ASSETS=$(hack/kubebox.sh) vpclab up --mode port --provider alcor
  KUBEBUILDER_ASSETS=$(hack/kubebox.sh) vpclab up --mode pool --vpc-ports
  KUBEBUILDER_ASSETS=$(hack/kubebox.sh) vpclab up --mode operator --vpc-ports --provider ec2
  vpclab up --kubelets --images dist/lab-images --images "$(hack/lab-images.sh)"
  vpclab up --ip-families dual
  vpclab up --nodes 3 --instance-type t3.small --env WARM_IP_TARGET=2
  vpclab up --dir /run/vpclab/second --spec my-vpc.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.absolute(); err != nil {
				return err
			}
			if _, err := f.options(); err != nil {
				return err
			}
			if f.kubelets && !cmd.Flags().Changed("timeout") {
				timeout = clusterTimeout
			}
			if pid := control.Holder(f.dir); pid != 0 {
				return fmt.Errorf("a lab is running in %s already (process %d): end it with vpclab down, or give another --dir", f.dir, pid)
			}
			ctx, cancel := contextFor(cmd, timeout)
			defer cancel()
			began := time.Now()
			out := cmd.OutOrStdout()
			pid, err := control.Spawn(ctx, f.dir, append([]string{"lab-process"}, flagArgs(cmd, "timeout")...), func(line string) {
				fmt.Fprintln(out, " ", line)
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "The lab is up after %.1f s (process %d, log %s).\n\n", time.Since(began).Seconds(), pid, control.LogPath(f.dir))
			s, err := control.Dial(f.dir).Status(ctx)
			if err != nil || len(s.Nodes) == 0 {
				return err
			}
			demo.PrintNext(out, "vpclab", s)
			return nil
		},
	}
	f.register(c)
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "time limit until the nodes are ready; with --kubelets the default is 5m")
	return c
}

// newLabProcess is the command that vpclab up starts in the background.
func newLabProcess() *cobra.Command {
	var f labFlags
	c := &cobra.Command{
		Use: "lab-process", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options()
			if err != nil {
				return err
			}
			report := os.NewFile(control.ReportFD, "report")
			if report == nil {
				return errors.New("lab-process is started by vpclab up")
			}
			o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
			return control.Run(cmd.Context(), o, report)
		},
	}
	f.register(c)
	return c
}

func newDown() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "down",
		Short: "End the lab and remove all of it",
		Long: `End the lab and remove all of it: processes, network namespaces, links and
its directory. It also removes what remains of a lab that crashed or was killed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := absDir(dir)
			if err != nil {
				return err
			}
			ctx, cancel := contextFor(cmd, 5*time.Minute)
			defer cancel()
			removed, err := control.Down(ctx, dir)
			out := cmd.OutOrStdout()
			for _, r := range removed {
				fmt.Fprintln(out, "removed", r)
			}
			if err != nil {
				return err
			}
			if len(removed) == 0 {
				fmt.Fprintf(out, "There is no lab in %s.\n", dir)
				return nil
			}
			fmt.Fprintln(out, "Nothing of the lab is left.")
			return nil
		},
	}
	dirFlag(c, &dir)
	return c
}
