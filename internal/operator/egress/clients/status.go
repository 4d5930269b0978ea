package clients

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
)

const conditionReady = "Ready"

// The reasons of an EgressClient's condition Ready besides those of refusals.
const (
	reasonSetUp     = "SetUp"
	reasonWaiting   = "WaitingForNode"
	reasonFailed    = "SetUpFailed"
	reasonConflict  = "AddressConflict"
	reasonNoGateway = "NoGateway"
)

// waits is why a pod that uses Egresses cannot use all of them yet; empty: it can.
func (s scene) waits() (reason, message string) {
	node := s.pod.Spec.NodeName
	if s.o == nil || s.o.Status.Node == nil {
		return reasonWaiting, "berthd of node " + node + " has not set up the pod's tunnels yet"
	}
	says := s.o.Status.Node
	switch {
	case says.State == v1alpha1.EgressClientGone:
		return reasonWaiting, "berthd of node " + node + " says that the pod's sandbox is gone, and of no other yet"
	case says.State == v1alpha1.EgressClientFailed:
		return reasonFailed, fmt.Sprintf("berthd of node %s: %s", node, cmp.Or(says.Message, says.Reason, "it could not set up the pod's tunnels"))
	case s.conflict != "":
		return reasonConflict, s.conflict
	case s.elsewhere != "":
		return reasonConflict, s.elsewhere
	case len(said(s.o)) == 0:
		return reasonWaiting, "berthd of node " + node + " has not said the pod's addresses yet"
	case len(s.addresses) == 0:
		return reasonWaiting, fmt.Sprintf("the kubelet of node %s has not said the pod's addresses (status.podIPs) within %s: gateways serve the pod once it does", node, clientplan.Unconfirmed)
	}
	for _, r := range s.decision.Egresses {
		if !slices.Contains(says.Egresses, r) {
			return reasonWaiting, fmt.Sprintf("berthd of node %s has not set up the tunnels of Egress %s/%s yet", node, r.Namespace, r.Name)
		}
	}
	return "", ""
}

// ready is the condition of the pod's EgressClient; nil for a pod that uses no Egress.
func (s scene) ready() *metav1.Condition {
	c := &metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse}
	if len(s.decision.Refused) > 0 {
		var texts []string
		for _, r := range s.decision.Refused {
			texts = append(texts, r.Message)
		}
		c.Reason, c.Message = s.decision.Refused[0].Reason, strings.Join(texts, "; ")
		return c
	}
	if len(s.decision.Egresses) == 0 {
		return nil
	}
	if c.Reason, c.Message = s.waits(); c.Reason != "" {
		return c
	}
	for _, r := range s.decision.Egresses {
		if e := s.egresses.Get(membership.Ref{Namespace: r.Namespace, Name: r.Name}); e != nil && !e.Gateways {
			c.Reason, c.Message = reasonNoGateway, fmt.Sprintf("Egress %s has no gateway that is ready: the pod does not reach its destinations", e.Ref)
			return c
		}
	}
	c.Status, c.Reason = metav1.ConditionTrue, reasonSetUp
	return c
}

// clientsReady is the part of an Egress's status that is about its clients.
type clientsStatus struct {
	clients, refused int32
	condition        metav1.Condition
}

// The reasons of an Egress's condition ClientsReady.
const (
	reasonServed   = "Served"
	reasonRefused  = "Refused"
	reasonWaits    = "Waiting"
	reasonSelector = "InvalidSelector"
	reasonTooMany  = "TooManySelecting"
	reasonConsent  = "NoConsent"
)

// statusOf is what an Egress is to say of its clients.
func statusOf(a *account, e *clientplan.Egress, all clientplan.Egresses) clientsStatus {
	s := clientsStatus{clients: int32(a.ledger.Len()), refused: int32(len(a.refused))}
	s.condition = metav1.Condition{Type: v1alpha1.ConditionClientsReady, Status: metav1.ConditionFalse}
	// Pods of others that it does not allow are counted, and no more: a stranger is not to say what the condition says.
	refused := maps.Clone(a.refused)
	maps.DeleteFunc(refused, func(pod types.NamespacedName, reason string) bool {
		return reason == v1alpha1.EgressNotAllowed && pod.Namespace != e.Ref.Namespace
	})
	tooMany := all.TooMany(e)
	switch {
	case e.Wrong != nil:
		s.condition.Reason, s.condition.Message = reasonSelector, shortened(e.Wrong.Error())
	case tooMany != "":
		s.condition.Reason, s.condition.Message = reasonTooMany, tooMany
	case len(refused) > 0:
		s.condition.Reason = reasonRefused
		s.condition.Message = about(refused, "may not use it", "may not use it")
	case len(a.stuck) > 0:
		s.condition.Reason = reasonWaits
		s.condition.Message = about(a.stuck, "is not served", "are not served")
	case a.noConsent != nil && *a.noConsent:
		s.condition.Reason, s.condition.Message = reasonConsent, e.NoConsent()
	default:
		s.condition.Status, s.condition.Reason = metav1.ConditionTrue, reasonServed
	}
	return s
}

// shortened is a text of elsewhere, which may have what a user wrote at any length.
func shortened(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), clientplan.Most)], "")
}

// about tells of some pods: how many, which, for example, and why.
func about(of map[types.NamespacedName]string, one, many string) string {
	least := types.NamespacedName{}
	for k := range of {
		if least.Name == "" || strings.Compare(k.String(), least.String()) < 0 {
			least = k
		}
	}
	if len(of) == 1 {
		return fmt.Sprintf("pod %s %s (%s): see its EgressClient", least, one, of[least])
	}
	return fmt.Sprintf("%d pods %s, such as %s (%s): see their EgressClients", len(of), many, least, of[least])
}

// findConsent finds out whether an Egress selects a namespace that does not consent, unless that is
// known.
func (c *Controller) findConsent(ctx context.Context, ref membership.Ref) error {
	b := c.book
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[ref]
	if a == nil || a.noConsent != nil {
		return nil
	}
	namespaces, err := c.namespaces(ctx)
	if err != nil {
		return err
	}
	selectors := b.egresses.Selectors()
	a.noConsent = new(slices.ContainsFunc(namespaces, func(n membership.Namespace) bool { return selectors.MissesConsent(ref, n) }))
	return nil
}

// says tells whether an Egress's status says that already.
func (s clientsStatus) said(by *v1alpha1.Egress) bool {
	c := meta.FindStatusCondition(by.Status.Conditions, s.condition.Type)
	return c != nil && by.Status.Clients == s.clients && by.Status.RefusedClients == s.refused &&
		c.Status == s.condition.Status && c.Reason == s.condition.Reason && c.Message == s.condition.Message
}

// status is what an Egress's status is to say of its clients; nil: it says so, or is to say
// so after wait.
func (b *book) status(o *v1alpha1.Egress, e *clientplan.Egress) (want *clientsStatus, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[e.Ref]
	if a == nil || a.uid != e.UID || a.status != "" && newer(a.status, o.ResourceVersion) {
		return nil, 0 // the event of what was written comes
	}
	s := statusOf(a, e, b.egresses)
	if s.said(o) {
		return nil, 0
	}
	now := b.clock.Now()
	if wait := a.said.Add(betweenCounts).Sub(now); wait > 0 {
		return nil, wait
	}
	a.said = now
	s.condition.LastTransitionTime = metav1.NewTime(now)
	if before := meta.FindStatusCondition(o.Status.Conditions, s.condition.Type); before != nil && before.Status == s.condition.Status {
		s.condition.LastTransitionTime = before.LastTransitionTime
	}
	return &s, 0
}

// said takes in that an Egress's status was written, with which resource version.
func (b *book) said(ref membership.Ref, uid, version string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[ref]; a != nil && a.uid == uid {
		a.status = version
	}
}
