package nodeenis

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// An object names its instance, and whoever has a node's token may create an object that names any
// instance. The fleet therefore works for an object only if the instance is proved to be its Node's by
// something that the token cannot write: the Node's spec.providerID, or EC2's data about the instance.
// Without proof nothing is changed, neither at EC2 nor in the published addresses.

// Identity configures how instances are proved.
type Identity struct {
	// NodeTag is the key of an EC2 instance tag whose value is the name of the Node; "" if there
	// is none.
	NodeTag string
	// ClusterTag is the key of an EC2 tag that all instances of the cluster have, and ClusterValue
	// its value. An empty value means any; an empty key means that there is no such tag.
	ClusterTag, ClusterValue string
}

// Reasons why the fleet does not work for an object.
const (
	reasonNoNode          = "NoNode"          // no Node has this name
	reasonAnotherInstance = "AnotherInstance" // the Node belongs to another instance
	reasonAnotherCluster  = "AnotherCluster"  // the instance lacks the cluster's tag
	reasonNotProved       = "NotProved"       // nothing proves that the instance is the Node's
	reasonAlreadyClaimed  = "AlreadyClaimed"  // an older object has the same instance
)

const (
	// proofRetry is the delay before EC2 is queried again after a reply without proof.
	proofRetry = time.Minute
	// absentRetry is the same after the first reply without the instance, which may come from a part
	// of EC2 that trails the others (see eni.Config.Lag).
	absentRetry = 5 * time.Second
	// proofTimeout limits an EC2 call, including its wait for the rate limit.
	proofTimeout = 2 * time.Minute
)

// eligibility says whether the fleet may work for an object.
type eligibility struct {
	refused   refusal // zero if it may
	proof     proof
	askAt     time.Time // when EC2 is queried again; zero if never
	heldUntil time.Time // when work may begin, if delayed after a recreation
}

// asking reports whether EC2 has not replied yet whose instance the object has.
func (e *eligibility) asking() bool {
	return e.refused.reason == reasonNotProved && e.proof.at.IsZero()
}

// refusal is why the fleet does not work for an object; zero if it does.
type refusal struct{ reason, message string }

// proof is EC2's reply about an object's instance.
type proof struct {
	asking   bool
	at       time.Time // time of the reply; zero if there is none
	instance cloud.Instance
	err      error
	absent   bool // err is the first reply without the instance and proves nothing
}

// retryAt returns when EC2 may be queried again.
func (p *proof) retryAt() time.Time {
	if p.absent {
		return p.at.Add(absentRetry)
	}
	return p.at.Add(proofRetry)
}

// evaluate compares an object with its Node, nil if missing, and with EC2's instance, nil if unknown. It
// returns why the fleet may not work for the object, and whether to query EC2.
func (i Identity) evaluate(name, instanceID string, k *corev1.Node, in *cloud.Instance) (why refusal, ask bool) {
	if k == nil {
		return refusal{reasonNoNode, "there is no Node " + name + ": nothing is changed at EC2 until one of this instance exists"}, false
	}
	of := nodenetwork.InstanceOf(k.Spec.ProviderID)
	switch {
	case of != "" && of != instanceID:
		return refusal{reasonAnotherInstance, fmt.Sprintf("spec.instanceID is %s and the Node is of %s (spec.providerID): expected the Node's own instance", instanceID, of)}, false
	case of != "" && i.ClusterTag == "":
		return refusal{}, false
	case in == nil:
		return refusal{reasonNotProved, "EC2 is being asked whether " + instanceID + " is the Node's"}, true
	}
	if v, ok := in.Tags[i.ClusterTag]; i.ClusterTag != "" && (!ok || i.ClusterValue != "" && v != i.ClusterValue) {
		return refusal{reasonAnotherCluster, fmt.Sprintf("%s has no tag %s, which instances of this cluster have (--instance-cluster-tag)", instanceID, i.clusterTag())}, true
	}
	if of != "" || strings.EqualFold(in.DNSName, name) || i.NodeTag != "" && in.Tags[i.NodeTag] == name {
		return refusal{}, true
	}
	return refusal{reasonNotProved, i.unproved(name, instanceID, in)}, true
}

// unproved explains which proof is missing and what to do.
func (i Identity) unproved(name, instanceID string, in *cloud.Instance) string {
	message := fmt.Sprintf("nothing proves that %s is this Node's instance: the Node has no spec.providerID, and the instance's private DNS name is %s", instanceID, cmp.Or(in.DNSName, "empty"))
	if first, _, more := strings.Cut(in.DNSName, "."); more && strings.EqualFold(first, name) {
		message += fmt.Sprintf(" (%s is only the first part of it, which instances of other VPCs may have too)", name)
	}
	tag := fmt.Sprintf("the key that you set by --instance-node-tag of berth-operator, and the value %s", name)
	if i.NodeTag != "" {
		message += fmt.Sprintf(", its tag %s %s", i.NodeTag, cmp.Or(in.Tags[i.NodeTag], "empty"))
		tag = fmt.Sprintf("%s=%s (--instance-node-tag of berth-operator)", i.NodeTag, name)
	}
	return fmt.Sprintf("%s: run a cloud controller manager, give the kubelet --provider-id, or tag %s with %s", message, instanceID, tag)
}

func (i Identity) clusterTag() string {
	if i.ClusterValue == "" {
		return i.ClusterTag
	}
	return i.ClusterTag + "=" + i.ClusterValue
}

// identify determines whether the fleet may work for an object whose Node is k. It returns the node to
// continue with: a new one if the fleet worked for the object and no longer may.
func (c *Controller) identify(ctx context.Context, n *node, k *corev1.Node) *node {
	why := n.identity(ctx, k)
	if why == (refusal{}) {
		older, younger := c.claims.add(n)
		for _, name := range younger {
			c.fleet.Remove(name)
			c.queue.Add(name)
		}
		if older != "" {
			why = refusal{reasonAlreadyClaimed, fmt.Sprintf("NodeNetwork %s is of %s too, and older: delete the one that is wrong", older, n.instanceID)}
		}
	} else {
		c.unclaim(n)
	}
	n.mu.Lock()
	worked := n.state.config.set
	n.mu.Unlock()
	if why != (refusal{}) && worked {
		n = c.suspend(n)
		c.o.Logger.Warn("ENIs of a node are no longer managed", "node", n.name, "instance", n.instanceID, "reason", why.reason, "why", why.message)
	}
	n.mu.Lock()
	n.state.eligibility.refused = why
	n.mu.Unlock()
	return n
}

// identity calls evaluate with EC2's last reply. EC2 is queried in the background, so that nodes that do
// not depend on a reply need not wait.
func (n *node) identity(ctx context.Context, k *corev1.Node) refusal {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := &n.state.eligibility
	p := &e.proof
	var in *cloud.Instance
	if !p.at.IsZero() && p.err == nil {
		in = &p.instance
	}
	why, ask := n.c.o.Identity.evaluate(n.name, n.instanceID, k, in)
	e.askAt = time.Time{}
	if !ask || why == (refusal{}) {
		return why
	}
	e.askAt = p.retryAt()
	if !p.asking && !n.c.now().Before(p.retryAt()) {
		p.asking = true
		go n.ask(ctx)
	}
	switch {
	case p.absent:
		why = refusal{reasonNotProved, "EC2 did not know " + n.instanceID + ": it is asked once more"}
	case cloud.ClassOf(p.err) == cloud.Gone:
		why = refusal{reasonInstanceGone, instanceGone}
	case p.err != nil:
		why = refusal{reasonOf(cloud.ClassOf(p.err)), fmt.Sprintf("ask EC2 whether %s is the Node's: %v", n.instanceID, p.err)}
	}
	return why
}

// ask describes the instance at EC2.
func (n *node) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	in, err := n.c.fleet.Describe(ctx, n.instanceID)
	absent := cloud.ClassOf(err) == cloud.Gone
	if err == nil && (in.State == "terminated" || in.State == "shutting-down") {
		err = &cloud.Error{Class: cloud.Gone, Op: "DescribeInstances", Message: "instance " + n.instanceID + " is " + in.State}
	}
	now := n.c.now()
	n.mu.Lock()
	absent = absent && cloud.ClassOf(n.state.eligibility.proof.err) != cloud.Gone
	n.state.eligibility.proof = proof{at: now, instance: in, err: err, absent: absent}
	if gone := cloud.ClassOf(err) == cloud.Gone; err == nil || gone && !absent {
		n.state.liveness.setVanished(gone, now)
	}
	n.mu.Unlock()
	n.c.queue.Add(n.name)
}

// claims tracks the proved objects of each instance. The oldest one gets the instance.
type claims struct {
	mu  sync.Mutex                  // guards all
	all map[string]map[string]*node // by instance and name
}

func newClaims() *claims { return &claims{all: map[string]map[string]*node{}} }

// add records that an object's instance is proved. It returns the oldest other object with the same
// instance if that is older than n; otherwise younger are the objects that lose the instance to n.
func (c *claims) add(n *node) (older string, younger []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.all[n.instanceID]
	if of == nil {
		of = map[string]*node{}
		c.all[n.instanceID] = of
	}
	_, known := of[n.name]
	of[n.name] = n
	for name, other := range of {
		switch {
		case name == n.name:
		case olderThan(other, n):
			if older == "" || olderThan(other, of[older]) {
				older = name
			}
		case !known:
			younger = append(younger, name)
		}
	}
	if older != "" {
		younger = nil
	}
	return older, younger
}

// olderThan reports whether x is older than y; both have the same instance.
func olderThan(x, y *node) bool {
	return cmp.Or(x.createdAt.Compare(y.createdAt), cmp.Compare(x.name, y.name)) < 0
}

// remove drops an object's claim, if any, and returns the other objects of the instance.
func (c *claims) remove(n *node) (others []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.all[n.instanceID]
	if _, ok := of[n.name]; !ok {
		return nil
	}
	delete(of, n.name)
	if len(of) == 0 {
		delete(c.all, n.instanceID)
	}
	return slices.Collect(maps.Keys(of))
}

// unclaim drops an object's claim and queues the other objects of the instance.
func (c *Controller) unclaim(n *node) { c.queue.Add(c.claims.remove(n)...) }

// suspend stops the fleet's work for an object that still exists. Attached ENIs and published addresses
// stay, and the work continues from there if it is resumed.
func (c *Controller) suspend(n *node) *node {
	c.fleet.Remove(n.name)
	n.mu.Lock()
	next := c.newNode(n.state.obj, false)
	next.state.eligibility, next.state.problem, next.state.liveness = n.state.eligibility, n.state.problem, n.state.liveness
	next.state.eligibility.proof.asking = false // the reply goes to n
	n.mu.Unlock()
	c.mu.Lock()
	c.nodes[n.name] = next
	c.mu.Unlock()
	return next
}
