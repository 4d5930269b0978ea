package nodenetwork

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/eni/fleet"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/published"
)

// node is one object's side of the fleet: a fleet.Node of one instance.
type node struct {
	c          *Controller
	name       string
	uid        types.UID // of the object
	instanceID string
	madeAt     time.Time     // when the object was
	seed       eni.Inventory // what was published before this process; until the fleet has it

	// writing serialises this node's requests to the API server; it is taken
	// before mu.
	writing sync.Mutex

	mu       sync.Mutex            // guards all below; never held across I/O
	obj      *v1alpha1.NodeNetwork // the newest state seen, shared with the cache: read only
	refused  refusal               // the fleet does not work for it
	proof    proof
	settings eni.Settings
	specErr  error // of the newest spec; settings are older then
	set      bool  // the fleet has it

	fleet     fleetState
	handshake handshake
	ownership ownership

	retry      backoff // of writes
	told       troubleTold
	statusAt   time.Time // when status was last written for news that can wait
	demandAt   time.Time // since when more pods wait than there are free addresses; zero: they do not
	demandHad  int       // how much was available then
	reportedAt time.Time // when the daemon's last report was seen
	vanishedAt time.Time // since when the cloud says that the instance is gone; zero: it does not
	pacedUntil time.Time // when the fleet gets it, if it does not at once (pace.go)
	nodeGoneAt time.Time // since when there is no Node; zero: there is
	health     health    // of the Node, when it was last looked at
}

var _ fleet.Node = (*node)(nil)

// newNode takes up an object where whoever wrote it left off. With other, it
// was of another instance until now, and says nothing of this one.
func (c *Controller) newNode(o *v1alpha1.NodeNetwork, other bool) *node {
	n := &node{
		c: c, name: o.Name, uid: o.UID, instanceID: o.Spec.InstanceID, madeAt: o.CreationTimestamp.Time, obj: o,
		reportedAt: o.CreationTimestamp.Time,
		fleet:      fleetState{primaries: map[netip.Prefix]bool{}, passBegan: c.now()},
		handshake:  newHandshake(), ownership: ownership{observeFirst: true, suppressed: map[netip.Prefix]time.Time{}},
		seed: eni.Inventory{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType},
	}
	n.told.reason, n.told.note, _ = trouble(o) // by whoever wrote it
	if other {
		return n
	}
	n.seed = seed(o, c.now())
	if len(o.Spec.IPAM.Available) > 0 {
		n.health = well // it was, some time: what happened since, nobody may have seen
	}
	n.handshake.resume(o, n.seed.Releasing, n.fleet.passBegan)
	return n
}

// Publish implements fleet.Node: what it was given last is written again until
// it could be, and once somebody changed it.
func (n *node) Publish(ctx context.Context, inv eni.Inventory) error {
	n.setInventory(inv)
	if err := failpoint.Hit("operator.publish.before"); err != nil {
		return err
	}
	if err := n.write(ctx, urgent); err != nil {
		return fmt.Errorf("write NodeNetwork %s: %w", n.name, err)
	}
	if err := n.checkMarked(&inv); err != nil {
		return fmt.Errorf("write NodeNetwork %s: %w", n.name, err)
	}
	return failpoint.Hit("operator.publish.after")
}

// setInventory makes inv what the object should say.
func (n *node) setInventory(inv eni.Inventory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ownership.observeFirst = false
	n.fleet.setInventory(&inv)
	n.handshake.setInventory(&inv)
}

// Reconciled implements fleet.Node.
func (n *node) Reconciled(s eni.Status) {
	now := n.c.now()
	n.mu.Lock()
	n.fleet.status = s
	switch {
	case !s.Vanished:
		n.vanishedAt = time.Time{}
	case n.vanishedAt.IsZero():
		n.vanishedAt = now
		n.c.later(n.name, n.c.o.Grace)
	}
	canceled := n.cancelUnneeded(n.fleet.passBegan, s)
	n.fleet.passBegan = now
	q, wait := n.next(n.wanted(), settled)
	n.mu.Unlock()
	n.demand()
	if canceled || q != nothing || wait > 0 {
		n.c.later(n.name, wait)
	}
}

// demand remembers since when more pods wait than there are free addresses, and
// tells how long it took once addresses came. Pods may also go without any.
func (n *node) demand() {
	now := n.c.now()
	n.mu.Lock()
	u, had := n.usage(), len(n.obj.Spec.IPAM.Available)
	var since time.Time
	switch {
	case u.Waiting > n.freeNow(u):
		if n.demandAt.IsZero() {
			n.demandAt, n.demandHad = now, had
		}
	case !n.demandAt.IsZero():
		if had > n.demandHad {
			since = n.demandAt
		}
		n.demandAt = time.Time{}
	}
	n.mu.Unlock()
	if !since.IsZero() && n.c.o.DemandServed != nil {
		n.c.o.DemandServed(now.Sub(since))
	}
}

// freeNow is how many published addresses no pod has and nobody takes back.
func (n *node) freeNow(u eni.Usage) int {
	sum := 0
	for text := range n.obj.Spec.IPAM.Available {
		if p, err := published.Parse(text); err == nil && !n.handshake.leaving(n.obj, p) {
			sum += weight(p)
		}
	}
	for _, e := range u.ENIs {
		sum -= e.Used
	}
	return sum
}
