package addresspool

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

// reportEvery is how often a pool's counts are written at most.
const reportEvery = time.Second

// Reasons of a pool's conditions, besides those of requests.
const (
	reasonReady         = "Ready"
	reasonBlocksFree    = "BlocksFree"
	reasonUsedElsewhere = "UsedElsewhere"
	reasonNoneWithheld  = "NoneWithheld"
)

// report writes a pool's counts and conditions, if they changed and some time
// has passed since the last time; else it tells when to come back. why is why no
// more of its subnets are cut.
func (c *Controller) report(ctx context.Context, p *v1alpha1.AddressPool, why *refusal) (time.Duration, error) {
	before := p.DeepCopy()
	describe(p, c.book.counts(p.Name), why, explain(c.occupied.within(prefixesOf(p)...)), c.now())
	if reflect.DeepEqual(before.Status, p.Status) {
		return 0, nil
	}
	if wait := c.reported[p.Name].Add(reportEvery).Sub(c.now()); wait > 0 {
		return wait, nil
	}
	c.reported[p.Name] = c.now()
	err := c.client.Status().Patch(ctx, p, client.MergeFrom(before), client.FieldOwner(v1alpha1.OwnerOperator))
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("write the status of AddressPool %s: %w", p.Name, err)
	}
	c.tell(before, p)
	return 0, nil
}

// prefixesOf are the accepted subnets of a pool.
func prefixesOf(p *v1alpha1.AddressPool) (out []netip.Prefix) {
	for _, r := range ownedRanges(p, accepted(p)) {
		out = append(out, r.Prefix)
	}
	return out
}

// describe makes a pool's status what is known at now. withheld says which addresses
// others have.
func describe(p *v1alpha1.AddressPool, n counts, why *refusal, withheld string, now time.Time) {
	s := &p.Status
	s.Blocks, s.Addresses, s.NextIndex = n.blocks, n.addresses, n.next
	set := func(kind string, yes bool, reason, message string) {
		status := metav1.ConditionFalse
		if yes {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(now),
		})
	}
	switch {
	case p.DeletionTimestamp != nil:
		set(v1alpha1.ConditionReady, false, v1alpha1.ReasonPoolDeleted, fmt.Sprintf("%d blocks are still there; each goes with the last pod that has one of its addresses", n.blocks.Allocated))
	case why != nil: // of a pool that grew, what was accepted before is cut still
		set(v1alpha1.ConditionReady, n.blocks.Total > 0, why.reason, why.message)
	default:
		set(v1alpha1.ConditionReady, true, reasonReady, "")
	}
	if n.blocks.Total > 0 && n.blocks.Free == 0 {
		set(v1alpha1.ConditionExhausted, true, v1alpha1.ReasonPoolExhausted, fmt.Sprintf("all %d blocks are given; append a subnet, or wait until a node returns one", n.blocks.Total))
	} else {
		set(v1alpha1.ConditionExhausted, false, reasonBlocksFree, "")
	}
	if withheld != "" {
		set(v1alpha1.ConditionWithheld, true, reasonUsedElsewhere, withheld)
	} else {
		set(v1alpha1.ConditionWithheld, false, reasonNoneWithheld, "")
	}
}

// tell makes events of conditions whose reason is another than before.
func (c *Controller) tell(before, p *v1alpha1.AddressPool) {
	for kind, good := range map[string]string{v1alpha1.ConditionReady: reasonReady, v1alpha1.ConditionExhausted: reasonBlocksFree, v1alpha1.ConditionWithheld: reasonNoneWithheld} {
		was, is := meta.FindStatusCondition(before.Status.Conditions, kind), meta.FindStatusCondition(p.Status.Conditions, kind)
		switch {
		case was == nil && is.Reason == good, was != nil && was.Reason == is.Reason:
		case is.Reason == good:
			c.events.Eventf(p, nil, corev1.EventTypeNormal, is.Reason, "Report", "it was %s: %s", was.Reason, was.Message)
		case is.Reason == v1alpha1.ReasonPoolDeleted:
			c.events.Eventf(p, nil, corev1.EventTypeNormal, is.Reason, "Report", "%s", is.Message)
		default:
			c.events.Eventf(p, nil, corev1.EventTypeWarning, is.Reason, "Report", "%s", is.Message)
		}
	}
}
