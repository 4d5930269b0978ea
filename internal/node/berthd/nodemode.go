package berthd

import (
	"context"
	"fmt"

	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	reconciler "github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/node/nodetemplate"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/nodenetwork/template"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/internal/source/nodenetworksupplier"
)

// nodeMode is the mode of a daemon that calls EC2 for its node.
type nodeMode struct {
	vpc
	endTemplates func() // stops watching NodeNetworkTemplates; may be nil
}

func (m *nodeMode) check() error {
	if !m.cfg.NodeNetworkTemplates {
		return nil
	}
	if err := nodetemplate.CheckAccess(m.cfg.Kubeconfig); err != nil {
		return fmt.Errorf("--node-network-templates: %w", err)
	}
	return nil
}

func (m *nodeMode) newSource(ctx context.Context) (source.Source, error) {
	templates, err := m.followTemplates(ctx)
	if err != nil {
		return nil, err
	}
	if m.aws.Region == "" {
		m.aws.Region = m.id.Region
	}
	client, err := m.deps.Cloud(ctx, m.aws)
	if err != nil {
		return nil, err
	}
	metrics := enisource.NewMetrics(m.metrics.Registry)
	permissions := enisource.NewPermissions(metrics, m.clock, m.log)
	files := enisource.Files{Dir: m.cfg.StateDir}
	base := reconciler.Settings{
		InstanceType: m.id.InstanceType, Policy: m.cfg.Policy(),
		SubnetIDs: m.cfg.Subnets, SubnetTags: m.cfg.SubnetTags, Groups: m.cfg.SecurityGroups, KeepENIs: !m.cfg.DeleteOnTermination,
	}
	// With templates, ENIs with other security groups may come from a template that selected the node earlier.
	base.FollowGroups = m.cfg.FollowSecurityGroups && templates == nil
	begin := wanted(base, nil)
	if templates != nil {
		begin = counted(base, templates.LastApplied())
	}
	src, err := enisource.New(enisource.Options{
		Template: begin.Template, InstanceID: m.id.InstanceID, Datapath: m.networks, Cooling: m.cfg.CoolingPeriod, Store: files, Clock: m.clock, Logger: m.log, Notify: m.tell,
		Permissions: permissions,
	}, reconciler.Config{
		Settings: begin.Settings,
		Cluster:  m.cfg.ClusterName, Adopt: m.cfg.AdoptENIs, Cloud: pace.Cloud(client, pace.Options{Peers: true, Observer: permissions, Logger: m.log}),
		Intents: files.Intents(), Observer: metrics.Reconciler(),
		Timing: reconciler.Timing{
			ShrinkDelay: m.cfg.ShrinkDelay, ListingInterval: m.cfg.ListingInterval,
			Settle: m.cfg.SettleTime, OrphanAge: m.cfg.OrphanAge, CollectInterval: m.cfg.OrphanInterval,
		},
	})
	if err == nil && templates != nil {
		configure := func(c *template.Choice) {
			w := wanted(base, c)
			w.Applied = func() { templates.RecordApplied(c) }
			src.Configure(w)
		}
		first, _ := templates.Choice()
		configure(first) // before the first pass
		templates.OnChange(first, configure)
	}
	return m.withNodeLocal(src, err)
}

// followTemplates starts to watch NodeNetworkTemplates, and waits until it is known which one selects
// the node, because ENIs must not be created with other settings. It returns nil if the settings disable
// templates.
func (m *nodeMode) followTemplates(ctx context.Context) (*nodetemplate.Follower, error) {
	if !m.cfg.NodeNetworkTemplates {
		return nil, nil
	}
	f, err := nodetemplate.New(nodetemplate.Config{
		NodeName: m.cfg.NodeName, Kubeconfig: m.cfg.Kubeconfig, InstanceID: m.id.InstanceID, Dir: m.cfg.StateDir,
		Clock: m.clock, Logger: m.log,
	})
	if err != nil {
		return nil, fmt.Errorf("--node-network-templates: %w", err)
	}
	m.endTemplates = background(ctx, f.Run)
	return f, m.until(ctx, "the Kubernetes API, for NodeNetworkTemplates", func() error { return f.Await(ctx) })
}

// wanted applies a template to the daemon's own settings.
func wanted(base reconciler.Settings, c *template.Choice) enisource.Desired {
	if c == nil {
		return enisource.Desired{Settings: base}
	}
	s, err := nodenetwork.Over(base, &c.ENI)
	s.DrainOutdated = c.Drain
	s.Trunk = false // there are no branches in node mode
	return enisource.Desired{Template: c.Name, Settings: s, Err: err, Fits: func(inv *reconciler.Inventory) error { return nodenetwork.BeyondType(s, inv) }}
}

// counted is the last valid choice, which applies while the newest one is invalid.
func counted(base reconciler.Settings, last *template.Choice) enisource.Desired {
	if w := wanted(base, last); w.Err == nil {
		return w
	}
	return wanted(base, nil)
}

func (m *nodeMode) end() error {
	if m.endTemplates != nil {
		m.endTemplates()
	}
	return nil
}

// operatorMode is the mode of a daemon that uses ENIs that the operator publishes for its node.
// It has no EC2 client.
type operatorMode struct{ vpc }

func newOperatorMode(n *node) *operatorMode { return &operatorMode{vpc{node: n, onDemand: true}} }

func (m *operatorMode) newSource(context.Context) (source.Source, error) {
	c := nodenetworksupplier.Config{
		NodeName: m.cfg.NodeName, Kubeconfig: m.cfg.Kubeconfig, InstanceID: m.id.InstanceID,
		Datapath: m.networks, Cooling: m.cfg.CoolingPeriod, Store: enisource.Files{Dir: m.cfg.StateDir},
		Clock: m.clock, Logger: m.log, Notify: m.tell, Reported: nodenetworksupplier.CountReports(m.metrics.Registry),
	}
	if m.cfg.AutoCreateNodeNetwork {
		c.Spec = nodenetworksupplier.SpecOf(&m.cfg, m.id)
	}
	src, err := nodenetworksupplier.New(c)
	return m.withNodeLocal(src, err)
}
