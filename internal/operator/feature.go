package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/operator/egress"
	"github.com/berthnet/berth/internal/operator/egress/clients"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/internal/operator/networkpolicy"
	"github.com/berthnet/berth/internal/operator/nodeaddress"
	"github.com/berthnet/berth/internal/operator/nodeenis"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/operator/podnics/branchcapacity"
	"github.com/berthnet/berth/internal/operator/podnics/nicpolicy"
	"github.com/berthnet/berth/internal/operator/podnics/providers"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/podnics/webhook/callers"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/web"
)

// feature is a part of the operator that can be enabled in the settings.
type feature struct {
	isOn     func(config.Operator) bool // whether the settings enable it
	families []metric.Family            // all of its metrics
	// counters are registered even if the feature is disabled, with the value 0.
	counters []prometheus.Collector
	watches  func() []*watched.Kind
	setup    func(context.Context, manager.Manager, environment) (part, error)
}

// environment is the input of all features' setup.
type environment struct {
	cfg  config.Operator
	log  *slog.Logger
	deps Dependencies
	ec2  *openedEC2

	installed *installed
}

// openedEC2 is the client of EC2 once the ENI feature has opened it. Features that are set up later
// share it, so that all calls of the process keep the same rate limits.
type openedEC2 struct{ api cloud.API } // nil: not opened

// part is a feature after its setup.
type part struct {
	alive  check // fails if the part hangs
	gauges []prometheus.Collector
}

// newFeatures returns all features. New features are added here and in config.Operator.
func newFeatures() []feature {
	return []feature{eniFeature(), poolFeature(), portFeature(), branchFeature(), egressFeature(), policyFeature()}
}

// inIPAM reports whether --ipam lists a name.
func inIPAM(name string) func(config.Operator) bool {
	return func(cfg config.Operator) bool { return slices.Contains(cfg.IPAM, name) }
}

// hasBranches reports whether pods may have EC2 branch interfaces, which are ports on the trunks of
// nodes whose ENIs the operator manages.
func hasBranches(cfg config.Operator) bool {
	return inIPAM(config.IPAMENIOperator)(cfg) && inIPAM(config.IPAMPort)(cfg)
}

// configured returns the features that are enabled in the settings.
func configured(features []feature, cfg config.Operator) []feature {
	return slices.DeleteFunc(slices.Clone(features), func(f feature) bool { return !f.isOn(cfg) })
}

func watches(features []feature) ([]*watched.Kind, error) {
	var kinds []*watched.Kind
	for _, f := range features {
		kinds = append(kinds, f.watches()...)
	}
	return watched.Set(kinds...)
}

// eniFeature manages the ENIs of nodes.
func eniFeature() feature {
	m := nodeenis.NewMetrics()
	return feature{
		isOn: inIPAM(config.IPAMENIOperator), families: nodeenis.Families, counters: m.Collectors(), watches: nodeenis.Watches,
		setup: func(ctx context.Context, mgr manager.Manager, env environment) (part, error) {
			return setupENIs(ctx, mgr, env, m)
		},
	}
}

// poolFeature allocates blocks of address pools.
func poolFeature() feature {
	m := addresspool.NewMetrics()
	return feature{
		isOn: inIPAM(config.IPAMPool), families: addresspool.Families, counters: m.Collectors(), watches: addresspool.Watches,
		setup: func(ctx context.Context, mgr manager.Manager, env environment) (part, error) {
			return setupPools(ctx, mgr, env, m)
		},
	}
}

// portFeature creates VPC ports for pods.
func portFeature() feature {
	calls, nics, reviews := providers.NewMetrics(), podnics.NewMetrics(), webhook.NewMetrics()
	return feature{
		isOn: inIPAM(config.IPAMPort), families: slices.Concat(providers.Families, podnics.Families, warm.Families, webhook.Families),
		counters: slices.Concat(calls.Collectors(), nics.Collectors(), reviews.Collectors()),
		watches: func() []*watched.Kind {
			return slices.Concat(providers.Watches(), podnics.Watches(), nicpolicy.Watches())
		},
		setup: func(ctx context.Context, mgr manager.Manager, env environment) (part, error) {
			return setupPorts(ctx, mgr, env, calls, nics, reviews)
		},
	}
}

// branchFeature advertises branch interfaces to the scheduler.
func branchFeature() feature {
	return feature{
		isOn: hasBranches, watches: branchcapacity.Watches,
		setup: func(_ context.Context, mgr manager.Manager, env environment) (part, error) {
			return part{alive: all(nil)}, branchcapacity.Setup(mgr, env.log)
		},
	}
}

// egressFeature runs gateways for Egresses and connects pods to them.
func egressFeature() feature {
	gateways, members := egress.NewMetrics(), clients.NewMetrics()
	return feature{
		isOn: func(cfg config.Operator) bool { return cfg.Egress }, families: slices.Concat(egress.Families, clients.Families),
		counters: slices.Concat(gateways.Collectors(), members.Collectors()),
		watches:  func() []*watched.Kind { return slices.Concat(egress.Watches(), clients.Watches()) },
		setup: func(ctx context.Context, mgr manager.Manager, env environment) (part, error) {
			return setupEgress(ctx, mgr, env, gateways, members)
		},
	}
}

// policyFeature resolves network policies for nodes.
func policyFeature() feature {
	return feature{
		isOn: func(cfg config.Operator) bool { return cfg.NetworkPolicies }, families: networkpolicy.Families, watches: networkpolicy.Watches, setup: setupPolicyServer,
	}
}

func setupENIs(ctx context.Context, mgr manager.Manager, env environment, m *nodeenis.Metrics) (part, error) {
	cfg, log := env.cfg, env.log
	client, err := env.deps.Cloud(ctx, aws.Options{
		Region: cfg.Region, EC2Endpoint: cfg.EC2Endpoint, IMDSEndpoint: cfg.IMDSEndpoint, Logger: log, UserAgent: "berth-operator",
	})
	if err != nil {
		return part{}, err
	}
	ec2 := pace.Cloud(client, pace.Options{Ceilings: cfg.EC2Limits, Observer: m, Logger: log})
	env.ec2.api = ec2
	fl, err := fleet.New(fleet.Config{
		Cluster: cfg.ClusterName, Adopt: cfg.AdoptENIs, Cloud: ec2, Observer: m, Clock: clock.Real{}, Logger: log,
		Timing: eni.Timing{
			ListingInterval: cfg.ListingInterval, ShrinkDelay: cfg.ShrinkDelay, Settle: cfg.SettleTime,
			CollectInterval: cfg.OrphanInterval, OrphanAge: cfg.OrphanAge,
		},
	})
	if err != nil {
		return part{}, err
	}
	networks, err := nodeenis.Setup(mgr, nodeenis.Options{
		Fleet: fl, Clock: clock.Real{}, Logger: log,
		Identity: nodeenis.Identity{
			NodeTag: cfg.InstanceNodeTag, ClusterTag: cfg.InstanceClusterTag.Key, ClusterValue: cfg.InstanceClusterTag.Value,
		},
		Grace: cfg.NodeGoneGrace, Settle: cfg.SettleTime, DemandServed: m.DemandServed, Settings: env.installed.state,
	})
	if err != nil {
		return part{}, err
	}
	// By default, a runnable runs only while leading.
	if err := mgr.Add(manager.RunnableFunc(fl.Run)); err != nil {
		return part{}, fmt.Errorf("add the fleet: %w", err)
	}
	return part{
		alive: answers("the fleet", func() {
			fl.Kick("") // an unknown node; takes the lock that all work needs
			fl.Subnets()
		}),
		gauges: []prometheus.Collector{networks.Gauges(fl.Subnets)},
	}, nil
}

func setupPools(ctx context.Context, mgr manager.Manager, env environment, m *addresspool.Metrics) (part, error) {
	cfg := env.cfg
	pools, err := addresspool.Setup(ctx, mgr, addresspool.Options{
		Clock: clock.Real{}, Logger: env.log, Grace: cfg.BlockClaimGrace, DownAfter: cfg.DownNodeRelease,
		Sweep: cfg.OrphanInterval, RequestServed: m.RequestServed, MaxPods: cfg.NodeMaxPods, RequestRefused: m.RequestRefused,
	})
	if err != nil {
		return part{}, err
	}
	return part{
		alive:  answers("the controller of address pools", func() { pools.Usage() }),
		gauges: []prometheus.Collector{pools.Gauges()},
	}, nil
}

// firstOf describes the first interface of pods with NICs: always a port, or an address from another
// source unless the pod asks for a branch interface of that name.
func firstOf(cfg config.Operator) nicrequest.First {
	return nicrequest.First{Name: nicrequest.FirstInterface, IsPort: cfg.FirstIsPort, MayBePort: hasBranches(cfg) && !cfg.FirstIsPort}
}

// ofEC2 returns the access to VPCs of EC2, or nil.
func ofEC2(ctx context.Context, env environment) *providers.EC2 {
	if env.ec2.api == nil {
		return nil
	}
	return &providers.EC2{Cloud: env.ec2.api, Cluster: env.cfg.ClusterName, Settle: env.cfg.SettleTime, Cooling: env.cfg.BranchCooling, Ended: ctx.Done()}
}

func setupPorts(ctx context.Context, mgr manager.Manager, env environment, calls *providers.Metrics, nics *podnics.Metrics, reviews *webhook.Metrics) (part, error) {
	cfg := env.cfg
	if err := podnics.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return part{}, err
	}
	vpcs, err := providers.Setup(mgr, providers.Options{
		Namespace: cfg.LeaseNamespace, Interval: cfg.ListingInterval, Calls: cfg.VPCCalls,
		EC2: ofEC2(ctx, env), Provider: env.deps.VPC, Observer: calls, Clock: clock.Real{}, Logger: env.log,
	})
	if err != nil {
		return part{}, err
	}
	policies, err := nicpolicy.NewPolicies(mgr, cfg.LeaseNamespace, clock.Real{}, env.log)
	if err != nil {
		return part{}, err
	}
	ports, err := podnics.Setup(mgr, podnics.Options{
		Cluster: cfg.ClusterName, Networks: vpcs.Networks(), First: firstOf(cfg), PoliciesSince: policies.Since,
		Clock: clock.Real{}, Logger: env.log, Metrics: nics,
		Settle: cfg.SettleTime, UnplugGrace: cfg.UnplugGrace, Listing: cfg.ListingInterval,
		Orphans: cfg.OrphanInterval, OrphanAge: cfg.OrphanAge,
	})
	if err != nil {
		return part{}, err
	}
	hook, err := setupWebhook(mgr, env, policies, reviews)
	if err != nil {
		return part{}, err
	}
	return part{
		alive: all([]check{
			answers("the controller of VPCs", vpcs.Alive),
			answers("the controller of NICs", func() { ports.Known() }),
		}),
		gauges: append([]prometheus.Collector{vpcs.Gauges(), ports.Gauges()}, hook...),
	}, nil
}

// setupWebhook sets up the webhook, which validates pods that request NICs, and adds to pods the NICs
// of policies and requests for branch interfaces.
func setupWebhook(mgr manager.Manager, env environment, policies *nicpolicy.Policies, reviews *webhook.Metrics) ([]prometheus.Collector, error) {
	cfg := env.cfg
	listener, err := web.Listen("webhook-address", cfg.WebhookAddr)
	if err != nil {
		return nil, err
	}
	if err := setupPolicies(mgr, env, policies, listener != nil); err != nil {
		return nil, err
	}
	if listener == nil {
		return nil, nil
	}
	return webhook.Setup(mgr, webhook.Options{
		Listener: listener, Clients: cfg.WebhookFrom, Namespace: cfg.LeaseNamespace, First: firstOf(cfg), Policies: policies,
		Branches: hasBranches(cfg), Clock: clock.Real{}, Logger: env.log, Metrics: reviews,
	})
}

// setupPolicies sets up NIC policies: it makes the API server call the webhook for pods of the
// namespaces concerned. It reports whether policies are enabled.
func setupPolicies(mgr manager.Manager, env environment, policies *nicpolicy.Policies, serves bool) error {
	o := nicpolicy.Options{
		Namespace: env.cfg.LeaseNamespace, Clock: clock.Real{}, Logger: env.log,
		Asked:   func(string) error { return errors.New("the operator serves no webhook (--webhook-address)") },
		Changed: func(func()) {},
	}
	if serves {
		asking := []callers.Caller{{Webhook: callers.PolicyWebhookName, Namespaces: policies.Namespaces}}
		if hasBranches(env.cfg) {
			asking = append(asking, callers.Caller{Webhook: callers.WebhookName, Namespaces: callers.ByVPC(mgr.GetClient())})
		}
		c, err := callers.Setup(mgr, env.log, asking, &v1alpha1.NICPolicy{})
		if err != nil {
			return err
		}
		policies.Changed(c.Look)
		o.Asked, o.Changed = func(namespace string) error { return c.Asked(callers.PolicyWebhookName, namespace) }, c.Changed
	}
	return nicpolicy.Setup(mgr, o)
}

// knownAddresses are the sources of pods' addresses that the operator knows.
func knownAddresses(mgr manager.Manager, cfg config.Operator) nodeaddress.Sources {
	return nodeaddress.Sources{
		Cache: mgr.GetClient(), ENIs: inIPAM(config.IPAMENIOperator)(cfg), Pools: inIPAM(config.IPAMPool)(cfg), Ports: inIPAM(config.IPAMPort)(cfg),
	}
}

func setupEgress(ctx context.Context, mgr manager.Manager, env environment, gateways *egress.Metrics, members *clients.Metrics) (part, error) {
	cfg := env.cfg
	if err := errors.Join(egress.Index(ctx, mgr.GetFieldIndexer()), clients.Index(ctx, mgr.GetFieldIndexer())); err != nil {
		return part{}, err
	}
	egresses, err := egress.Setup(mgr, egress.Options{
		Settings: gatewayplan.Settings{Image: cfg.EgressImage, Port: uint16(cfg.EgressPort)},
		Clock:    clock.Real{}, Logger: env.log, Metrics: gateways,
	})
	if err != nil {
		return part{}, err
	}
	pods, err := clients.Setup(mgr, clients.Options{Namespace: cfg.LeaseNamespace, May: knownAddresses(mgr, cfg).May, Clock: clock.Real{}, Logger: env.log, Metrics: members})
	if err != nil {
		return part{}, err
	}
	return part{
		alive: all([]check{
			answers("the controller of Egresses", func() { egresses.Known() }),
			answers("the controller of Egress clients", func() { pods.Known() }),
		}),
		gauges: []prometheus.Collector{egresses.Gauges(), pods.Gauges()},
	}, nil
}

func setupPolicyServer(_ context.Context, mgr manager.Manager, env environment) (part, error) {
	cfg := env.cfg
	listener, err := web.Listen("network-policy-address", cfg.NetworkPolicyAddr)
	if err != nil {
		return part{}, err
	}
	addresses := knownAddresses(mgr, cfg)
	policies, err := networkpolicy.Setup(mgr, networkpolicy.Options{
		Listener: listener, Namespace: cfg.LeaseNamespace, Daemon: cfg.NetworkPolicyDaemons, Judge: addresses.Judge, OfNIC: addresses.OfNIC,
		Clock: clock.Real{}, Logger: env.log,
	})
	if err != nil {
		return part{}, err
	}
	return part{
		alive:  answers("the server of network policies", policies.Alive),
		gauges: []prometheus.Collector{policies.Gauges()},
	}, nil
}
