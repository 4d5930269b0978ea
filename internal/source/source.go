// Package source defines where a node's pod addresses come from: one interface, implemented by enisource, pool and none,
// and wrapped by nodelocal. The map of the packages is docs/architecture.md, "Who does what".
package source

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
)

// Lease is the addresses that an attachment has. It is part of the attachment's record.
type Lease = attachment.Lease

// Request is what an ADD asks for.
type Request = attachment.Request

// PodOptions are what a Request asks for of the pod.
type PodOptions = attachment.PodOptions

// Source hands out addresses. All methods may be called concurrently.
type Source interface {
	// Annotations returns the keys of pods' annotations that the source reads; nil: none, and the runtime need not pass
	// any. The result is always the same.
	Annotations() []string
	// CheckOptions returns an error if no pod can have what a pod asks for. It is called before anything else is done for
	// an ADD. The error names the annotation or the field, and what was expected.
	CheckOptions(options PodOptions) error
	// Restore takes over a lease from a record, at start, before Run and any Acquire. Also an address that the source
	// does not know (yet) is never handed to another attachment. It fails when another key has one of the addresses.
	// The pod may be unknown.
	Restore(req Request, lease Lease) error
	// RestoreCooling takes over an address that cools since some time, from a record, at start. If the time is longer
	// ago than the period, the address is handed out after those without such a call. Calls come in the order of
	// the addresses' release.
	RestoreCooling(addr netip.Addr, since time.Time)
	// Withhold passes all addresses that the node has itself. Those of the source among them that no pod has are not
	// handed out until a later call omits them, and are kept like cooling addresses. It returns these.
	Withhold(addrs []netip.Addr) (kept []netip.Addr)
	// NodeAddresses returns the addresses of the node's Node object that the source knows to be its own. They are never
	// removed from the node.
	NodeAddresses() []netip.Addr
	// Run keeps the source supplied until ctx ends, and returns only then.
	Run(ctx context.Context) error
	// Kick says that links of the node may have been added or removed, so that what the data path lacks for the
	// source's addresses is retried soon. It does not block, and may be called before and after Run.
	Kick()
	// Acquire returns the addresses for a new attachment: at once, from memory, while any are free, else as soon as
	// any are. When ctx ends first the error is an *Exhausted. For a key that already has a lease it returns that
	// lease.
	Acquire(ctx context.Context, req Request) (Lease, error)
	// Why returns why the Acquire of a key is still waiting; nil when none waits.
	Why(key attachment.Key) *Exhausted
	// Release ends the lease of a key; its addresses cool from now on. Without a lease it does nothing.
	Release(key attachment.Key)
	// Cancel ends a lease whose addresses never reached a pod: they do not cool, and may be handed out at once.
	Cancel(key attachment.Key)
	// CoolingPeriod returns how long a released address is not handed out.
	CoolingPeriod() time.Duration
	// Ready returns nil once an address was usable on this node, now or before a restart, even if none are free.
	// Otherwise it says what is missing.
	Ready() error
	// Snapshot returns the state for introspection and metrics.
	Snapshot() Snapshot
}

// ErrSupplyUnknown: the kernel has, or may have, state of an ENI or a block that the source has not set up yet, but may.
var ErrSupplyUnknown = errors.New("the address source has not set up its ENIs or blocks yet")

// ErrNoLink: the node has no link with the MAC address of an ENI.
var ErrNoLink = errors.New("the ENI has no link on this node")

// LinkChange is what happened to the link of an ENI since its data path was set up.
type LinkChange int

const (
	// LinkGone: the node no longer has the link.
	LinkGone LinkChange = iota + 1
	// LinkReplaced: the node has another link, without what was set up on the first.
	LinkReplaced
)

// Exhausted is the error of an ADD that got no addresses, NICs or egress in time, or never can, with the reason.
type Exhausted struct {
	// Reason is a short word for metrics: subnet-full, eni-limit, throttled,
	// max-pods, cooling, permission, unreachable, starting; of pools also
	// pool-unknown, pool-not-allowed, pool-exhausted, namespace-unknown and their like.
	Reason string
	// Message says what is wrong and what to do about it.
	Message string
	Err     error // the context's error, or the cloud's last one
}

// Error returns the message.
func (e *Exhausted) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Exhausted) Unwrap() error { return e.Err }

// State of one address.
type State string

// The states that an address of the node can be in.
const (
	Used      State = "used"
	Warm      State = "warm"
	Cooling   State = "cooling"
	NotReady  State = "not-ready" // assigned to the node, but its ENI or block has no data path yet
	Withdrawn State = "withdrawn" // being returned to the cloud or the pool, or withheld
)

// AddressInfo is one address in a Snapshot.
type AddressInfo struct {
	Addr  netip.Addr
	State State
	introspect.Origin
	Prefix netip.Prefix    // the delegated prefix that contains it, if any
	Key    *attachment.Key // when used
	Since  time.Time       // when it entered the state, if known
}

// Info returns the state of an address of an allocator. Withdrawn takes precedence over ready.
func Info(v ipam.AddressView[attachment.Key], of introspect.Origin) AddressInfo {
	a := AddressInfo{Addr: v.Addr, State: NotReady, Origin: of, Prefix: v.Prefix, Since: v.Since}
	switch {
	case v.Used:
		key := v.Key // a copy of its own: &v.Key would keep all of v
		a.State, a.Key = Used, &key
	case v.Cooling:
		a.State = Cooling
	case v.Withdrawn:
		a.State = Withdrawn
	case v.Ready:
		a.State = Warm
	}
	return a
}

// Group is addresses that are added and removed together, such as those of an ENI or a block.
type Group struct {
	Name     string
	Uplink   int // the number of the uplink that carries them; 0: the node's own
	Capacity int // usable addresses at most
}

// Condition is a condition of the node that the source reports. Reason is in CamelCase.
type Condition struct {
	Type            string
	Healthy         bool
	Reason, Message string
}

// Snapshot is a source's state at one moment.
type Snapshot struct {
	Groups     []Group
	Addresses  []AddressInfo
	Count      map[State]int // of all addresses, listed or not
	Waiting    int           // Acquires that wait
	LastError  string        // the current problem with the supply; empty: none
	Conditions []Condition
	Detail     Detail // nil: none
}

// Detail is what a Snapshot has beyond the common fields.
type Detail interface {
	// Describe adds to the document at /ip-manager what only this source has.
	Describe(doc *introspect.Document)
	// Metrics returns the gauges that only this source has.
	Metrics() []prometheus.Metric
}

// Reference is what a source adds to the reference of berthd's metrics.
type Reference struct {
	Families   []metric.Family
	Conditions [][2]string // type, and when the condition is healthy
}

// Count counts addresses by state. The result has every state.
func Count(addresses []AddressInfo) map[State]int {
	count := map[State]int{Used: 0, Warm: 0, Cooling: 0, NotReady: 0, Withdrawn: 0}
	for _, a := range addresses {
		count[a.State]++
	}
	return count
}

// Details combines several Details.
type Details []Detail

// Describe implements Detail.
func (d Details) Describe(doc *introspect.Document) {
	for _, one := range d {
		if one != nil {
			one.Describe(doc)
		}
	}
}

// Metrics implements Detail.
func (d Details) Metrics() (all []prometheus.Metric) {
	for _, one := range d {
		if one != nil {
			all = append(all, one.Metrics()...)
		}
	}
	return all
}
