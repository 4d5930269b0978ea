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

// Config is the configuration of the source in operator mode. NodeName, InstanceID and Datapath are required.
type Config struct {
	NodeName   string // name of the Node and of its NodeNetwork
	Kubeconfig string // path of a file; empty: in-cluster configuration
	// Spec is the spec of a new object; nil: the daemon does not create the object, but
	// waits for it.
	Spec *v1alpha1.NodeNetworkSpec

	InstanceID string // of this instance; from the metadata service
	Datapath   enisource.Datapath
	Cooling    time.Duration
	Store      enisource.InventoryStore // nil: none
	Clock      clock.Clock              // nil: the machine's
	Logger     *slog.Logger             // nil: silent

	Notify func(podevents.News) // notifies pods that they are cut off; may be nil

	// Reported is called after every report on the node's addresses, for metrics. result
	// is success, conflict (another client wrote to the object meanwhile; another
	// report follows) or error. It may be nil.
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
// requests yet.
func New(cfg Config) (*enisource.Source, error) {
	if cfg.NodeName == "" {
		return nil, errors.New("nodenetworksupplier: NodeName is empty, expected the name of this node")
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

// supplier is an enisource.Supplier. One loop, Run, does everything and owns all fields except observed.
type supplier struct {
	cfg       *Config
	allocator allocator
	observed  *observed
	kicked    retry.Signal // wakes the loop when pods started or ended
	unserved  *stateLog    // logs why addresses are not served from the object
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

// serve sets the owner of the addresses. It is called before Run.
func (s *supplier) serve(a allocator) {
	s.allocator, s.reports.allocator, s.handshake.allocator = a, a, a
}

// stateLog logs a state when it changes.
type stateLog struct {
	log  *slog.Logger
	last string
}

// set stores the reason why addresses are not served from the object, or "" if they are.
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

// objectChanged triggers a report if the object's change requires one, and shortens the backoff after an
// outage.
func (s *supplier) objectChanged(now time.Time) {
	s.reports.pending.note(now)
	answers := s.observed.mirror.Sync.Err() == nil
	for _, b := range []*retry.Backoff{&s.reports.pending.retry, &s.creator.retry} {
		if soon := now.Add(retry.Jitter(coalesce)); answers && b.Until.After(soon) {
			b.Until = soon
		}
	}
}

// pass does everything that is possible now, and returns the latest time of the next call; zero: when woken.
func (s *supplier) pass(ctx context.Context) time.Time {
	o, listed := s.observed.latest()
	switch {
	case !listed:
		if s.observed.mirror.Sync.Err() != nil {
			s.allocator.ServeUnconfirmed() // as in node mode when EC2 does not respond
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

// Seed implements enisource.Supplier. Addresses withdrawn before a restart stay withdrawn until the API
// server is reached.
func (s *supplier) Seed(inv eni.Inventory) {
	for _, r := range inv.Releasing {
		s.handshake.withheld = append(s.handshake.withheld, r.Prefix)
	}
}

// Kick implements enisource.Supplier.
func (s *supplier) Kick() { s.kicked.Set() }

// OtherGroups implements enisource.Supplier. The operator compares the groups with its settings.
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

// SpecOf returns the spec of an instance's object, in the dialect of the settings. Unset settings
// are left to the API's defaults.
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

// unlessIPv4 returns a set of families in API form, or "" for the default.
func unlessIPv4(s ipfamily.Set) string {
	if s == ipfamily.OnlyIPv4 {
		return ""
	}
	return string(s)
}

// unless returns false as a setting, or nil for true, which is the default.
func unless(v bool) *bool {
	if v {
		return nil
	}
	return &v
}

// ifSet returns true as a setting, or nil for false, which is the default.
func ifSet(v bool) *bool {
	if !v {
		return nil
	}
	return &v
}

// number returns a setting, or nil if it is below low and thus not set.
func number(n, low int) *int32 {
	if n < low {
		return nil
	}
	v := int32(n)
	return &v
}

// reported reports whether the operator has reported the instance's addresses: some, or none. The
// addresses of the instance and those that pods may use are separate writes, so a new object may
// briefly count addresses without naming them.
func reported(o *v1alpha1.NodeNetwork) bool {
	return len(o.Spec.IPAM.Available) > 0 || len(o.Status.ENI.ENIs) > 0 && o.Status.ENI.Available == 0
}

// defaultPreAllocate is the number of addresses kept free if neither preAllocate nor a warm target is
// set (Cilium's AWS ENI allocator).
var defaultPreAllocate = ipam.DefaultCilium().PreAllocate

// watermark returns the number of free addresses that the object requests.
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

// perENI returns the number of pods that an ENI of the node has addresses for, in the family with
// fewer addresses. IPv6 addresses come as prefixes if the instance type supports them, and then limit
// nothing; with IPv6 only, a prefix counts like an IPv4 prefix (ipam.Policy.Demand). byPrefix means
// that warm targets count prefixes.
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
