// Package source defines the origin of a node's pod addresses: one interface, implemented by enisource, pool and none,
// and wrapped by nodelocal. docs/contribute/packages.md, "Package map", has the map of the packages.
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

// Lease holds the addresses of an attachment. It is part of the attachment's record.
type Lease = attachment.Lease

// Request is the attachment that an ADD requests.
type Request = attachment.Request

// PodOptions are the pod's part of a Request.
type PodOptions = attachment.PodOptions

// Source assigns addresses. All methods may be called concurrently.
type Source interface {
	// Annotations returns the keys of pods' annotations that the source reads. If it is empty, the runtime need not pass
	// any. The result never changes.
	Annotations() []string
	// CheckOptions returns an error for an invalid request. It is called before any other work for
	// an ADD. The error names the annotation or the field, and the expected value.
	CheckOptions(options PodOptions) error
	// Restore adds a lease from a record, at startup, before Run and any Acquire. Even an address that the source
	// does not know (yet) is never assigned to another attachment. It fails if another key holds one of the addresses.
	// The pod may be unknown.
	Restore(req Request, lease Lease) error
	// RestoreCooling adds an address that has been cooling since a given time, from a record, at startup. If the
	// cooling period has passed, the address is assigned after those without such a call. Calls come in the order of
	// release.
	RestoreCooling(addr netip.Addr, since time.Time)
	// Withhold passes all addresses that the node itself or other software on it has. Those that belong to the source and
	// that no pod holds are not assigned until a later call omits them, and are kept like cooling addresses: the source
	// never releases them to the cloud or the pool. Withhold returns these.
	Withhold(addrs []netip.Addr) (kept []netip.Addr)
	// NodeAddresses returns the addresses of the node's Node object that the source knows to be its own. They are never
	// removed from the node.
	NodeAddresses() []netip.Addr
	// Run keeps the source supplied and blocks until ctx ends.
	Run(ctx context.Context) error
	// Kick signals that links of the node may have been added or removed, so that missing parts of the data path for the
	// source's addresses are retried soon. It does not block, and may be called before and after Run.
	Kick()
	// Acquire returns the addresses for a new attachment: immediately, from memory, while any are free, otherwise as soon
	// as any are. If ctx ends first the error is an *Exhausted. For a key that already has a lease it returns that
	// lease.
	Acquire(ctx context.Context, req Request) (Lease, error)
	// Why returns the reason why the Acquire of a key is still waiting, or nil if none waits.
	Why(key attachment.Key) *Exhausted
	// Release ends the lease of a key; its addresses start to cool. Without a lease it does nothing.
	Release(key attachment.Key)
	// Cancel ends a lease whose addresses never reached a pod: they do not cool, and may be assigned immediately.
	Cancel(key attachment.Key)
	// CoolingPeriod returns how long a released address is withheld.
	CoolingPeriod() time.Duration
	// Ready returns nil once an address was usable on this node, now or before a restart, even if none are free.
	// Otherwise the error describes what is missing.
	Ready() error
	// Snapshot returns the state for introspection and metrics.
	Snapshot() Snapshot
}

// ErrSupplyUnknown: the kernel has, or may have, state of an ENI or a block that the source has not set up yet but may.
var ErrSupplyUnknown = errors.New("the address source has not set up its ENIs or blocks yet")

// ErrNoLink: the node has no link with the MAC address of an ENI.
var ErrNoLink = errors.New("the ENI has no link on this node")

// LinkChange is the change of an ENI's link since its data path was set up.
type LinkChange int

const (
	// LinkGone means that the node no longer has the link.
	LinkGone LinkChange = iota + 1
	// LinkReplaced means that the node has another link, without the setup of the first.
	LinkReplaced
)

// Exhausted is the error of an ADD that got no addresses, NICs or egress in time, or never can, with the reason.
type Exhausted struct {
	// Reason is a short word for metrics: subnet-full, eni-limit, throttled,
	// max-pods, cooling, permission, unreachable, starting; for pools also
	// pool-unknown, pool-not-allowed, pool-exhausted, namespace-unknown and similar.
	Reason string
	// Message describes the problem and its remedy.
	Message string
	Err     error // the context's error, or the cloud's last one
}

// Error returns the message.
func (e *Exhausted) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Exhausted) Unwrap() error { return e.Err }

// State is the state of one address.
type State string

// The possible states of a node's address.
const (
	Used      State = "used"
	Warm      State = "warm"
	Cooling   State = "cooling"
	NotReady  State = "not-ready" // assigned to the node, but its ENI or block has no data path yet
	Withdrawn State = "withdrawn" // being released to the cloud or the pool, or withheld
)

// AddressInfo is one address in a Snapshot.
type AddressInfo struct {
	Addr  netip.Addr
	State State
	introspect.Origin
	Prefix netip.Prefix    // the delegated prefix that contains it, if any
	Key    *attachment.Key // if used
	Since  time.Time       // when it entered the state, if known
}

// Info returns the state of an address of an allocator. Withdrawn takes precedence over ready.
func Info(v ipam.AddressView[attachment.Key], of introspect.Origin) AddressInfo {
	a := AddressInfo{Addr: v.Addr, State: NotReady, Origin: of, Prefix: v.Prefix, Since: v.Since}
	switch {
	case v.Used:
		key := v.Key // copied, because &v.Key would keep all of v alive
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

// Group is a group of addresses that are added and removed together, such as those of an ENI or a block.
type Group struct {
	Name     string
	Uplink   int // number of the uplink that carries them; 0: the node's own
	Capacity int // maximum number of usable addresses
}

// Condition is a condition of the node reported by the source. Reason is in CamelCase.
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
	Waiting    int           // number of waiting Acquires
	LastError  string        // the current problem with the supply; empty: none
	Conditions []Condition
	Detail     Detail // nil: none
}

// Detail is the part of a Snapshot beyond the common fields.
type Detail interface {
	// Describe adds the source's own part to the document at /ip-manager.
	Describe(doc *introspect.Document)
	// Metrics returns the source's own gauges.
	Metrics() []prometheus.Metric
}

// Reference is a source's part of the reference of berthd's metrics.
type Reference struct {
	Families   []metric.Family
	Conditions [][2]string // condition types with a description of when they are healthy
}

// Count counts addresses by state. The result includes every state.
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
