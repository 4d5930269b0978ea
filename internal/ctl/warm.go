package ctl

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ec2/maxpods"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// warmENI is one ENI in the output of `warm -o json`.
type warmENI struct {
	DeviceIndex int `json:"deviceIndex"`
	Addresses   int `json:"addresses"` // number of pods that its addresses can serve; for two families, the smaller number
	Prefixes    int `json:"prefixes"`
	IPv6        int `json:"ipv6,omitempty"`         // single addresses
	IPv6Prefix  int `json:"ipv6Prefixes,omitempty"` // of 2^48 addresses each
	Used        int `json:"used"`
}

// warmNode is a node in its steady state, the output of `warm -o json`.
type warmNode struct {
	InstanceType string    `json:"instanceType"`
	Pods         int       `json:"pods"`            // with an address
	Waiting      int       `json:"waiting"`         // without an address
	Addresses    int       `json:"addresses"`       // number of pods that the addresses can serve, used and free
	SubnetIPs    int       `json:"subnetAddresses"` // IPv4 only
	ENIs         []warmENI `json:"enis"`
}

func newWarm() *cobra.Command {
	var instanceType string
	var pods int
	var out format
	cmd := &cobra.Command{
		Use:   "warm",
		Short: "Compute the ENIs and addresses that warm targets result in",
		Long: `Compute the ENIs and addresses that a node settles at with a number of pods and warm
targets, with berthd's own planner. The targets are berthd's flags and environment
variables.`,
		Example: "  berthctl warm --instance-type m5.xlarge --pods 15 --warm-ip-target 5 --minimum-ip-target 10",
		Args:    cobra.NoArgs,
	}
	registerType(cmd, &instanceType)
	cmd.Flags().IntVar(&pods, "pods", 0, "pods with an address of their own")
	out.register(cmd)
	loader := config.NewLoader(cmd.Flags())
	hide(cmd.Flags(), func(flag string) bool { return warmFlags[flag] })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := loader.Load(os.Environ())
		if err != nil {
			return err
		}
		if pods < 0 || pods > maxPods {
			return fmt.Errorf("--pods is %d, expected 0 to %d", pods, maxPods)
		}
		l, err := maxpods.LimitsOf(instanceType)
		if err != nil {
			return err
		}
		policy := cfg.Policy()
		if policy.Families.Has(ipfamily.IPv6) && l.IPv6PerENI == 0 {
			return fmt.Errorf("%s has no IPv6: use another instance type, or --ip-families=ipv4", instanceType)
		}
		if err := policy.Validate(); err != nil {
			return err
		}
		n := nodeAtRest(l, policy, pods)
		n.InstanceType = instanceType
		if out == jsonFmt {
			return view.WriteJSON(cmd.OutOrStdout(), n)
		}
		return writeWarm(cmd, n)
	}
	return cmd
}

const maxPods = 10_000

// warmFlags are berthd's flags that affect the calculation.
var warmFlags = map[string]bool{
	"warm-eni-target": true, "warm-ip-target": true, "minimum-ip-target": true, "warm-prefix-target": true,
	"ip-families": true, "enable-prefix-delegation": true, "min-allocate": true, "pre-allocate": true, "max-above-watermark": true,
	"max-allocate": true, "max-eni": true, "max-pods": true, "first-interface-index": true,
	"instance-type": true, "pods": true, "output": true,
}

// hide hides flags that are not shown from the help.
func hide(flags *pflag.FlagSet, shown func(flag string) bool) {
	flags.VisitAll(func(f *pflag.Flag) { f.Hidden = !shown(f.Name) })
}

func writeWarm(cmd *cobra.Command, n warmNode) error {
	p := &view.Printer{W: cmd.OutOrStdout()}
	p.Printf("%s with %s: %s with %d usable addresses, %d of them free; %d subnet addresses in total\n",
		n.InstanceType, view.Count(n.Pods+n.Waiting, "pod"), view.Count(len(n.ENIs), "ENI"), n.Addresses, n.Addresses-n.Pods, n.SubnetIPs)
	head := []string{"INDEX", "ADDRESSES", "PREFIXES", "USED"}
	six := slices.ContainsFunc(n.ENIs, func(e warmENI) bool { return e.IPv6+e.IPv6Prefix > 0 })
	if six {
		head = append(head, "IPV6", "IPV6 PREFIXES")
	}
	g := view.NewGrid(head...)
	for _, e := range n.ENIs {
		row := []any{e.DeviceIndex, e.Addresses, e.Prefixes, e.Used}
		if six {
			row = append(row, e.IPv6, e.IPv6Prefix)
		}
		g.Add(row...)
	}
	p.Section("ENIs", g, "No ENI.")
	if n.Waiting > 0 {
		p.Printf("\n! %s without an address: the instance type or a setting allows no more\n", view.Count(n.Waiting, "pod"))
	}
	return p.Err
}

// nodeAtRest simulates a node with unlimited subnets: it adds pods one by one and
// applies the planner's actions after each, until none is left.
func nodeAtRest(l cloud.Limits, policy ipam.Policy, pods int) warmNode {
	s := plan.State{ENIs: []plan.ENI{{ID: "0", Phase: plan.Attached, Primary: true, Ours: true}}}
	s.Subnets = []plan.Subnet{{Free: plan.Unlimited, ForNew: true}}
	var n warmNode
	grow(l, policy, &s)
	for range pods {
		s.Waiting = 1
		if place(policy, &s) || grow(l, policy, &s) && place(policy, &s) {
			n.Pods++
			s.Waiting = 0
			grow(l, policy, &s)
		} else {
			n.Waiting++
		}
	}
	for _, e := range s.ENIs {
		total := plan.Pods(policy.Families, e.Amount)
		n.ENIs = append(n.ENIs, warmENI{DeviceIndex: e.Index, Addresses: total, Prefixes: e.Prefixes, Used: e.Used, IPv6: e.IPv6, IPv6Prefix: e.IPv6Prefixes})
		n.Addresses += total
		n.SubnetIPs += plan.Count(e.Amount) + 1 // the primary address
	}
	return n
}

// place assigns a free address to a pod, and reports whether one was free.
func place(policy ipam.Policy, s *plan.State) bool {
	for i := range s.ENIs {
		if e := &s.ENIs[i]; e.Index >= policy.FirstInterfaceIndex && e.Used < plan.Pods(policy.Families, e.Amount) {
			e.Used++
			return true
		}
	}
	return false
}

// maxPlans ends a simulation that does not converge; the planner needs far fewer steps.
const maxPlans = 1000

// grow applies the planner's actions until none is left, and reports whether there were
// any. Plans only add addresses here, because no address in the state may be released.
func grow(l cloud.Limits, policy ipam.Policy, s *plan.State) (grew bool) {
	for range maxPlans {
		actions := plan.Make(l, policy, *s).Actions
		if len(actions) == 0 {
			return grew
		}
		grew = true
		for _, a := range actions {
			if a.Kind == plan.Create {
				s.ENIs = append(s.ENIs, plan.ENI{ID: strconv.Itoa(len(s.ENIs)), Index: a.Index, Phase: plan.Attached, Ours: true, Amount: a.Amount})
				continue
			}
			for i := range s.ENIs {
				if s.ENIs[i].ID == a.ENI {
					s.ENIs[i].Amount = s.ENIs[i].Plus(a.Amount)
				}
			}
		}
	}
	return grew
}

func registerType(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "instance-type", "", "EC2 instance type, such as m5.large")
	_ = cmd.MarkFlagRequired("instance-type")
}
