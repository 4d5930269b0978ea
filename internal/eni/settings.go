package eni

import "github.com/berthnet/berth/internal/ipam"

// Settings is what a person may change while a reconciler works.
type Settings struct {
	InstanceType string // with a Lister: as somebody said, and the cloud's answer counts; else as the instance itself says
	VPCID        string // where subnets and security groups are looked for; empty: the instance's
	Zone         string // likewise
	Policy       ipam.Policy

	SubnetIDs  []string          // for new ENIs
	SubnetTags map[string]string // choose subnets for new ENIs in VPC and zone
	// AnySubnet: without SubnetIDs and SubnetTags every subnet of VPC and zone
	// may have new ENIs (Cilium, "AWS ENI", "ENI Creation"), rather than only the
	// primary ENI's.
	AnySubnet bool
	Groups    []string          // security groups of new ENIs
	GroupTags map[string]string // choose them in the VPC; with neither: the primary ENI's
	KeepENIs  bool              // do not delete ENIs with the instance (DeleteOnTermination off)
	// UsePrimaryAddress: the primary address of an ENI that serves pods, the
	// instance's primary ENI excepted, is among its Addresses for pods.
	UsePrimaryAddress bool
}
