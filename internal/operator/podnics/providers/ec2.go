package providers

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport/branch"
)

// EC2 is by what VPCs of EC2 are reached: with the operator's own credentials, in its own
// region, by the rate limits that it keeps for ENIs.
type EC2 struct {
	Cloud   branch.Cloud
	Cluster string          // whose ENIs the ports are
	Settle  time.Duration   // how long replies outrank listings; 0: ec2.Settle
	Cooling time.Duration   // how long branches are kept that nobody has; 0: ec2.Cooling
	Ended   <-chan struct{} // closed when the operator ends
}

// toEC2 is the access to a VPC of EC2.
type toEC2 struct {
	env      *EC2
	vpc      string
	subnets  []string
	families ipfamily.Set
	clock    clock.Clock
	log      *slog.Logger
}

// ec2Of is the access that a spec tells.
func ec2Of(o Options, spec v1alpha1.VPCSpec, _ *corev1.Secret) (access, *problem) {
	if o.EC2 == nil {
		return nil, &problem{ofEndpoint, ReasonProviderNotSupported, "spec.provider: ec2 needs an operator that works for ENIs (--ipam eni-operator and port), and this one does not"}
	}
	to := toEC2{env: o.EC2, vpc: spec.Network, families: ipfamily.Set(spec.IPFamilies()), clock: o.Clock, log: o.Logger}
	if spec.EC2 != nil {
		to.subnets = spec.EC2.Subnets
	}
	return to, nil
}

// open implements access.
func (to toEC2) open() (opened, error) {
	p := branch.Open(branch.Settings{
		Cloud: to.env.Cloud, Cluster: to.env.Cluster, VPC: to.vpc, Subnets: to.subnets, Families: to.families, Settle: to.env.Settle, Cooling: to.env.Cooling, Ended: to.env.Ended, Clock: to.clock, Logger: to.log,
	})
	return opened{provider: p, endpoint: string(v1alpha1.ProviderEC2), close: func() {}}, nil
}
