package nodeenis

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/failpoint"
)

// node is one object's fleet.Node, for one instance. It does the I/O; knowledge and decisions are in its
// state.
type node struct {
	c          *Controller
	name       string
	uid        types.UID // of the object
	instanceID string
	createdAt  time.Time // of the object

	// writing serializes this node's requests to the API server; it is acquired before mu.
	writing sync.Mutex

	mu    sync.Mutex // guards state; never held across I/O
	state state
}

var _ fleet.Node = (*node)(nil)

// newNode continues where the previous writer of the object stopped. If other is set, the object had
// another instance until now, so its content does not apply.
func (c *Controller) newNode(o *v1alpha1.NodeNetwork, other bool) *node {
	s := newState(o, other, c.now())
	s.settings = c.o.Settings
	return &node{c: c, name: o.Name, uid: o.UID, instanceID: o.Spec.InstanceID, createdAt: o.CreationTimestamp.Time, state: s}
}

// Publish implements fleet.Node. If an inventory could not be written, or was overwritten by somebody
// else, the controller writes it again.
func (n *node) Publish(ctx context.Context, inv eni.Inventory) error {
	n.mu.Lock()
	n.state.setInventory(&inv)
	n.mu.Unlock()
	if err := failpoint.Hit("operator.publish.before"); err != nil {
		return err
	}
	if err := n.write(ctx, urgent, n.c.now()); err != nil {
		return fmt.Errorf("write NodeNetwork %s: %w", n.name, err)
	}
	n.mu.Lock()
	err := n.state.checkMarked(&inv)
	n.mu.Unlock()
	if err != nil {
		return fmt.Errorf("write NodeNetwork %s: %w", n.name, err)
	}
	return failpoint.Hit("operator.publish.after")
}

// Reconciled implements fleet.Node.
func (n *node) Reconciled(status eni.Status) {
	now := n.c.now()
	n.mu.Lock()
	s := &n.state
	s.fleet.status = status
	s.fleet.inherited = s.fleet.inherited && !status.Confirmed
	first := s.liveness.setVanished(status.Vanished, now)
	canceled := len(s.handshake.candidates) > 0 && s.cancelUnneeded(n.usage(), now)
	s.fleet.passBegan = now
	_, q := s.desired(everything, now)
	n.mu.Unlock()
	n.trackDemand()
	if first || canceled || q != nothing {
		n.c.queue.Add(n.name)
		return
	}
	n.schedule(now)
}
