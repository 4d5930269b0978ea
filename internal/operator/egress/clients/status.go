package clients

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
)

const conditionReady = "Ready"

// The reasons of an EgressClient's condition Ready, in addition to those of refusals.
const (
	reasonSetUp     = "SetUp"
	reasonWaiting   = "WaitingForNode"
	reasonMigration = "WaitingForMigration"
	reasonFailed    = "SetUpFailed"
	reasonConflict  = "AddressConflict"
	reasonNoGateway = "NoGateway"
)

// waits returns why a pod cannot use all of its Egresses yet, or "" if it can.
func (v podView) waits() (reason, message string) {
	node := v.pod.Spec.NodeName
	if v.o == nil || v.o.Status.Node == nil {
		if v.onCoil() {
			return reasonMigration, "Coil's gateways serve the pod until node " + node + " has moved to Berth and a gateway is ready"
		}
		return reasonWaiting, "berthd of node " + node + " has not set up the pod's tunnels yet"
	}
	report := v.o.Status.Node
	switch {
	case report.State == v1alpha1.EgressClientGone:
		return reasonWaiting, "berthd of node " + node + " reports that the pod's sandbox is gone, and has reported no other yet"
	case report.State == v1alpha1.EgressClientFailed:
		return reasonFailed, fmt.Sprintf("berthd of node %s: %s", node, cmp.Or(report.Message, report.Reason, "it could not set up the pod's tunnels"))
	case v.conflict != "":
		return reasonConflict, v.conflict
	case v.elsewhere != "":
		return reasonConflict, v.elsewhere
	case len(reportedAddresses(v.o)) == 0:
		return reasonWaiting, "berthd of node " + node + " has not reported the pod's addresses yet"
	case len(v.addresses) == 0:
		return reasonWaiting, fmt.Sprintf("the kubelet of node %s has not reported the pod's addresses (status.podIPs) within %s: gateways serve the pod once it does", node, clientplan.Unconfirmed)
	}
	for _, r := range v.decision.Egresses {
		if !slices.Contains(report.Egresses, r) {
			return reasonWaiting, fmt.Sprintf("berthd of node %s has not set up the tunnels of Egress %s/%s yet", node, r.Namespace, r.Name)
		}
	}
	return "", ""
}

// onCoil reports whether a running pod, whose tunnels berthd has not set up, uses each of its Egresses by Coil.
func (v podView) onCoil() bool {
	named := membership.NamedForCoil(v.pod.Annotations)
	return len(v.pod.Status.PodIPs) > 0 && !slices.ContainsFunc(v.decision.Egresses, func(r v1alpha1.EgressReference) bool {
		ref := membership.Ref{Namespace: r.Namespace, Name: r.Name}
		e := v.egresses.Get(ref)
		return e == nil || !e.Migrating || !slices.Contains(named, ref)
	})
}

// ready returns the condition of the pod's EgressClient, or nil if the pod uses no Egress.
func (v podView) ready() *metav1.Condition {
	c := &metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse}
	if len(v.decision.Refused) > 0 {
		var texts []string
		for _, r := range v.decision.Refused {
			texts = append(texts, r.Message)
		}
		c.Reason, c.Message = v.decision.Refused[0].Reason, strings.Join(texts, "; ")
		return c
	}
	if len(v.decision.Egresses) == 0 {
		return nil
	}
	if c.Reason, c.Message = v.waits(); c.Reason != "" {
		return c
	}
	for _, r := range v.decision.Egresses {
		if e := v.egresses.Get(membership.Ref{Namespace: r.Namespace, Name: r.Name}); e != nil && !e.Gateways {
			c.Reason, c.Message = reasonNoGateway, fmt.Sprintf("Egress %s has no ready gateway: the pod cannot reach its destinations", e.Ref)
			return c
		}
	}
	c.Status, c.Reason = metav1.ConditionTrue, reasonSetUp
	return c
}

// clientsStatus is the part of an Egress's status about its clients.
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

// statusOf returns the desired part of an Egress's status about its clients.
func statusOf(a *egressState, e *clientplan.Egress, all clientplan.Egresses) clientsStatus {
	s := clientsStatus{clients: int32(a.placed.Len()), refused: int32(len(a.refused))}
	s.condition = metav1.Condition{Type: v1alpha1.ConditionClientsReady, Status: metav1.ConditionFalse}
	// Pods of other namespaces that are not allowed are only counted, so that they cannot control the
	// condition.
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
	case len(a.waiting) > 0:
		s.condition.Reason = reasonWaits
		s.condition.Message = about(a.waiting, "is not served", "are not served")
	case a.lacksConsent != nil && *a.lacksConsent:
		s.condition.Reason, s.condition.Message = reasonConsent, e.NoConsent()
	default:
		s.condition.Status, s.condition.Reason = metav1.ConditionTrue, reasonServed
	}
	return s
}

// shortened limits the length of a text that users control.
func shortened(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), clientplan.Most)], "")
}

// about returns a message about some pods: how many, one of them, and why.
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

// findConsent determines whether an Egress selects a namespace that does not consent, unless that is
// already known.
func (s *state) findConsent(ctx context.Context, ref membership.Ref, list func(context.Context) ([]membership.Namespace, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[ref]
	if a == nil || a.lacksConsent != nil {
		return nil
	}
	namespaces, err := list(ctx)
	if err != nil {
		return err
	}
	selectors := s.egresses.Selectors()
	a.lacksConsent = new(slices.ContainsFunc(namespaces, func(n membership.Namespace) bool { return selectors.MissesConsent(ref, n) }))
	return nil
}

// isIn reports whether an Egress's status already has these values.
func (s clientsStatus) isIn(by *v1alpha1.Egress) bool {
	c := meta.FindStatusCondition(by.Status.Conditions, s.condition.Type)
	return c != nil && by.Status.Clients == s.clients && by.Status.RefusedClients == s.refused &&
		c.Status == s.condition.Status && c.Reason == s.condition.Reason && c.Message == s.condition.Message
}

// status returns the desired part of an Egress's status about clients. It returns nil if the status is
// up to date, or is to be written after wait.
func (s *state) status(o *v1alpha1.Egress, e *clientplan.Egress) (_ *clientsStatus, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[e.Ref]
	if a == nil || a.uid != e.UID || a.version != "" && newer(a.version, o.ResourceVersion) {
		return nil, 0 // the event of the write follows
	}
	want := statusOf(a, e, s.egresses)
	if want.isIn(o) {
		return nil, 0
	}
	now := s.clock.Now()
	if wait := a.wroteStatus.Add(betweenCounts).Sub(now); wait > 0 {
		return nil, wait
	}
	a.wroteStatus = now
	want.condition.LastTransitionTime = metav1.NewTime(now)
	if before := meta.FindStatusCondition(o.Status.Conditions, want.condition.Type); before != nil && before.Status == want.condition.Status {
		want.condition.LastTransitionTime = before.LastTransitionTime
	}
	return &want, 0
}

// statusWritten records the resource version of an Egress whose status was written.
func (s *state) statusWritten(ref membership.Ref, uid, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.of[ref]; a != nil && a.uid == uid {
		a.version = version
	}
}

var (
	famClients = metric.New("berth_operator_egress_clients", "gauge", "Pods that use an Egress, or would, by state: served (its gateways serve them), stuck (they may use it, and are not served) or refused (they may not use it).", "namespace", "egress", "state")
	famSlices  = metric.New("berth_operator_egress_client_slices", "gauge", "EgressClientSlices of an Egress.", "namespace", "egress")
	famWrites  = metric.New("berth_operator_egress_client_writes_total", "counter", "Writes about clients of Egresses at the Kubernetes API, by kind of object (client, slice, or status of an Egress) and result: success or error.", "kind", "result")
	famServed  = metric.New("berth_operator_egress_served_seconds", "histogram", "Time from when the operator saw that a node had set up a client until it had written the client to a slice for the gateways.")
)

// Families returns the metrics, for the reference page.
var Families = []metric.Family{famClients, famSlices, famWrites, famServed}

// The kinds of objects that are written, as values of a metric's label.
const (
	kindClient = "client"
	kindSlice  = "slice"
	kindStatus = "status"
)

// Metrics measures the work for clients. It is safe for concurrent use.
type Metrics struct {
	writes *prometheus.CounterVec
	served *prometheus.HistogramVec
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{writes: famWrites.Counter(), served: famServed.Histogram(metric.CallBuckets)}
	for _, kind := range []string{kindClient, kindSlice, kindStatus} {
		for _, result := range metric.Results {
			m.writes.WithLabelValues(kind, result)
		}
	}
	m.served.WithLabelValues()
	return m
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.writes, m.served}
}

func (m *Metrics) wrote(kind string, err error) {
	m.writes.WithLabelValues(kind, metric.Result(err)).Inc()
}

// Gauges collects the numbers of clients and slices on each scrape.
func (c *Controller) Gauges() prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		for ref, n := range c.state.counts() {
			emit(famClients, float64(n.served), ref.Namespace, ref.Name, "served")
			emit(famClients, float64(n.waiting), ref.Namespace, ref.Name, "stuck")
			emit(famClients, float64(n.refused), ref.Namespace, ref.Name, "refused")
			emit(famSlices, float64(n.slices), ref.Namespace, ref.Name)
		}
	}, famClients, famSlices)
}
