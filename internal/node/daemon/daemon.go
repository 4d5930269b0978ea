// Package daemon is berthd: it owns a node's attachments from the runtime's
// ADD to the moment a released address has cooled, and the recovery of all of
// it after a crash (docs/architecture.md, "Recovery"). Addresses come from a
// source.Source, the kernel is programmed through a Kernel; both are handed in.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// Kernel is what the daemon asks of the data path for pods. All methods may
// be called concurrently, those for one attachment never are. datapath.Node
// implements it and documents each.
type Kernel interface {
	AddPod(ctx context.Context, pod datapath.Pod) (datapath.PodLinks, error)
	CheckPod(ctx context.Context, pod datapath.Pod) error
	PodRules(ctx context.Context, uplink int, addrs []netip.Addr) ([]string, error)
	DetachPod(ctx context.Context, hostLink string, addrs []netip.Addr) error
	ReapLinks(ctx context.Context, hostLinks []string) error
	Inventory(ctx context.Context) (datapath.Inventory, error)
}

// Sandboxes lists the container IDs that the runtime knows, running or not.
type Sandboxes interface {
	Sandboxes(ctx context.Context) (map[string]bool, error)
}

// Options are the parts of a Daemon. Those marked optional may be left zero.
type Options struct {
	Source source.Source
	Kernel Kernel
	NICs   NICs   // optional: pods then have none
	Egress Egress // optional: pods then have none
	// Chained: pods' interfaces are another network's, after whose plugins this one is called;
	// Source has no addresses then.
	Chained bool
	Upkeep  Upkeep // optional
	// Install puts plugin and configuration in place, once an address was
	// usable and now and then after that; a good installation it leaves as it
	// is. Optional.
	Install func(context.Context) (Installation, error)

	Store       *attachment.Store
	Quarantined []attachment.Quarantined // what Store found damaged; optional
	Sandboxes   Sandboxes                // optional
	Metrics     *Metrics
	Clock       clock.Clock
	Log         *slog.Logger
	NodeName    string
	IPAM        string // where addresses come from, for those who watch: the value of --ipam
	StateDir    string // for the mark that an address was usable once

	WarmWait     time.Duration // how long an ADD waits for an address
	NICWait      time.Duration // how long an ADD with NICs waits for them and its address together, if longer
	GatewayWait  time.Duration // how long an ADD waits for gateways to serve the pod, until it goes on without
	EgressWait   time.Duration // how long an ADD waits to hear of egress, and what it needs besides then, if longer
	DrainTimeout time.Duration // how long kernel work may go on at the end
	NetnsGrace   time.Duration // how long a namespace must be gone

	RepairInterval time.Duration // how often the kernel is repaired without an event

	Tell                   func(podevents.News) // of running pods; returns at once; optional
	RemoveForeignAddresses bool                 // take running pods' addresses from the node's links

	// InspectNetns identifies a network namespace; optional, for tests without one.
	InspectNetns func(path string) (datapath.NetnsID, error)
}

// Installation is what may be said of plugin and configuration that are in place.
type Installation struct {
	Remark  string // for the condition that they are
	LeftOut string // which plugins of the chain could not be used, and why; empty: none
}

// kernelTimeout bounds the kernel work of one ADD or DEL. It is netlink on
// this machine: a second would be much.
const kernelTimeout = 15 * time.Second

// Daemon serves one node. Make it with New and call Run.
type Daemon struct {
	Options
	locks      *keyLocks // by container ID
	waits      *waits
	adds       waitingADDs
	reaper     *reaper
	cooling    *coolingRecords
	conditions *conditions
	quarantine *quarantine
	usable     usableMark
	absent     absences
	supply     *supply
	writable   *writable
	repairer   *repairer     // nil without Upkeep
	nics       *nicKeeper    // nil without NICs
	egress     *egressKeeper // nil without Egress
	views      chan struct{} // a token for each question about a pod at work

	draining context.Context // ends when the daemon begins to end
	drain    context.CancelCauseFunc
}

var errDraining = errors.New("berthd is ending")

// New puts a Daemon together. Nothing runs yet.
func New(o Options) *Daemon {
	if o.InspectNetns == nil {
		o.InspectNetns = datapath.InspectNetns
	}
	d := &Daemon{
		Options:    o,
		locks:      newKeyLocks(),
		waits:      newWaits(o.Clock),
		views:      make(chan struct{}, podViews),
		reaper:     newReaper(o.Kernel.ReapLinks, o.Clock, o.Log),
		conditions: newConditions(o.Clock, o.Log),
		absent:     absences{since: map[attachment.Key]time.Time{}},
		usable: usableMark{
			path: filepath.Join(o.StateDir, usableName), file: usableFile{o.Store.Node().InstanceID}, log: o.Log,
		},
	}
	d.quarantine = &quarantine{conditions: d.conditions, list: o.Quarantined}
	d.supply = &supply{source: o.Source, conditions: d.conditions, usable: &d.usable, install: o.Install, clock: o.Clock}
	d.writable = &writable{store: o.Store, conditions: d.conditions, failed: retry.NewSignal(), clock: o.Clock}
	if o.Upkeep != nil {
		d.repairer = &repairer{
			upkeep: o.Upkeep, kernel: o.Kernel, store: o.Store, source: o.Source, conditions: d.conditions, quarantine: d.quarantine,
			repairs: o.Metrics.repairs, interval: o.RepairInterval, again: d.addAgainLater,
			addresses: nodeAddresses{remove: o.RemoveForeignAddresses, tell: o.Tell},
			clock:     o.Clock, log: o.Log,
		}
	}
	if o.NICs != nil {
		d.nics = newNICKeeper(d)
		if d.repairer != nil {
			d.repairer.linkChanged = o.NICs.LinkChanged
		}
	}
	if o.Egress != nil {
		d.egress = newEgressKeeper(d)
	}
	d.cooling = &coolingRecords{
		store: o.Store, period: o.Source.CoolingPeriod, clock: o.Clock, log: o.Log,
		locks: newKeyLocks(), wake: retry.NewSignal(),
	}
	d.draining, d.drain = context.WithCancelCause(context.Background())
	d.Metrics.Registry.MustRegister(&stateCollector{d})
	return d
}

// kernelContext is for work that must reach a consistent state whether or not
// the caller is still there.
func kernelContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), kernelTimeout)
}

func hostLinkName(k attachment.Key) string {
	return datapath.HostLinkName(k.Network, k.ContainerID, k.IfName)
}
