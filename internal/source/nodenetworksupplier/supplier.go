package nodenetworksupplier

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
)

var _ = failpoint.Register(
	"nodenetwork.create.before", "nodenetwork.create.after", "nodenetwork.replace.deleted",
	"nodenetwork.withdraw.before", "nodenetwork.withdraw.recorded",
	"nodenetwork.report.before", "nodenetwork.report.after",
	"nodenetwork.restore.confirmed", "nodenetwork.restore.after",
)

// Config is what the source needs in operator mode. NodeName, InstanceID and Datapath are required.
type Config struct {
	NodeName   string // of the Node, and so of the NodeNetwork
	Kubeconfig string // a file; empty: the configuration of a pod in the cluster
	// Spec is the spec of a new object; nil: the object is not created, but
	// waited for.
	Spec *v1alpha1.NodeNetworkSpec

	InstanceID string // of this instance; from the metadata service
	Datapath   enisource.Datapath
	Cooling    time.Duration
	Store      enisource.InventoryStore // nil: none
	Clock      clock.Clock              // nil: the machine's
	Logger     *slog.Logger             // nil: silent

	Notify func(podevents.News) // tells pods that they are cut off; may be nil

	// Reported is called after every report on the node's addresses, for metrics. Result
	// is success, conflict (someone else wrote to the object meanwhile; another
	// follows) or error. It may be nil.
	Reported func(result string, took time.Duration)
}

// allocator owns the addresses.
type allocator interface {
	Offer(inv eni.Inventory, back []netip.Prefix) (withdrawn []netip.Prefix, err error)
	ServeUnconfirmed()
	Uses() (uses []enisource.Use, waiting int)
	Room() (free, waiting int)
	MissingLinks() []string
}

// New returns an address source that the operator supplies through the node's NodeNetwork. It makes no
// request yet.
func New(cfg Config) (*enisource.Source, error) {
	if cfg.NodeName == "" {
		return nil, errors.New("NodeNetwork source: NodeName: want the name of this node")
	}
	rc, err := kubeapi.Config(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return newSource(cfg, rc)
}

func newSource(cfg Config, rc *rest.Config) (*enisource.Source, error) {
	api, err := kubeapi.New(rc)
	if err != nil {
		return nil, err
	}
	cfg.Clock = cmp.Or[clock.Clock](cfg.Clock, clock.Real{})
	unnamed := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Logger = unnamed.With("nodenetwork", cfg.NodeName)
	if cfg.Reported == nil {
		cfg.Reported = func(string, time.Duration) {}
	}
	s := newSupplier(&cfg, api)
	src, err := enisource.NewSupplied(enisource.Options{
		InstanceID: cfg.InstanceID, Datapath: cfg.Datapath, Cooling: cfg.Cooling,
		Store: cfg.Store, Clock: cfg.Clock, Logger: unnamed, Notify: cfg.Notify,
	}, s)
	if err != nil {
		return nil, err
	}
	s.serve(src)
	return src, nil
}

// supplier is an enisource.Supplier. One loop, Run, does everything; all but observed belongs to it.
type supplier struct {
	cfg       *Config
	allocator allocator
	observed  *observed
	kicked    retry.Signal // wakes the loop: pods came or went
	unserved  *stateLog    // why addresses are not served from the object
	creator   creator
	reports   reports
	handshake handshake
}

var _ enisource.Supplier = (*supplier)(nil)

func newSupplier(cfg *Config, api *kubeapi.Client) *supplier {
	o, log := newObserved(cfg, api), &stateLog{log: cfg.Logger}
	s := &supplier{cfg: cfg, observed: o, kicked: retry.NewSignal(), unserved: log}
	s.creator = creator{cfg: cfg, api: api, observed: o, unserved: log}
	s.reports = reports{cfg: cfg, api: api, observed: o}
	s.handshake = handshake{cfg: cfg, observed: o, reports: &s.reports}
	return s
}

// serve sets the owner of the addresses; it is called before Run.
func (s *supplier) serve(a allocator) {
	s.allocator, s.reports.allocator, s.handshake.allocator = a, a, a
}

// stateLog logs a state when it changes.
type stateLog struct {
	log  *slog.Logger
	last string
}

// set takes why addresses are not served from the object; empty: they are.
func (l *stateLog) set(because string) {
	if l.last != because && because != "" {
		l.log.Warn("addresses are not served from the object", "because", because)
	}
	l.last = because
}

// Run implements enisource.Supplier.
func (s *supplier) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.observed.follow(ctx) })
	s.reports.pending.since = s.cfg.Clock.Now() // a first report is due
	for ctx.Err() == nil {
		var due <-chan time.Time
		if at := s.pass(ctx); !at.IsZero() {
			due = s.cfg.Clock.After(at.Sub(s.cfg.Clock.Now()))
		}
		select {
		case <-ctx.Done():
		case <-s.observed.changed:
			s.objectChanged(s.cfg.Clock.Now())
		case <-s.kicked:
			s.reports.pending.note(s.cfg.Clock.Now())
		case <-due:
		}
	}
	wg.Wait()
	return ctx.Err()
}

// objectChanged has a report sent if the object's change requires one, and shortens the backoff that an
// outage left.
func (s *supplier) objectChanged(now time.Time) {
	s.reports.pending.note(now)
	answers := s.observed.mirror.Sync.Err() == nil
	for _, b := range []*retry.Backoff{&s.reports.pending.retry, &s.creator.retry} {
		if soon := now.Add(retry.Jitter(coalesce)); answers && b.Until.After(soon) {
			b.Until = soon
		}
	}
}

// pass does what can be done now, and returns when to come back at the latest; zero: when woken.
func (s *supplier) pass(ctx context.Context) time.Time {
	o, listed := s.observed.latest()
	switch {
	case !listed:
		if s.observed.mirror.Sync.Err() != nil {
			s.allocator.ServeUnconfirmed() // as when EC2 does not answer in node mode
		}
		return time.Time{}
	case o == nil || o.Spec.InstanceID != s.cfg.InstanceID:
		s.allocator.ServeUnconfirmed()
		return s.creator.ensure(ctx, o)
	}
	s.creator.found()
	if !reported(o) {
		s.allocator.ServeUnconfirmed()
		s.unserved.set("the operator has not reported on this node yet")
		return s.reports.send(ctx, o, nil, nil)
	}
	s.unserved.set("")
	return s.handshake.reconcile(ctx, o)
}

// Seed implements enisource.Supplier: what was withdrawn before a restart stays withdrawn until the API
// server says otherwise.
func (s *supplier) Seed(inv eni.Inventory) {
	for _, r := range inv.Releasing {
		s.handshake.withheld = append(s.handshake.withheld, r.Prefix)
	}
}

// Kick implements enisource.Supplier.
func (s *supplier) Kick() { s.kicked.Set() }

// OtherGroups implements enisource.Supplier: the operator compares them with its settings.
func (s *supplier) OtherGroups() (enis []string, followed, compared bool) { return nil, false, false }

// PrefixDelegation implements enisource.Supplier.
func (s *supplier) PrefixDelegation() bool {
	o, _ := s.observed.latest()
	return o != nil && o.EffectiveENI().Prefixes()
}

// Template implements enisource.Supplier.
func (s *supplier) Template() string {
	o, _ := s.observed.latest()
	if o == nil {
		return ""
	}
	return o.Status.ENI.Template
}

// Why implements enisource.Supplier.
func (s *supplier) Why(bool) *source.Exhausted { return s.observed.why() }

// LastError implements enisource.Supplier.
func (s *supplier) LastError() string { return s.observed.lastError() }

// SpecOf returns the spec of an instance's object, in the dialect of the settings. Settings that are
// not set are left to the API's defaults.
func SpecOf(c *config.Config, id cloud.Identity) *v1alpha1.NodeNetworkSpec {
	return &v1alpha1.NodeNetworkSpec{
		InstanceID: id.InstanceID, InstanceType: id.InstanceType,
		ENI: v1alpha1.ENISpec{
			VPCID: id.VPCID, AvailabilityZone: id.Zone, IPFamilies: unlessIPv4(c.IPFamilies),
			MinAllocate: number(c.MinAllocate, 0), PreAllocate: number(c.PreAllocate, 0),
			MaxAboveWatermark: number(c.MaxAboveWatermark, 0), MaxAllocate: number(c.MaxAllocate, 0),
			WarmENITarget: number(c.WarmENITarget, 0), WarmIPTarget: number(c.WarmIPTarget, 0),
			MinimumIPTarget: number(c.MinimumIPTarget, 0), WarmPrefixTarget: number(c.WarmPrefixTarget, 0),
			MaxENIs: number(c.MaxENI, 1), MaxPods: number(c.MaxPods, 1),
			FirstInterfaceIndex: number(c.FirstInterfaceIndex, 0),
			SubnetIDs:           c.Subnets, SubnetTags: c.SubnetTags, SecurityGroups: c.SecurityGroups,
			SecurityGroupTags: c.SecurityGroupTags, PrefixDelegation: ifSet(c.PrefixDelegation), UsePrimaryAddress: ifSet(c.UsePrimaryAddress),
			DeleteOnTermination: unless(c.DeleteOnTermination), Trunk: ifSet(c.TrunkENI),
		},
	}
}

// unlessIPv4 returns a set of families as the API writes it; empty for the default.
func unlessIPv4(s ipfamily.Set) string {
	if s == ipfamily.OnlyIPv4 {
		return ""
	}
	return string(s)
}

// unless returns false as a setting; nil for true, which is the default.
func unless(v bool) *bool {
	if v {
		return nil
	}
	return &v
}

// ifSet returns true as a setting; nil for false, which is the default.
func ifSet(v bool) *bool {
	if !v {
		return nil
	}
	return &v
}

// number returns a setting; nil if it is below low, and so not set.
func number(n, low int) *int32 {
	if n < low {
		return nil
	}
	v := int32(n)
	return &v
}

// reported reports whether the operator has said which addresses the instance has: some, or none. The
// addresses of the instance and those that pods may use are two writes, so a new object may for a
// moment count addresses without naming them.
func reported(o *v1alpha1.NodeNetwork) bool {
	return len(o.Spec.IPAM.Available) > 0 || len(o.Status.ENI.ENIs) > 0 && o.Status.ENI.Available == 0
}

// defaultPreAllocate is how many addresses are kept free if neither preAllocate nor a warm target is
// set (Cilium's AWS ENI allocator).
var defaultPreAllocate = ipam.DefaultCilium().PreAllocate

// watermark returns how many free addresses the object asks for.
func watermark(o *v1alpha1.NodeNetwork) int {
	e := o.EffectiveENI()
	perENI, byPrefix := perENI(o)
	switch {
	case e.PreAllocate != nil:
		return int(*e.PreAllocate)
	case e.WarmIPTarget != nil:
		return int(*e.WarmIPTarget)
	case e.WarmPrefixTarget != nil && byPrefix:
		return int(*e.WarmPrefixTarget) * ipam.PrefixAddresses
	case e.WarmENITarget != nil:
		return int(*e.WarmENITarget) * perENI
	}
	return defaultPreAllocate
}

// perENI returns the number of pods that an ENI of the node has addresses for, of the family that it
// can have fewer of. IPv6 addresses come as prefixes where the instance type has them, and limit
// nothing then; with IPv6 only, a prefix counts as an IPv4 one does (ipam.Policy.Demand). ByPrefix says
// that warm targets are of prefixes.
func perENI(o *v1alpha1.NodeNetwork) (pods int, byPrefix bool) {
	families, _ := nodenetwork.Families(o)
	l := o.Status.ENI.Limits
	if l == nil {
		return 1, o.EffectiveENI().Prefixes()
	}
	pods = math.MaxInt
	if families.Has(ipfamily.IPv4) {
		pods = int(l.AddressesPerENI) - 1
	}
	if families.Has(ipfamily.IPv6) && !l.Prefixes {
		pods = min(pods, int(l.IPv6AddressesPerENI))
	}
	if pods == math.MaxInt {
		return ipam.PrefixAddresses, true
	}
	return max(1, pods), o.EffectiveENI().Prefixes()
}
