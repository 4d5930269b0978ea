package nodeenis

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// nextTry parts a condition's message from the time of the next try.
const nextTry = "; next try at "

// Reasons of conditions. The other classes of cloud errors go by their names.
const (
	reasonInvalidRequest = "InvalidRequest"           // the cloud calls a request wrong
	reasonNotFound       = "NotFound"                 // the cloud does not know what the spec names
	reasonInvalidSpec    = "InvalidSpec"              // see the message for the field
	reasonLinkMissing    = v1alpha1.ReasonLinkMissing // the node lacks the link of an ENI
	reasonTypeMismatch   = "InstanceTypeMismatch"     // the spec has another type than EC2
	reasonPaced          = "MadeAgainTooOften"        // the object, under the same name
	reasonNotWritten     = "NotWritten"               // the API server refuses the operator's part
	reasonInstanceGone   = "InstanceGone"             // the cloud knows no such instance
	reasonNotObserved    = "NotObserved"              // the cloud was not looked at yet
	reasonAsExpected     = "AsExpected"
	reasonAllocating     = "Allocating"
	reasonTargetMet      = "TargetMet"
	reasonRoom           = "RoomToGrow"
	reasonAtLimit        = "AtLimit"
	reasonAddresses      = "AddressesAvailable"
	reasonExhausted      = "NoAddresses"
)

const instanceGone = "EC2 has no such instance, or it is terminated: is spec.instanceID right?"

// outlook is what conditions are made of.
type outlook struct {
	refused  refusal
	specErr  error     // the spec makes no sense
	held     time.Time // until when the object is not worked for; zero: it is
	writeErr error     // the API server refused a write
	itype    string    // as the spec has it
	status   eni.Status
	free     int
	missing  []string // ENIs whose links the node lacks
}

// conditions are the node's, with the times of what has not changed. n.mu is held.
func (n *node) conditions() []metav1.Condition {
	look := outlook{refused: n.eligibility.refused, specErr: n.config.err, held: n.eligibility.heldUntil, itype: n.obj.Spec.InstanceType, status: n.fleet.status, missing: n.obj.Status.IPAM.MissingLinks}
	if refused(n.writes.retry.err) {
		look.writeErr = n.writes.retry.err
	}
	if n.fleet.inv != nil {
		look.free = n.freeNow()
	}
	list := look.conditions()
	for i := range list {
		list[i].LastTransitionTime = metav1.NewTime(n.c.now().Truncate(time.Second))
		if h := meta.FindStatusCondition(n.obj.Status.Conditions, list[i].Type); h != nil && h.Status == list[i].Status {
			list[i].LastTransitionTime = h.LastTransitionTime
		}
	}
	return list
}

// refused tells whether the API server would not have a write at all.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// conditions are Ready, InDeficit, AtCapacity and Degraded.
func (l outlook) conditions() []metav1.Condition {
	return []metav1.Condition{l.ready(), l.inDeficit(), l.atCapacity(), l.degraded()}
}

func condition(kind string, is bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if is {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func (l outlook) degraded() metav1.Condition {
	is := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionDegraded, true, reason, message)
	}
	s := &l.status
	switch {
	case l.refused != (refusal{}):
		return is(l.refused.reason, l.refused.message)
	case l.specErr != nil:
		return is(reasonInvalidSpec, l.specErr.Error())
	case !l.held.IsZero():
		return is(reasonPaced, withTime("the object was deleted and made again several times within minutes", l.held))
	case l.writeErr != nil:
		return is(reasonNotWritten, l.writeErr.Error())
	case s.Vanished:
		return is(reasonInstanceGone, withTime(instanceGone, s.NextTry))
	case s.LastError != "":
		return is(reasonOf(s.Class), withTime(s.LastError, s.NextTry))
	case len(l.missing) > 0:
		return is(reasonLinkMissing, fmt.Sprintf("the node has no link of %s: was the ENI detached, or its link moved to another network namespace or driver? "+
			"None of its addresses is handed out until the link is back", strings.Join(l.missing, ", ")))
	case s.InstanceType != "" && s.InstanceType != l.itype:
		return is(reasonTypeMismatch, fmt.Sprintf("spec.instanceType is %s, and EC2 says that the instance is %s: the limits of that count; correct the spec",
			l.itype, s.InstanceType))
	default:
		return condition(v1alpha1.ConditionDegraded, false, reasonAsExpected, "")
	}
}

func (l outlook) inDeficit() metav1.Condition {
	if l.status.Needed <= 0 {
		return condition(v1alpha1.ConditionInDeficit, false, reasonTargetMet, "")
	}
	reason := reasonAllocating
	switch {
	case l.status.Shortage != "":
		reason = camel(l.status.Shortage)
	case l.status.AtCapacity:
		reason = reasonAtLimit // nobody waits, and nothing is on the way
	}
	message := fmt.Sprintf("%d addresses, of which %d are used, and %d more are wanted", l.status.Available, l.status.Used, l.status.Needed)
	if l.status.Explanation != "" {
		message += ": " + l.status.Explanation
	}
	return condition(v1alpha1.ConditionInDeficit, true, reason, message)
}

func (l outlook) atCapacity() metav1.Condition {
	if !l.status.AtCapacity {
		return condition(v1alpha1.ConditionAtCapacity, false, reasonRoom, "")
	}
	reason, message := reasonAtLimit, "the instance type, maxENIs, maxPods, maxAllocate or the subnets allow no more addresses"
	if l.status.Shortage != "" {
		reason, message = camel(l.status.Shortage), l.status.Explanation
	}
	return condition(v1alpha1.ConditionAtCapacity, true, reason, message)
}

// ready is True when the node has addresses to give and nothing keeps it from growing.
func (l outlook) ready() metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionReady, false, reason, message)
	}
	d, s := l.degraded(), &l.status
	stopped := d.Status == metav1.ConditionTrue && (l.refused != (refusal{}) || s.Grows || l.specErr != nil || l.writeErr != nil || s.Vanished || !s.Confirmed)
	switch {
	case stopped:
		return not(d.Reason, untimed(d.Message))
	case !s.Confirmed:
		return not(reasonNotObserved, "the instance's ENIs have not been looked at yet")
	case l.free > 0 || s.Needed <= 0 && !s.AtCapacity:
		return condition(v1alpha1.ConditionReady, true, reasonAddresses, "")
	case s.AtCapacity:
		return not(reasonExhausted, l.atCapacity().Message)
	default:
		return not(reasonAllocating, "the first addresses are being asked for")
	}
}

// withTime adds when the operator tries again, to the second.
func withTime(message string, at time.Time) string {
	if at.IsZero() {
		return message
	}
	return message + nextTry + at.UTC().Truncate(time.Second).Format(time.RFC3339)
}

// reasonOf is a class of cloud error in the words of who has to mend it.
func reasonOf(c cloud.Class) string {
	switch c {
	case cloud.Bug:
		return reasonInvalidRequest
	case cloud.Gone:
		return reasonNotFound
	default:
		return camel(c.String())
	}
}

// camel makes a reason of "subnet-full".
func camel(text string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(text, "-") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return strings.Map(func(r rune) rune {
		if r == '(' || r == ')' {
			return '_'
		}
		return r
	}, b.String())
}

// noteLimit is the most that an event's note may have (API reference, events.k8s.io/v1).
const noteLimit = 1024

// problemOf is what a person should know of a node, by its conditions: why it is
// degraded, or else why it cannot have the addresses that it lacks. What cools
// is there in a moment, and a full node whose pods all have addresses is well.
func problemOf(o *v1alpha1.NodeNetwork) (reason, message string, is bool) {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDegraded); c != nil && c.Status == metav1.ConditionTrue {
		return c.Reason, untimed(c.Message), true
	}
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionInDeficit)
	if c == nil || c.Status != metav1.ConditionTrue {
		return "", "", false
	}
	healthy := c.Reason == reasonAllocating || c.Reason == reasonAtLimit || c.Reason == camel(plan.ReasonCooling)
	if healthy {
		return "", "", false
	}
	return c.Reason, c.Message, true
}

// reportedProblem is the problem of a node that the last event was about.
type reportedProblem struct {
	reason string // empty: of none
	note   string
}

// recordProblem makes an event on the Node if its object has another problem
// than the last event was about, or none any more.
func (n *node) recordProblem(ctx context.Context) {
	n.mu.Lock()
	was := n.problem
	is, note, bad := problemOf(n.obj)
	if is == reasonNoNode { // there is nothing to tell it of
		is = was.reason
	}
	if is != was.reason {
		n.problem = reportedProblem{is, note}
	}
	n.mu.Unlock()
	if is == was.reason {
		return
	}
	kind, reason := corev1.EventTypeWarning, "Network"+is
	if !bad {
		kind, reason, note = corev1.EventTypeNormal, "NetworkHealed", "The node's addresses are managed again. It was: "+was.note
	}
	n.c.record(ctx, n.name, kind, reason, note)
}

// What is told when somebody else wrote spec.ipam.
const (
	eventOverwritten = "NetworkOverwritten"
	overwritten      = "somebody else wrote spec.ipam of the NodeNetwork, which is the operator's: it is put right by what EC2 lists"
)

// record makes an event on a Node. Those of one reason that follow each other
// within minutes are one event, which is counted (client-go, tools/events).
func (c *Controller) record(ctx context.Context, name, kind, reason, note string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
	node := &corev1.Node{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: name}, node); err == nil {
		ref.UID = node.UID
	}
	if len(note) > noteLimit {
		note = strings.ToValidUTF8(note[:noteLimit], "")
	}
	c.events.Eventf(ref, nil, kind, reason, "ManageAddresses", "%s", note)
}
