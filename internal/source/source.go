// Package source is where a node's pod addresses come from: one interface, of
// which the folders eni and pool are the implementations. What the others are is in
// docs/architecture.md, "Who does what".
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

// Lease is one attachment's hold on its addresses, kept in its record.
type Lease = attachment.Lease

// Request asks for the addresses of one attachment.
type Request struct {
	Key  attachment.Key
	Pod  attachment.Pod
	Wish Wish
}

// Wish is what a user asks for, in the runtime's words: on its own node the
// runtime speaks for every pod.
type Wish struct {
	Told bool // the runtime tells the pod's annotations; else nothing is known of them
	// Annotations are those of the pod that the daemon's parts look at, by key.
	Annotations map[string]string
	// NetworkPool is the pool that the network's configuration names; empty
	// without. It comes before the annotation, and is as much a user's word: Multus
	// takes configurations from objects in the pods' namespaces.
	NetworkPool string
}

// Source hands out addresses. All methods may be called concurrently.
type Source interface {
	// Annotations are the keys of pods' annotations that the source looks at, below
	// berth.dev; nil: none, and the runtime need not tell them. Always the same.
	Annotations() []string
	// CheckWish refuses, before anything is done about an ADD, what no pod can have.
	// The error names the annotation or the field, and what was expected.
	CheckWish(wish Wish) error
	// Restore marks a lease as held, as found in a record at start, before Run
	// and before any Acquire. An address that the source does not know (yet)
	// is held all the same and never handed to another. It fails when another
	// key holds one of the addresses. The pod may be unknown.
	Restore(req Request, lease Lease) error
	// RestoreCooling marks an address as cooling since a moment, as found in
	// a record at start. A moment longer ago than the period says that it has
	// cooled: it is handed out after those of which nothing is told. Such
	// addresses are told in the order of their release.
	RestoreCooling(addr netip.Addr, since time.Time)
	// Withhold tells all addresses that the node has itself. Those of the source that are among
	// them and that no pod holds are handed to none until a later call leaves them out; it returns
	// these. Until then they are kept as addresses that cool are.
	Withhold(addrs []netip.Addr) (kept []netip.Addr)
	// NodeAddresses are the addresses of the node's Node object that the source knows to be among its own. They are
	// never removed from the node.
	NodeAddresses() []netip.Addr
	// Run keeps the source supplied until ctx ends, and returns only then.
	Run(ctx context.Context) error
	// Kick says that links of the node may have come or gone: what the data path
	// still lacks for the source's addresses is tried again soon. It returns at
	// once, may do nothing, and may be called before Run and after it.
	Kick()
	// Acquire gives the addresses for a new attachment: at once, from memory,
	// while one is warm, else as soon as one becomes so. When ctx ends first the
	// error is an *Exhausted that names the reason, and no waiter is left.
	// Acquire for a key that already holds a lease returns that lease.
	Acquire(ctx context.Context, req Request) (Lease, error)
	// Why tells why the Acquire of key that waits has got nothing yet; nil when
	// none waits.
	Why(key attachment.Key) *Exhausted
	// Release ends the hold of key: its addresses cool from now on. A key that
	// holds nothing is no error.
	Release(key attachment.Key)
	// Cancel ends a hold whose addresses never reached a pod: they do not cool
	// and are handed out again at once, as if never taken.
	Cancel(key attachment.Key)
	// CoolingPeriod tells how long a released address is kept back.
	CoolingPeriod() time.Duration
	// Ready is nil once an address was usable on this node, now or before a
	// restart; exhaustion does not make it fail. Else it says what is missing.
	Ready() error
	// Snapshot is the source's view for introspection and metrics.
	Snapshot() Snapshot
}

// ErrSupplyUnknown: the kernel has, or may have, state of an ENI or a block that
// the source has not set up yet, but may.
var ErrSupplyUnknown = errors.New("the address source has not set up yet what is its here")

// ErrNoLink: the node has no link with the MAC address of an ENI.
var ErrNoLink = errors.New("the ENI has no link on this node")

// LinkChange is what became of the link of an ENI since its data path was set up.
type LinkChange int

const (
	// LinkGone: the node has no link of the ENI any more.
	LinkGone LinkChange = iota + 1
	// LinkReplaced: it has another one, without what was set up on the first.
	LinkReplaced
)

// Exhausted says that no address became free in time, and why.
type Exhausted struct {
	// Reason is a short word for metrics: subnet-full, eni-limit, throttled,
	// max-pods, cooling, permission, unreachable, starting; of pools also
	// pool-unknown, pool-not-allowed, pool-exhausted, namespace-unknown and their like.
	Reason string
	// Message tells a person what is wrong and what to do about it.
	Message string
	Err     error // the context's error, or the cloud's last one
}

// Error is the message.
func (e *Exhausted) Error() string { return e.Message }

// Unwrap gives the error behind it.
func (e *Exhausted) Unwrap() error { return e.Err }

// State of one address.
type State string

// The states that an address of the node can be in.
const (
	Used      State = "used"
	Warm      State = "warm"
	Cooling   State = "cooling"
	NotReady  State = "not-ready" // assigned by the cloud, its ENI's data path not programmed yet
	Withdrawn State = "withdrawn" // on its way back to the cloud
)

// AddressInfo is one address in a Snapshot.
type AddressInfo struct {
	Addr  netip.Addr
	State State
	introspect.Origin
	Prefix netip.Prefix    // the delegated prefix that it is of
	Key    *attachment.Key // when used
	Since  time.Time       // when it entered the state, if known
}

// Info is an address of a group of an allocator. Withdrawn wins over ready.
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

// Group is addresses that come and go together, such as an ENI or a block.
type Group struct {
	Name     string
	Uplink   int // the number of the uplink that carries them; 0: the node's own
	Capacity int // usable addresses at most
}

// Condition is a condition of the node that the source keeps. Reason is a word in
// CamelCase.
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
	LastError  string        // the last trouble with the supply, empty when healed
	Conditions []Condition
	Detail     Detail // nil: nothing more
}

// Detail is what a source has to tell beyond what all of them do.
type Detail interface {
	// Describe adds to the document at /ip-manager what is of this source alone.
	Describe(doc *introspect.Document)
	// Metrics are the gauges of this source alone.
	Metrics() []prometheus.Metric
}

// Reference is what a source adds to the page of berthd's metrics.
type Reference struct {
	Families   []metric.Family
	Conditions [][2]string // types, and when each is healthy
}

// Count counts addresses by state. Every state is there.
func Count(addresses []AddressInfo) map[State]int {
	count := map[State]int{Used: 0, Warm: 0, Cooling: 0, NotReady: 0, Withdrawn: 0}
	for _, a := range addresses {
		count[a.State]++
	}
	return count
}
