package lab

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// DefaultSpec is a VPC with two subnets in two zones, and nodes named node-1
// onwards spread over them. Its security group lets in the VPC, the
// on-premises network and node ports, and everything out. The nodes' role may do
// what deploy/iam/node.json allows in the lab's cluster.
func DefaultSpec(nodes int, instanceType string) spec.Spec {
	s := spec.Default()
	s.VPCs[0].SecurityGroups = []spec.SecurityGroup{{
		Name:        "default",
		Description: "the VPC, the on-premises network and node ports",
		Ingress: []spec.Rule{
			{Protocol: "-1", CIDRs: []netip.Prefix{s.VPCs[0].CIDRs[0], netip.MustParsePrefix("192.168.100.0/24")}},
			{Protocol: "tcp", FromPort: 30000, ToPort: 32767, CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
			{Protocol: "udp", FromPort: 30000, ToPort: 32767, CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
		},
	}}
	s.Instances = nil
	s.Roles[0].Actions, s.Roles[0].Policy = nil, deploy.NodePolicy(clusterHere)
	for i := range nodes {
		s.Instances = append(s.Instances, spec.Instance{
			Name: fmt.Sprintf("node-%d", i+1), Type: instanceType,
			Subnet: s.VPCs[0].Subnets[i%len(s.VPCs[0].Subnets)].Name, Role: s.Roles[0].Name,
		})
	}
	s.Delays = spec.Delays{
		Attach: spec.Duration(200 * time.Millisecond),
		Link:   spec.Duration(300 * time.Millisecond),
		Detach: spec.Duration(200 * time.Millisecond),
	}
	return s
}
