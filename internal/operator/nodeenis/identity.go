package nodeenis

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// An object says which instance it is of, and whoever has a node's token may
// make an object that names any. So the fleet works for an object only if the
// instance is proved to be its Node's by what that token cannot write: the
// Node's spec.providerID, else what EC2 says of the instance. Until then, and
// when the proof is lost, nothing is changed: not at EC2, and not in what is
// published.

// Identity is what instances are held against.
type Identity struct {
	// NodeTag is the key of an EC2 tag of instances whose value is the name of
	// the Node; empty: there is none.
	NodeTag string
	// ClusterTag is the key of an EC2 tag that instances of the cluster have,
	// and ClusterValue its value; empty: any, or no such tag.
	ClusterTag, ClusterValue string
}

// Reasons why the fleet does not work for an object.
const (
	reasonNoNode          = "NoNode"          // there is no Node of this name
	reasonAnotherInstance = "AnotherInstance" // the Node is of another instance
	reasonAnotherCluster  = "AnotherCluster"  // the instance lacks the cluster's tag
	reasonNotProved       = "NotProved"       // nothing says that the instance is the Node's
	reasonAlreadyClaimed  = "AlreadyClaimed"  // an older object is of the same instance
)

const (
	// proofRetry is how long after EC2 refuted an object it is asked again.
	proofRetry = time.Minute
	// absentRetry is the same after the first answer without the instance, which
	// may be of a part of EC2 that trails the others (as eni.Config.Lag).
	absentRetry = 5 * time.Second
	// proofTimeout bounds a question to EC2, its wait for the rate limit included.
	proofTimeout = 2 * time.Minute
)

// eligibility is whether the fleet may work for an object.
type eligibility struct {
	refused   refusal // zero: it may
	proof     proof
	askAt     time.Time // when EC2 is asked for the proof again; zero: it needs not be
	heldUntil time.Time // when it may begin, if not at once (recreation.go)
}

// refusal is why the fleet does not work for an object; zero: it does.
type refusal struct{ reason, message string }

// proof is what EC2 said of an object's instance.
type proof struct {
	asking   bool
	at       time.Time // when the answer came; zero: there is none
	instance cloud.Instance
	err      error
	absent   bool // err is the first answer without the instance: nothing follows from it
}

// retryAt is when EC2 may be asked again.
func (p *proof) retryAt() time.Time {
	if p.absent {
		return p.at.Add(absentRetry)
	}
	return p.at.Add(proofRetry)
}

// evaluate holds an object against its Node (nil: there is none) and what EC2 said
// (nil: nothing yet), and tells whether EC2 is to be asked.
func (i Identity) evaluate(name, instanceID string, k *corev1.Node, in *cloud.Instance) (why refusal, ask bool) {
	if k == nil {
		return refusal{reasonNoNode, "there is no Node " + name + ": nothing is changed at EC2 until there is one of this instance"}, false
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

// unproved says what is missing where neither the Node nor EC2 says that an
// instance is the Node's, and what to do.
func (i Identity) unproved(name, instanceID string, in *cloud.Instance) string {
	message := fmt.Sprintf("nothing says that %s is this Node's: it has no spec.providerID, and the instance's private DNS name is %s", instanceID, cmp.Or(in.DNSName, "empty"))
	if first, _, more := strings.Cut(in.DNSName, "."); more && strings.EqualFold(first, name) {
		message += fmt.Sprintf(" (%s is only the first part of that, which instances of other VPCs may have too)", name)
	}
	tag := fmt.Sprintf("the key that --instance-node-tag of berth-operator has, which is not set, and the value %s", name)
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

// identify finds out whether the fleet may work for an object, of which k is the
// Node. It returns the node to go on with: another one, if the fleet worked for it
// and may not any more.
func (c *Controller) identify(ctx context.Context, n *node, k *corev1.Node) *node {
	why := n.identity(ctx, k)
	if why == (refusal{}) {
		if older := c.claim(n); older != "" {
			why = refusal{reasonAlreadyClaimed, fmt.Sprintf("NodeNetwork %s is of %s too, and older: delete the one that is wrong", older, n.instanceID)}
		}
	} else {
		c.unclaim(n)
	}
	n.mu.Lock()
	worked := n.config.set
	n.mu.Unlock()
	if why != (refusal{}) && worked {
		n = c.suspend(n)
		c.o.Logger.Warn("the fleet stops working for a node", "node", n.name, "instance", n.instanceID, "reason", why.reason, "why", why.message)
	}
	n.mu.Lock()
	n.eligibility.refused = why
	n.mu.Unlock()
	return n
}

// identity is evaluate with what EC2 said, which is asked in the background if it
// has to be: nodes that need no answer do not wait for those that do.
func (n *node) identity(ctx context.Context, k *corev1.Node) refusal {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := &n.eligibility.proof
	var in *cloud.Instance
	if !p.at.IsZero() && p.err == nil {
		in = &p.instance
	}
	why, ask := n.c.o.Identity.evaluate(n.name, n.instanceID, k, in)
	n.eligibility.askAt = time.Time{}
	if !ask || why == (refusal{}) {
		return why
	}
	n.eligibility.askAt = p.retryAt()
	if !p.asking && !n.c.now().Before(p.retryAt()) {
		p.asking = true
		go n.ask(ctx)
	}
	switch {
	case p.absent:
		why = refusal{reasonNotProved, "EC2 did not know " + n.instanceID + " when asked: it is asked once more"}
	case cloud.ClassOf(p.err) == cloud.Gone:
		why = refusal{reasonInstanceGone, instanceGone}
	case p.err != nil:
		why = refusal{reasonOf(cloud.ClassOf(p.err)), fmt.Sprintf("ask EC2 whether %s is the Node's: %v", n.instanceID, p.err)}
	}
	return why
}

// ask asks EC2 what it has to say of the instance.
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
	absent = absent && cloud.ClassOf(n.eligibility.proof.err) != cloud.Gone
	n.eligibility.proof = proof{at: now, instance: in, err: err, absent: absent}
	if gone := cloud.ClassOf(err) == cloud.Gone; err == nil || gone && !absent {
		n.liveness.setVanished(gone, now)
	}
	n.mu.Unlock()
	n.c.queue.Add(n.name)
}

// claim notes that a proved object is of its instance, and names the older one
// that is too; empty: there is none. A younger one that had the instance loses it.
func (c *Controller) claim(n *node) (older string) {
	c.mu.Lock()
	claims := c.claims[n.instanceID]
	if claims == nil {
		claims = map[string]*node{}
		c.claims[n.instanceID] = claims
	}
	_, known := claims[n.name]
	claims[n.name] = n
	var younger []string
	for name, other := range claims {
		switch {
		case name == n.name:
		case olderThan(other, n):
			if older == "" || olderThan(other, claims[older]) {
				older = name
			}
		case !known:
			younger = append(younger, name)
		}
	}
	c.mu.Unlock()
	if older == "" {
		for _, name := range younger {
			c.fleet.Remove(name)
			c.queue.Add(name)
		}
	}
	return older
}

// olderThan orders the objects of one instance.
func olderThan(x, y *node) bool {
	return cmp.Or(x.madeAt.Compare(y.madeAt), cmp.Compare(x.name, y.name)) < 0
}

// unclaim ends a claim; those that stood behind it are looked at again.
func (c *Controller) unclaim(n *node) {
	c.mu.Lock()
	claims := c.claims[n.instanceID]
	_, ok := claims[n.name]
	delete(claims, n.name)
	var next []string
	if ok {
		next = slices.Collect(maps.Keys(claims))
	}
	if len(claims) == 0 {
		delete(c.claims, n.instanceID)
	}
	c.mu.Unlock()
	for _, other := range next {
		c.queue.Add(other)
	}
}

// suspend ends the fleet's work for an object that stays. What is attached and
// published stays too, and is where the work goes on if it does.
func (c *Controller) suspend(n *node) *node {
	c.fleet.Remove(n.name)
	n.mu.Lock()
	next := c.newNode(n.obj, false)
	next.eligibility, next.problem, next.liveness = n.eligibility, n.problem, n.liveness
	next.eligibility.proof.asking = false // the answer would go to n
	n.mu.Unlock()
	c.mu.Lock()
	c.nodes[n.name] = next
	c.mu.Unlock()
	return next
}
