package nodeenis

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/failpoint"
)

// node is one object's side of the fleet: a fleet.Node of one instance.
type node struct {
	c          *Controller
	name       string
	uid        types.UID // of the object
	instanceID string
	madeAt     time.Time // when the object was

	// writing serialises this node's requests to the API server; it is taken
	// before mu.
	writing sync.Mutex

	mu          sync.Mutex            // guards all below; never held across I/O
	obj         *v1alpha1.NodeNetwork // the newest state seen, shared with the cache: read only
	fleet       fleetState
	handshake   handshake
	ownership   ownership
	eligibility eligibility
	config      configuration
	liveness    liveness
	demand      demand
	writes      writes
	problem     reportedProblem
}

var _ fleet.Node = (*node)(nil)

// newNode continues where whoever wrote the object left off. With other, the
// object was of another instance until now, and says nothing of this one.
func (c *Controller) newNode(o *v1alpha1.NodeNetwork, other bool) *node {
	n := &node{
		c: c, name: o.Name, uid: o.UID, instanceID: o.Spec.InstanceID, madeAt: o.CreationTimestamp.Time, obj: o,
		fleet:     fleetState{primaries: map[netip.Prefix]bool{}, passBegan: c.now()},
		handshake: newHandshake(), ownership: ownership{observeFirst: true, suppressed: map[netip.Prefix]time.Time{}},
		config:   configuration{seed: eni.Inventory{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType}},
		liveness: liveness{reportedAt: o.CreationTimestamp.Time},
	}
	n.problem.reason, n.problem.note, _ = problemOf(o) // by whoever wrote it
	if other {
		return n
	}
	n.config.seed = seed(o, c.now())
	if len(o.Spec.IPAM.Available) > 0 {
		n.liveness.readiness = ready // it was, some time: what happened since, nobody may have seen
	}
	n.handshake.resume(o, n.config.seed.Releasing, n.fleet.passBegan)
	return n
}

// Publish implements fleet.Node: what it was given last is written again until
// it could be, and once somebody changed it.
func (n *node) Publish(ctx context.Context, inv eni.Inventory) error {
	n.setInventory(inv)
	if err := failpoint.Hit("operator.publish.before"); err != nil {
		return err
	}
	if err := n.write(ctx, urgent, n.c.now()); err != nil {
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
	first := n.liveness.setVanished(s.Vanished, now)
	canceled := n.cancelUnneeded(n.fleet.passBegan, s)
	n.fleet.passBegan = now
	q := n.next(n.desired(), everything)
	n.mu.Unlock()
	n.trackDemand()
	if first || canceled || q != nothing {
		n.c.queue.Add(n.name)
		return
	}
	n.schedule(now)
}
