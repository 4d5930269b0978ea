package webhook

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
)

var (
	famReviews = metric.New("berth_operator_webhook_reviews_total", "counter", "Admission requests by resource (pods or podnics; branches are pods that may need branch interfaces, policies are pods of namespaces with NICPolicies) and outcome: allowed, warned (allowed, although the VPC does not exist yet), changed (allowed, with a request for branch interfaces or the NIC of a policy added), refused (rejected) or error (not judged: allowed, or rejected for policies).", "resource", "outcome")
	famReview  = metric.New("berth_operator_webhook_review_seconds", "histogram", "Time to answer an admission request, by resource. The API server waits for it.", "resource")
	famExpiry  = metric.New("berth_operator_webhook_certificate_expiry_timestamp_seconds", "gauge", "Expiry of this operator's webhook certificate, in seconds since 1970; 0 while there is none. Absent without the webhook.")
	famChecks  = metric.New("berth_operator_webhook_certificate_checks_total", "counter", "Checks of the webhook's certificate authorities and, by the leader, of the CA bundles that the API server trusts, by result: success or error.", "result")
)

var famRefused = metric.New("berth_operator_webhook_refused_connections_total", "counter", "Connections to the webhook that were refused because they came neither from the API server nor from a node, nor from an address in --webhook-clients.")

// Families returns the metrics, for the reference page.
var Families = []metric.Family{famReviews, famReview, famExpiry, famChecks, famRefused}

// reviewBuckets are in seconds. The API server waits no longer than the last but one (timeoutSeconds of the chart's webhook
// configurations).
var reviewBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 3, 10}

// Values of labels.
const (
	ofPods     = "pods"
	ofPodNICs  = "podnics"
	ofBranches = "branches"
	ofPolicies = "policies"

	outcomeAllowed = "allowed"
	outcomeWarned  = "warned"
	outcomeChanged = "changed"
	outcomeRefused = "refused"
	outcomeError   = "error"
)

// Metrics counts the webhook's reviews. It is safe for concurrent use.
type Metrics struct {
	reviews *prometheus.CounterVec
	review  *prometheus.HistogramVec
	checks  *prometheus.CounterVec
	refused prometheus.Counter
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{famReviews.Counter(), famReview.Histogram(reviewBuckets), famChecks.Counter(), famRefused.Counter().WithLabelValues()}
	judged := []string{outcomeAllowed, outcomeWarned, outcomeRefused, outcomeError}
	for resource, outcomes := range map[string][]string{
		ofPods: judged, ofPodNICs: judged, ofBranches: {outcomeAllowed, outcomeChanged, outcomeError},
		ofPolicies: {outcomeAllowed, outcomeChanged, outcomeRefused, outcomeError},
	} {
		for _, outcome := range outcomes {
			m.reviews.WithLabelValues(resource, outcome) // so that rate() sees the first increment
		}
		m.review.WithLabelValues(resource)
	}
	for _, result := range metric.Results {
		m.checks.WithLabelValues(result)
	}
	return m
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.reviews, m.review, m.checks, m.refused}
}

func (m *Metrics) reviewed(resource, outcome string, took time.Duration) {
	m.reviews.WithLabelValues(resource, outcome).Inc()
	m.review.WithLabelValues(resource).Observe(took.Seconds())
}

func (m *Metrics) checked(err error) {
	m.checks.WithLabelValues(metric.Result(err)).Inc()
}

// expiry returns the metric that is computed on each scrape.
func expiry(k *keeper) prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		at := 0.
		if c, err := k.certificate(nil); err == nil {
			at = float64(c.Leaf.NotAfter.Unix())
		}
		emit(famExpiry, at)
	}, famExpiry)
}
