package ctl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/limits"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
)

// hostPods are the host-network pods that EKS counts in (AWS's best practices for the Amazon VPC CNI).
const hostPods = 2

// kubernetesMax is how many pods Kubernetes recommends for a node at most
// ("Considerations for large clusters"). EKS goes up to 250 from 30 vCPUs.
const kubernetesMax = 110

// capacity is what `max-pods -o json` prints.
type capacity struct {
	InstanceType string `json:"instanceType"`
	ENIs         int    `json:"enis"`
	PerENI       int    `json:"addressesPerENI"` // usable ones
	Addresses    int    `json:"addresses"`       // usable ones on all ENIs
	MaxPods      int    `json:"maxPods"`
	Prefixes     bool   `json:"prefixes"`
}

func newMaxPods() *cobra.Command {
	var instanceType string
	var prefixes bool
	var out format
	cmd := &cobra.Command{
		Use:   "max-pods",
		Short: "Compute how many pods an instance type can run",
		Long: `Compute how many pods an instance type can run, for the kubelet's --max-pods:
ENIs × (addresses per ENI − 1) + 2. An ENI's primary address serves no pod; the 2 are
pods in the host's network, which need no address. With prefixes each address but
the primary one is a /28 of 16.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := capacityOf(instanceType, prefixes)
			if err != nil {
				return err
			}
			if out == jsonFmt {
				return view.WriteJSON(cmd.OutOrStdout(), c)
			}
			p := &view.Printer{W: cmd.OutOrStdout()}
			p.Printf("%s: %d pods\n%d ENIs × %d usable addresses = %d, and %d pods in the host's network\n",
				c.InstanceType, c.MaxPods, c.ENIs, c.PerENI, c.Addresses, hostPods)
			if c.MaxPods > kubernetesMax {
				p.Printf("Kubernetes recommends at most %d pods a node; EKS allows 250 from 30 vCPUs.\n", kubernetesMax)
			}
			return p.Err
		},
	}
	registerType(cmd, &instanceType)
	cmd.Flags().BoolVar(&prefixes, "prefix-delegation", false, "with /28 prefixes instead of single addresses")
	out.register(cmd)
	return cmd
}

func registerType(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "instance-type", "", "EC2 instance type, such as m5.large")
	_ = cmd.MarkFlagRequired("instance-type")
}

func capacityOf(instanceType string, prefixes bool) (capacity, error) {
	l, err := limitsOf(instanceType)
	if err != nil {
		return capacity{}, err
	}
	perENI := l.IPv4PerENI - 1
	maxPods := plan.MaxPods(l)
	if prefixes {
		if !l.Prefixes {
			return capacity{}, fmt.Errorf("%s has no prefixes: it is not a Nitro instance type", instanceType)
		}
		perENI *= ipam.PrefixAddresses
		maxPods = l.MaxENIs*perENI + hostPods
	}
	return capacity{instanceType, l.MaxENIs, perENI, l.MaxENIs * perENI, maxPods, prefixes}, nil
}

// limitsOf looks an instance type up, or names those that were perhaps meant.
func limitsOf(instanceType string) (cloud.Limits, error) {
	if l, ok := limits.Lookup(instanceType); ok {
		return l, nil
	}
	family, _, _ := strings.Cut(instanceType, ".")
	var near []string
	for e := range limits.All() {
		if strings.HasPrefix(e.Type, family+".") {
			near = append(near, e.Type)
		}
	}
	if len(near) == 0 {
		return cloud.Limits{}, fmt.Errorf("instance type %q is not known, expected one such as m5.large", instanceType)
	}
	return cloud.Limits{}, fmt.Errorf("instance type %q is not known; of its family are %s", instanceType, strings.Join(near, ", "))
}
