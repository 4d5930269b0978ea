package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/ec2subnets"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/maxpods"
	"github.com/berthnet/berth/internal/ipfamily"
)

// maxPodsFormat is the value of max-pods' flag -o.
type maxPodsFormat string

const eniMaxPods maxPodsFormat = "eni-max-pods"

func (f *maxPodsFormat) String() string { return string(*f) }
func (f *maxPodsFormat) Type() string   { return "table|json|eni-max-pods" }

// Set implements pflag.Value.
func (f *maxPodsFormat) Set(s string) error {
	switch maxPodsFormat(s) {
	case maxPodsFormat(table), maxPodsFormat(jsonFmt), eniMaxPods:
		*f = maxPodsFormat(s)
		return nil
	}
	return fmt.Errorf("expected %s, %s or %s", table, jsonFmt, eniMaxPods)
}

// maxPodsCommand is the flags of max-pods.
type maxPodsCommand struct {
	instanceType string
	all          bool
	families     string
	free         int
	subnet       string
	region       string
	o            maxpods.Options
	out          maxPodsFormat
}

func newMaxPods() *cobra.Command {
	c := maxPodsCommand{out: maxPodsFormat(table)}
	cmd := &cobra.Command{
		Use:   "max-pods",
		Short: "Compute how many pods an instance type can run",
		Long: `Compute how many pods an instance type can run, for the kubelet's --max-pods:
ENIs × (addresses per ENI − 1) + 2. An ENI's primary address serves no pod; the 2 are
host-network pods, which need no address. With prefixes, each address except the primary
one is a /28 of 16 addresses.

The result is at most what EKS recommends: 110 pods on instances with up to 30 processors,
250 with more. With --subnet-id it is also at most what the subnet has addresses for: the
command asks EC2 (ec2:DescribeSubnets) how many are free, with the credentials and the region
that the AWS command line uses. --free-addresses gives the number without a call.

IPv6 is no limit, because each ENI has a /80: for dual-stack pods the number is that of
IPv4. Instance types without prefixes have single IPv6 addresses, and those of the primary
ENI are the node's own: (ENIs − 1) × addresses per ENI + 2, for the family with fewer
addresses.

If pods use other subnets than their node, eth0 serves none: --first-interface-index=1.
A trunk for branch interfaces takes the place of an ENI: --trunk-eni.

--all prints all instance types; -o eni-max-pods prints them as the file eni-max-pods.txt of
the Amazon VPC CNI has them, which is without EKS's recommendation.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := ipfamily.Parse(c.families)
			if err != nil {
				return fmt.Errorf("--ip-families: %w", err)
			}
			c.o.Families = set
			if c.o.HasFree = cmd.Flags().Changed("free-addresses"); c.o.HasFree && c.free < 0 {
				return fmt.Errorf("--free-addresses is %d: expected 0 or more", c.free)
			}
			c.o.Free = c.free
			if c.subnet != "" {
				if err := c.askSubnet(cmd.Context()); err != nil {
					return err
				}
			}
			switch {
			case (c.all || c.out == eniMaxPods) && c.instanceType != "":
				return errors.New("--instance-type and --all (or -o eni-max-pods) are both set: expected one of them")
			case c.all || c.out == eniMaxPods:
				return c.printAll(cmd.OutOrStdout())
			case c.instanceType == "":
				return errors.New("--instance-type is not set: expected a type such as m5.large, or --all")
			}
			return c.printOne(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.instanceType, "instance-type", "", "EC2 instance type, such as m5.large")
	f.BoolVar(&c.all, "all", false, "print all instance types that support the other options")
	f.BoolVar(&c.o.Prefixes, "prefix-delegation", false, "assign /28 prefixes instead of single IPv4 addresses")
	f.StringVar(&c.families, "ip-families", string(ipfamily.OnlyIPv4), "address families of pods: ipv4, ipv6 or dual")
	f.IntVar(&c.o.First, "first-interface-index", 0, "lowest device index whose ENI serves pods; 1 leaves eth0 to the node")
	f.BoolVar(&c.o.Trunk, "trunk-eni", false, "reserve one ENI as a trunk; its branch interfaces are not counted")
	f.IntVar(&c.o.MaxENI, "max-eni", 0, "maximum number of ENIs, eth0 included; 0: as many as the type has")
	f.IntVar(&c.free, "free-addresses", 0, "free IPv4 addresses of the subnet that the node takes addresses from, once it runs")
	f.StringVar(&c.subnet, "subnet-id", "", "subnet that the node takes addresses from: read its free addresses from EC2")
	f.StringVar(&c.region, "region", "", "AWS region of --subnet-id; that of the AWS configuration or the instance if empty")
	f.VarP(&c.out, "output", "o", "output format")
	return cmd
}

// askSubnet reads the free addresses of the subnet from EC2.
func (c *maxPodsCommand) askSubnet(ctx context.Context) error {
	if c.o.HasFree {
		return errors.New("--subnet-id and --free-addresses are both set: expected one of them")
	}
	list, err := ec2subnets.Read(ctx, c.region, cloud.SubnetFilter{IDs: []string{c.subnet}})
	if err != nil {
		return fmt.Errorf("--subnet-id %s: %w", c.subnet, err)
	}
	c.o.Free, c.o.HasFree = list[0].Free, true
	return nil
}

func (c *maxPodsCommand) printOne(w io.Writer) error {
	m, err := maxpods.Of(c.instanceType, c.o)
	if err != nil {
		return err
	}
	if c.out == maxPodsFormat(jsonFmt) {
		return view.WriteJSON(w, m)
	}
	p := &view.Printer{W: w}
	p.Printf("%s: %d pods\n", m.InstanceType, m.MaxPods)
	if m.Unlimited {
		p.Printf("IPv6 addresses are no limit: one prefix has 2^48\n")
	} else {
		p.Printf("%d ENIs × %d usable addresses = %d, and %d host-network pods\n", m.ENIs, m.PerENI, m.Addresses, maxpods.HostPods)
	}
	switch m.Limit() {
	case "processors":
		processors := "up to"
		if m.Recommended == maxpods.ManyProcessors {
			processors = "more than"
		}
		p.Printf("EKS recommends at most %d pods on instances with %s 30 processors.\n", m.Recommended, processors)
	case "subnet":
		p.Printf("The subnet has addresses for %d pods, and %d host-network pods.\n", m.Subnet-maxpods.HostPods, maxpods.HostPods)
	}
	return p.Err
}

func (c *maxPodsCommand) printAll(w io.Writer) error {
	var list []maxpods.Capacity
	for e := range limits.All() {
		if m, err := maxpods.Of(e.Type, c.o); err == nil {
			list = append(list, m)
		}
	}
	p := &view.Printer{W: w}
	switch c.out {
	case maxPodsFormat(jsonFmt):
		return view.WriteJSON(w, list)
	case eniMaxPods:
		p.Printf("# Pods that the addresses of an instance type's ENIs allow, as berthctl max-pods computes them.\n")
		for _, m := range list {
			if !m.Unlimited {
				p.Printf("%s %d\n", m.InstanceType, m.Allowed)
			}
		}
		return p.Err
	}
	grid := view.GridOf(list, func(m maxpods.Capacity) []any {
		return []any{m.InstanceType, m.ENIs, m.PerENI, m.Addresses, m.MaxPods, m.Limit()}
	}, "TYPE", "ENIS", "PER ENI", "ADDRESSES", "MAX PODS", "LIMITED BY")
	p.Table(grid, "No instance type supports these options.")
	return p.Err
}
