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
	"github.com/berthnet/berth/internal/operator/objects"
)

// nextTry separates a condition's message from the time of the next attempt.
const nextTry = "; next try at "

// Reasons of conditions. Other classes of cloud errors are named after the class.
const (
	reasonInvalidRequest = "InvalidRequest"           // EC2 rejects a request as malformed
	reasonNotFound       = "NotFound"                 // EC2 does not know a resource that the spec names
	reasonInvalidSpec    = "InvalidSpec"              // the message names the field
	reasonLinkMissing    = v1alpha1.ReasonLinkMissing // the node lacks the link of an ENI
	reasonTypeMismatch   = "InstanceTypeMismatch"     // the spec and EC2 disagree on the instance type
	reasonPaced          = "MadeAgainTooOften"        // the object was recreated too often
	reasonNotWritten     = "NotWritten"               // the API server rejects the operator's fields
	reasonInstanceGone   = "InstanceGone"             // EC2 knows no such instance
	reasonNotObserved    = "NotObserved"              // EC2 has not been listed yet
	reasonAsExpected     = "AsExpected"
	reasonAllocating     = "Allocating"
	reasonTargetMet      = "TargetMet"
	reasonRoom           = "RoomToGrow"
	reasonAtLimit        = "AtLimit"
	reasonAddresses      = "AddressesAvailable"
	reasonExhausted      = "NoAddresses"
	reasonDrifted        = "Drifted"
	reasonInstalled      = "AsInstalled"
)

const instanceGone = "EC2 has no such instance, or it is terminated: is spec.instanceID right?"

// outlook is everything that conditions depend on.
type outlook struct {
	refused  refusal
	asking   bool      // refused, until EC2's first reply about the instance
	specErr  error     // the spec is invalid
	held     time.Time // until when the fleet does not manage the node; zero if it does
	writeErr error     // the API server rejected a write
	itype    string    // instance type according to the spec
	status   eni.Status
	free     int
	missing  []string // ENIs whose links the node lacks
}

// conditions returns the node's conditions as of now. If the status of one has not changed, it keeps its time.
func (s *state) conditions(now time.Time) []metav1.Condition {
	look := outlook{refused: s.eligibility.refused, asking: s.eligibility.asking(), specErr: s.config.err, held: s.eligibility.heldUntil, itype: s.obj.Spec.InstanceType, status: s.fleet.status, missing: s.obj.Status.IPAM.MissingLinks}
	if refused(s.writes.retry.err) {
		look.writeErr = s.writes.retry.err
	}
	if s.fleet.inv != nil {
		look.free = s.counter().free()
	}
	list := look.conditions()
	s.fleet.inherited = s.fleet.inherited && look.unknown()
	kept := 0 // conditions of EC2 that the previous leader's state still describes
	if s.fleet.inherited {
		kept = len(list)
	}
	if s.settings != nil {
		if known, message := s.settings(); known {
			list = append(list, asInstalled(message))
		}
	}
	for i := range list {
		list[i].LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		h := meta.FindStatusCondition(s.obj.Status.Conditions, list[i].Type)
		switch {
		case h != nil && i < kept:
			list[i] = *h
		case h != nil && h.Status == list[i].Status:
			list[i].LastTransitionTime = h.LastTransitionTime
		}
	}
	return list
}

// unknown reports whether nothing is known about a node yet. An operator that takes over keeps the conditions that an earlier
// one reported: a listing of a large cluster takes minutes, and the pods are not affected.
func (l outlook) unknown() bool {
	s := &l.status
	return !s.Confirmed && s.LastError == "" && !s.Vanished && (l.refused == (refusal{}) || l.asking) && l.specErr == nil && l.held.IsZero() && l.writeErr == nil
}

// refused reports whether the API server rejected a write, so that retrying is pointless until
// something changes.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// conditions returns Ready, InDeficit, AtCapacity and Degraded.
func (l outlook) conditions() []metav1.Condition {
	return []metav1.Condition{l.ready(), l.inDeficit(), l.atCapacity(), l.degraded()}
}

// asInstalled returns the condition SettingsAsInstalled; message describes how the settings differ.
func asInstalled(message string) metav1.Condition {
	if message != "" {
		return condition(v1alpha1.ConditionSettings, false, reasonDrifted, "berth-operator: "+message)
	}
	return condition(v1alpha1.ConditionSettings, true, reasonInstalled, "")
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
		return is(reasonPaced, withTime("the object was deleted and recreated several times within minutes", l.held))
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
		return is(reasonTypeMismatch, fmt.Sprintf("spec.instanceType is %s, but EC2 reports %s, whose limits apply: correct the spec",
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
		reason = reasonAtLimit // no pod is waiting and no request is in flight
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

// ready is True when the node has free addresses and nothing keeps it from growing. A throttled request counts only if no address
// is free: the nodes that lack most go first, so those with free addresses may wait for long.
func (l outlook) ready() metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionReady, false, reason, message)
	}
	d, s := l.degraded(), &l.status
	delayed := s.Class == cloud.Throttled && l.free > 0
	stopped := d.Status == metav1.ConditionTrue && (l.refused != (refusal{}) || s.Grows && !delayed || l.specErr != nil || l.writeErr != nil || s.Vanished || !s.Confirmed)
	switch {
	case stopped:
		return not(d.Reason, untimed(d.Message))
	case !s.Confirmed:
		return not(reasonNotObserved, "the instance's ENIs have not been listed yet")
	case l.free > 0 || s.Needed <= 0 && !s.AtCapacity:
		return condition(v1alpha1.ConditionReady, true, reasonAddresses, "")
	case s.AtCapacity:
		return not(reasonExhausted, l.atCapacity().Message)
	default:
		return not(reasonAllocating, "the first addresses are being requested")
	}
}

// withTime appends the time of the next attempt, rounded to seconds.
func withTime(message string, at time.Time) string {
	if at.IsZero() {
		return message
	}
	return message + nextTry + at.UTC().Truncate(time.Second).Format(time.RFC3339)
}

// reasonOf returns the reason for a class of cloud error.
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

// camel converts a reason such as "subnet-full" to camel case.
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

// noteLimit is the maximum length of an Event's note in bytes (API reference, events.k8s.io/v1).
const noteLimit = 1024

// problemOf returns the problem of a node to report to users, based on its conditions: why it is
// degraded, or else why it cannot get the addresses it lacks. Addresses that are cooling down become
// available in a moment, and a full node whose pods all have addresses has no problem.
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

// reportedProblem is the problem of a node that the last Event reported.
type reportedProblem struct {
	reason string // "" if none was reported
	note   string
}

// recordProblem records an Event on the Node if its problem differs from the one last reported, or is
// solved.
func (n *node) recordProblem(ctx context.Context) {
	n.mu.Lock()
	was := n.state.problem
	is, note, bad := problemOf(n.state.obj)
	if is == reasonNoNode { // no Node to record an Event on
		is = was.reason
	}
	if is != was.reason {
		n.state.problem = reportedProblem{is, note}
	}
	n.mu.Unlock()
	if is == was.reason {
		return
	}
	kind, reason := corev1.EventTypeWarning, "Network"+is
	if !bad {
		kind, reason, note = corev1.EventTypeNormal, "NetworkHealed", "The node's addresses are managed again. The problem was: "+was.note
	}
	n.c.record(ctx, n.name, kind, reason, note)
}

// The Event recorded after another writer changed spec.ipam.
const (
	eventOverwritten = "NetworkOverwritten"
	overwritten      = "spec.ipam of the NodeNetwork, which belongs to the operator, was written by somebody else: the operator restores it from EC2's listing"
)

// record records an Event on a Node. Events with the same reason within minutes are combined into one
// with a count (client-go, tools/events).
func (c *Controller) record(ctx context.Context, name, kind, reason, note string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
	if n, err := objects.Get[corev1.Node](ctx, c.client, client.ObjectKey{Name: name}, objects.Shared); err == nil && n != nil {
		ref.UID = n.UID
	}
	if len(note) > noteLimit {
		note = strings.ToValidUTF8(note[:noteLimit], "")
	}
	c.events.Eventf(ref, nil, kind, reason, "ManageAddresses", "%s", note)
}
