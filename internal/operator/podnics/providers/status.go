package providers

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// reportEvery is the minimum interval between writes of a VPC's status.
	reportEvery = time.Second
	// maxSubnets is how many subnets a status may list (v1alpha1.VPCStatus).
	maxSubnets = 1024
)

// reports are the conditions of VPCs, for metrics.
type reports struct {
	mu sync.Mutex                 // guards by
	by map[string]map[string]bool // by VPC and type, without Unknown ones
}

func newReports() *reports { return &reports{by: map[string]map[string]bool{}} }

func (r *reports) put(vpc string, conditions []metav1.Condition) {
	known := map[string]bool{}
	for _, c := range conditions {
		if c.Status != metav1.ConditionUnknown {
			known[c.Type] = c.Status == metav1.ConditionTrue
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by[vpc] = known
}

func (r *reports) drop(vpc string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.by, vpc)
}

func (r *reports) all() map[string]map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.by)
}

// report writes a VPC's status if it has changed, or returns how long to wait before the next write.
func (c *Controller) report(ctx context.Context, v *v1alpha1.VPC, s *state, nics int) (time.Duration, error) {
	before := v.DeepCopy()
	describe(v, s, nics, c.now())
	c.reported.put(v.Name, v.Status.Conditions)
	if reflect.DeepEqual(before.Status, v.Status) {
		s.pin = pinIn(v.Status)
		return 0, nil
	}
	if wait := s.reported.Add(reportEvery).Sub(c.now()); wait > 0 {
		return wait, nil
	}
	s.reported = c.now()
	if err := objects.PatchStatus(ctx, c.client, v, client.MergeFrom(before)); err != nil {
		return 0, err
	}
	s.pin = pinIn(v.Status)
	c.tell(before, v)
	return 0, nil
}

// describe updates a VPC's status to the current state.
func describe(v *v1alpha1.VPC, s *state, nics int, now time.Time) {
	st := &v.Status
	st.NICs = int32(min(nics, 1<<30))
	if s.open {
		st.NetworkID, st.ProjectID, st.MTU = s.found.network.ID, s.found.project, int32(s.found.network.MTU)
		st.Subnets = subnets(s.found.network)
	}
	all := verdicts(s.why, v.Spec.Credentials != nil, s.asked)
	if s.why == nil {
		if text := s.connection.health.denied(); text != "" {
			all[ofCredentials] = verdict{metav1.ConditionFalse, ReasonForbidden, text + secretOf(v.Spec)}
		}
	}
	for a, verdict := range all {
		set(v, conditionOf[a], verdict, now)
	}
	set(v, v1alpha1.ConditionReady, ready(v, s, all, nics), now)
}

// ready returns the verdict of the condition Ready: that of the first area with a problem.
func ready(v *v1alpha1.VPC, s *state, all [areas]verdict, nics int) verdict {
	if v.DeletionTimestamp != nil {
		return verdict{metav1.ConditionFalse, ReasonDeleting, fmt.Sprintf("%d PodNICs still exist; the VPC is deleted after the last one", nics)}
	}
	if s.why != nil {
		return verdict{metav1.ConditionFalse, s.why.reason, s.why.message}
	}
	for _, one := range all {
		if one.status != metav1.ConditionTrue {
			return one
		}
	}
	if p := complaint(v.Spec, s.found.network); p != nil {
		return verdict{metav1.ConditionFalse, p.reason, p.message}
	}
	return verdict{metav1.ConditionTrue, ReasonReady, ""}
}

func set(v *v1alpha1.VPC, kind string, is verdict, now time.Time) {
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: kind, Status: is.status, Reason: is.reason, Message: is.message,
		ObservedGeneration: v.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}

// subnets returns the subnets of a network as listed in the status.
func subnets(n vpcport.Network) (out []v1alpha1.VPCSubnet) {
	for _, s := range n.Subnets[:min(len(n.Subnets), maxSubnets)] {
		o := v1alpha1.VPCSubnet{ID: s.ID, Name: s.Name, CIDR: s.CIDR.String()}
		if s.Gateway.IsValid() {
			o.Gateway = s.Gateway.String()
		}
		if s.IPv6CIDR.IsValid() {
			o.IPv6CIDR = s.IPv6CIDR.String()
		}
		out = append(out, o)
	}
	return out
}

// maxNote limits the note of an Event in bytes. The API allows podnics.MaxNote.
const maxNote = 1000

// tell records an Event and a log line when the reason of a VPC's condition Ready changes.
func (c *Controller) tell(before, v *v1alpha1.VPC) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionReady)
	if was != nil && was.Reason == is.Reason {
		return
	}
	log := c.o.Logger.With("vpc", v.Name, "reason", is.Reason)
	kind, note := corev1.EventTypeWarning, is.Message
	switch {
	case is.Status == metav1.ConditionTrue:
		kind, note = corev1.EventTypeNormal, fmt.Sprintf("network %s of project %s", v.Status.NetworkID, v.Status.ProjectID)
		log.Info("a VPC is ready", "network", v.Status.NetworkID, "project", v.Status.ProjectID)
	case is.Reason == ReasonDeleting:
		kind = corev1.EventTypeNormal
	default:
		log.Warn("a VPC is not ready", "because", is.Message)
	}
	c.events.Eventf(v, nil, kind, is.Reason, "Report", "%s", vpcport.Cut(note, maxNote))
}

var (
	famCalls     = metric.New("berth_operator_port_calls_total", "counter", "Calls to providers of VPC ports by VPC, operation (Create, Delete, Get, Network, Ports, Project or Update) and result: ok, or the class of the failure (transient, throttled, unauthorized, forbidden, invalid, network-gone, reference-gone, port-gone, subnet-full, address-taken, mac-taken, over-quota, conflict, stale, too-large, bug or unknown).", "vpc", "operation", "class")
	famDuration  = metric.New("berth_operator_port_call_seconds", "histogram", "Duration of calls to providers of VPC ports.", "vpc", "operation")
	famWait      = metric.New("berth_operator_port_call_wait_seconds", "histogram", "How long calls waited before they were sent, because others were in flight or the provider had throttled Berth.", "vpc")
	famUnderWay  = metric.New("berth_operator_port_calls_in_flight", "gauge", "Calls to providers in flight.")
	famWaiting   = metric.New("berth_operator_port_calls_waiting", "gauge", "Calls to providers that wait to be sent.")
	famAllowed   = metric.New("berth_operator_port_calls_allowed", "gauge", "Calls to providers that may be in flight, to all endpoints together: --vpc-calls for each, or 128 for EC2, fewer after an endpoint has throttled calls.")
	famCondition = metric.New("berth_operator_vpc_condition", "gauge", "1 while a condition of a VPC is True, 0 while it is False, by type: Ready, Reachable, CredentialsAccepted or NetworkFound. Absent while it is Unknown because an earlier one is False.", "vpc", "type")
)

// Families returns the metrics, for the reference page.
var Families = []metric.Family{famCalls, famDuration, famWait, famUnderWay, famWaiting, famAllowed, famCondition}

// providerBuckets are in seconds, from a quick answer of a nearby provider to the longest wait. They are few, because each VPC has
// its own series.
var providerBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// Metrics measures the calls to providers. It is safe for concurrent use.
type Metrics struct {
	calls          *prometheus.CounterVec
	duration, wait *prometheus.HistogramVec
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	return &Metrics{famCalls.Counter(), famDuration.Histogram(providerBuckets), famWait.Histogram(providerBuckets)}
}

// classOK is the class of successful calls.
const classOK = "ok"

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.duration, m.wait}
}

// Called implements Observer.
func (m *Metrics) Called(vpc, op string, err error, waited, took time.Duration) {
	class := classOK
	if err != nil {
		class = vpcport.ClassOf(err).String()
	}
	m.calls.WithLabelValues(vpc, op, class).Inc()
	m.duration.WithLabelValues(vpc, op).Observe(took.Seconds())
	m.wait.WithLabelValues(vpc).Observe(waited.Seconds())
}

// Gone implements Observer: it removes the metrics of a VPC.
func (m *Metrics) Gone(vpc string) {
	of := prometheus.Labels{"vpc": vpc}
	m.calls.DeletePartialMatch(of)
	m.duration.DeletePartialMatch(of)
	m.wait.DeletePartialMatch(of)
}

// Gauges returns the metrics that are computed on each scrape.
func (c *Controller) Gauges() prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		u := c.opener.usage()
		emit(famUnderWay, float64(u.InFlight))
		emit(famWaiting, float64(u.Waiting))
		emit(famAllowed, float64(u.Allowed))
		for name, conditions := range c.reported.all() {
			for kind, yes := range conditions {
				emit(famCondition, map[bool]float64{true: 1}[yes], name, kind)
			}
		}
	}, famUnderWay, famWaiting, famAllowed, famCondition)
}
