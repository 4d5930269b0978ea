package pool

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/waiting"
)

// policy is what an administrator decides.
type policy struct {
	cooling      time.Duration // how long a released address is kept back
	watermark    int           // percent of a block that is to be free
	releaseDelay time.Duration // how long a block is empty before it goes back
	ignoreUntold bool          // pods whose annotations are not told have none
	nodeName     string        // the Node's
}

// ledger is all that the node knows of its pools. It is values in memory and
// does no I/O; its owner locks, and tells it the time.
type ledger struct {
	policy
	world
	blocks   map[string]*heldBlock
	requests map[string]*request // by name
	asked    map[string]bool     // names of requests that are being made, or were and are not seen yet
	salts    map[slot]string     // of the names of requests in place of those that others took
	leases   map[attachment.Key]hold
	byAddr   map[netip.Addr]attachment.Key // of both families
	unlisted map[netip.Addr]time.Time      // addresses of blocks that are not known here: cooling since

	nodeHas []netip.Addr // addresses that the node has itself

	undecided waiting.Queue // pods whose pool is not known yet
	// chosen are the pools of pods that had an address of one: after a start
	// without the API server they are all that is known.
	chosen map[podInterface]string

	node        nodeState
	synced      synced
	filed       bool // the file told which blocks there are
	unconfirmed bool // blocks came from the file, and the API server still has a moment to correct them
	usable      bool // an address was assignable once
	latencies   []latency
}

// podInterface is an interface of a pod, whichever its sandbox. The networks of a
// pod may have different pools.
type podInterface struct{ uid, network, ifName string }

func interfaceOf(key attachment.Key, pod attachment.Pod) podInterface {
	return podInterface{pod.UID, key.Network, key.IfName}
}

// nodeState is what is known of the Node.
type nodeState struct {
	listed bool      // so that it is known whether there is one
	uid    types.UID // empty: there is none
}

// missing tells whether there is no Node.
func (n nodeState) missing() bool { return n.listed && n.uid == "" }

// synced is what was listed at the API server.
type synced struct {
	blocks, requests, pools, namespaces bool             // there was a list
	trouble                             map[string]error // why something cannot be listed or watched
}

// mayChoose tells whether what the choice of a pool depends on was listed.
func (s synced) mayChoose() bool { return s.pools && s.namespaces }

// poolState is one pool as this node has it.
type poolState struct {
	name  string
	alloc *ipam.Allocator[attachment.Key] // of the first family of its blocks
	queue waiting.Queue

	known         bool     // there is such an AddressPool
	deleting      bool     // it is being deleted
	podNamespaces []string // whose pods may name it
	size          int      // addresses of a block; 0: not known

	refused error // why the last request could not be made
}

// hold is one attachment's lease and whose it is.
type hold struct {
	source.Lease
	pod         attachment.Pod
	allocatedIn string // the pool whose allocator has it; empty while its block is not known
	toldOwner   string // who else has its address, as the pod was told
}

func newLedger(p policy) *ledger {
	return &ledger{
		policy: p,
		world:  world{namespaces: map[string]string{}, pools: map[string]*poolState{}},
		blocks: map[string]*heldBlock{}, requests: map[string]*request{}, asked: map[string]bool{}, salts: map[slot]string{},
		leases: map[attachment.Key]hold{}, byAddr: map[netip.Addr]attachment.Key{}, unlisted: map[netip.Addr]time.Time{},
		chosen: map[podInterface]string{},
		synced: synced{trouble: map[string]error{}},
	}
}

// pool finds a pool, or begins one.
func (l *ledger) pool(name string) *poolState {
	s, ok := l.pools[name]
	if !ok {
		s = &poolState{name: name, alloc: ipam.New[attachment.Key](l.cooling)}
		l.pools[name] = s
	}
	return s
}

// poolFacts is what matters of an AddressPool.
type poolFacts struct {
	name          string
	bits          int
	deleting      bool
	podNamespaces []string
}

// setPool takes what an AddressPool says.
func (l *ledger) setPool(f poolFacts) {
	s := l.pool(f.name)
	s.known, s.deleting, s.podNamespaces, s.size = true, f.deleting, f.podNamespaces, 1<<min(max(f.bits, 0), maxBits)
}

// dropPool takes that an AddressPool is no more. Its blocks stay for as long as
// they last.
func (l *ledger) dropPool(name string) {
	if s, ok := l.pools[name]; ok {
		s.known, s.deleting, s.podNamespaces = false, false, nil
	}
}

// forget drops pools of which nothing is left here.
func (l *ledger) forget() {
	left := false
	for _, s := range l.pools {
		left = left || !s.known
	}
	if !left {
		return
	}
	used := map[string]bool{}
	for _, b := range l.blocks {
		used[b.pool] = true
	}
	for _, h := range l.leases {
		used[h.allocatedIn] = true
	}
	for _, r := range l.requests {
		used[r.pool] = true
	}
	for name, s := range l.pools {
		if _, cools := s.alloc.NextExpiry(); !s.known && !used[name] && s.queue.Len() == 0 && !cools {
			delete(l.pools, name)
		}
	}
}

// expire ends what has cooled by now.
func (l *ledger) expire(now time.Time) {
	for _, s := range l.pools {
		s.alloc.Expire(now)
	}
	for a, since := range l.unlisted {
		if !since.Add(l.cooling).After(now) {
			delete(l.unlisted, a)
		}
	}
}

// nextExpiry tells when the next address has cooled; zero without one.
func (l *ledger) nextExpiry() (at time.Time) {
	for _, s := range l.pools {
		if t, ok := s.alloc.NextExpiry(); ok {
			at = earlier(at, t)
		}
	}
	return at
}

// earlier is the earlier of two moments, of which zero is none.
func earlier(x, y time.Time) time.Time {
	if x.IsZero() || !y.IsZero() && y.Before(x) {
		return y
	}
	return x
}
