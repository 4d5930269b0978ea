// Package daemon serves CNI calls on a node. It owns a node's attachments from the runtime's ADD until
// a released address has cooled, and recovers them after a crash (docs/contribute/architecture.md, "Recovery").
// A source.Source provides addresses, a Kernel programs the node, and parts add features such as NICs
// and egress.
package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// Kernel is the part of the data path that concerns pods. All methods may be called concurrently, but
// never for the same attachment. datapath.Node implements it and documents the methods.
type Kernel interface {
	AddPod(ctx context.Context, pod datapath.Pod) (datapath.PodLinks, error)
	CheckPod(ctx context.Context, pod datapath.Pod) error
	PodRules(ctx context.Context, uplink int, addrs []netip.Addr) ([]string, error)
	DetachPod(ctx context.Context, hostLink string, addrs []netip.Addr) error
	ReapLinks(ctx context.Context, hostLinks []string) error
	Inventory(ctx context.Context) (datapath.Inventory, error)
}

// Policies enforces network policies. *networkpolicy.Enforcer implements it.
type Policies interface {
	// Status is what is known and in force.
	Status(now time.Time) introspect.NetworkPolicies
	// Judge is what the policies of the node's pods say about a connection.
	Judge(f policy.Flow) introspect.PolicyJudgement
}

// Sandboxes lists the container IDs that the runtime knows, running or not.
type Sandboxes interface {
	Sandboxes(ctx context.Context) (map[string]bool, error)
}

// Options are the settings and dependencies of a Daemon. Optional ones may be left zero.
type Options struct {
	Source source.Source
	Kernel Kernel
	Parts  []part.Part // in the order in which they are set up; optional
	Repair Repair
	// Install installs the plugin and its configuration. It is called once an address was usable, and
	// periodically after that, and leaves an intact installation unchanged. Optional.
	Install func(context.Context) (Installation, error)

	Store       *attachment.Store
	Quarantined []attachment.Quarantined // damaged records that Store found; optional
	Sandboxes   Sandboxes                // optional
	Policies    Policies                 // of the node's pods, for introspection; optional
	// InspectNetns identifies a network namespace; optional, for tests without one.
	InspectNetns func(path string) (datapath.NetnsID, error)

	Node
	Times
	Metrics *Metrics
	Clock   clock.Clock
	Log     *slog.Logger
}

// Node describes the node for its daemon.
type Node struct {
	NodeName string
	IPAM     string // the value of --ipam, for people
	StateDir string // directory of the marker file for a node on which an address was usable
	// Chained means that another network's plugins create the pods' interfaces and run before Berth's. The
	// source has no addresses then.
	Chained bool
	// Fixed are conditions that do not change while the daemon runs.
	Fixed []Condition
}

// Times are time limits and intervals.
type Times struct {
	WarmWait       time.Duration // how long an ADD waits for an address
	DrainTimeout   time.Duration // how long kernel work may continue at shutdown
	NetnsGrace     time.Duration // how long a namespace must be missing before its attachment is released
	RepairInterval time.Duration // interval of kernel repairs in the absence of events
}

// Repair configures the upkeep of the node's kernel state outside of pods. The zero value disables it.
type Repair struct {
	Upkeep                 Upkeep
	Tell                   func(podevents.News) // events of running pods; does not block; optional
	RemoveForeignAddresses bool                 // remove running pods' addresses from the node's links
	Foreign                Foreign              // other software on the node; nil: not looked at
}

// Installation describes an installed plugin and configuration.
type Installation struct {
	Remark  string // message of the healthy condition
	LeftOut string // plugins of the chain that cannot be used, and why; empty: none
}

// kernelTimeout bounds the kernel work of one ADD or DEL. The work is local netlink calls, which take far
// less than a second.
const kernelTimeout = 15 * time.Second

// Daemon serves one node. Create it with New and call Run.
type Daemon struct {
	Options
	attachments *attachments
	reaper      *reaper
	cooling     *coolingRecords
	conditions  *conditions
	quarantine  *quarantine
	usable      *usableMark
	supply      *supply
	writable    *writable
	sweeper     *sweeper
	repairer    *repairer // nil without Options.Repair.Upkeep
	keepers     keepers
	inspector   *inspector

	draining context.Context // done when the daemon begins to shut down
	drain    context.CancelCauseFunc
}

// New assembles a Daemon without running it.
func New(o Options) *Daemon {
	if o.InspectNetns == nil {
		o.InspectNetns = datapath.InspectNetns
	}
	o.Source = withParts{o.Source, o.Parts}
	d := &Daemon{Options: o, conditions: newConditions(o.Clock, o.Log)}
	d.draining, d.drain = context.WithCancelCause(context.Background())
	d.reaper = newReaper(o.Kernel.ReapLinks, o.Clock, o.Log)
	d.usable = &usableMark{path: filepath.Join(o.StateDir, usableName), file: usableFile{o.Store.Node().InstanceID}, log: o.Log}
	d.supply = &supply{source: o.Source, conditions: d.conditions, usable: d.usable, install: o.Install, clock: o.Clock}
	d.writable = &writable{store: o.Store, conditions: d.conditions, failed: retry.NewSignal(), clock: o.Clock}
	d.cooling = newCoolingRecords(o)
	d.attachments = newAttachments(o, d)
	d.quarantine = &quarantine{attachments: d.attachments, conditions: d.conditions, list: o.Quarantined}
	d.attachments.quarantine = d.quarantine
	d.sweeper = &sweeper{attachments: d.attachments, kernel: o.Kernel, sandboxes: o.Sandboxes, grace: o.NetnsGrace, since: map[attachment.Key]time.Time{}}
	d.keepers = newKeepers(d.draining, o, d.attachments, d.conditions)
	if o.Repair.Upkeep != nil {
		d.repairer = newRepairer(o, d)
		d.attachments.acquirer.fresh = d.repairer.fresh
	}
	d.inspector = &inspector{attachments: d.attachments, conditions: d.conditions, kernel: o.Kernel, node: o.Node, policies: o.Policies, views: make(chan struct{}, podViews)}
	d.Metrics.Registry.MustRegister(&stateCollector{d})
	return d
}

// kernelContext returns a context for work that must reach a consistent state even if the caller has left.
func kernelContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), kernelTimeout)
}

func hostLinkName(k attachment.Key) string {
	return datapath.HostLinkName(k.Network, k.ContainerID, k.IfName)
}
