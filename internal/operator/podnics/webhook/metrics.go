package webhook

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
)

var (
	famReviews = metric.New("berth_operator_webhook_reviews_total", "counter", "Requests of the API server to judge what is made or edited, by resource (pods or podnics; branches are pods that may have to ask for branch interfaces, policies are pods of namespaces with NICPolicies) and outcome: allowed, warned (allowed, of a VPC that there is not yet), changed (allowed, and made to ask for branch interfaces, or for the NIC of a policy), refused or error (not judged, and so allowed; of policies refused).", "resource", "outcome")
	famReview  = metric.New("berth_operator_webhook_review_seconds", "histogram", "How long it took to judge a request, by resource. The API server waits meanwhile.", "resource")
	famExpiry  = metric.New("berth_operator_webhook_certificate_expiry_timestamp_seconds", "gauge", "When the certificate ends with which this operator serves the webhook, in seconds since 1970; 0 while it has none. Not there where there is no webhook.")
	famChecks  = metric.New("berth_operator_webhook_certificate_checks_total", "counter", "Looks at the webhook's authorities and, by the operator that leads, at whom the API server trusts, by result: success or error.", "result")
)

var famRefused = metric.New("berth_operator_webhook_refused_connections_total", "counter", "Connections to the webhook that were refused, since they came neither from the API server nor from a node, nor from an address in --webhook-clients.")

// Families are the metrics, for the page that documents them.
var Families = []metric.Family{famReviews, famReview, famExpiry, famChecks, famRefused}

// reviewBuckets are in seconds. The API server waits no longer than the last but one (timeoutSeconds of the chart's
// webhook configurations).
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

	resultSuccess = "success"
	resultError   = "error"
)

// Metrics count the webhook's reviews. They may be used concurrently.
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
			m.reviews.WithLabelValues(resource, outcome) // so that the first one is an increase
		}
		m.review.WithLabelValues(resource)
	}
	for _, result := range []string{resultSuccess, resultError} {
		m.checks.WithLabelValues(result)
	}
	return m
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.reviews, m.review, m.checks, m.refused}
}

func (m *Metrics) reviewed(resource, outcome string, took time.Duration) {
	m.reviews.WithLabelValues(resource, outcome).Inc()
	m.review.WithLabelValues(resource).Observe(took.Seconds())
}

func (m *Metrics) checked(err error) {
	result := resultSuccess
	if err != nil {
		result = resultError
	}
	m.checks.WithLabelValues(result).Inc()
}

// expiry is the metric that is computed when Prometheus scrapes.
type expiry struct{ k *keeper }

// Describe implements prometheus.Collector.
func (expiry) Describe(ch chan<- *prometheus.Desc) { ch <- famExpiry.Desc() }

// Collect implements prometheus.Collector.
func (e expiry) Collect(ch chan<- prometheus.Metric) {
	at := 0.
	if c, err := e.k.certificate(nil); err == nil {
		at = float64(c.Leaf.NotAfter.Unix())
	}
	ch <- famExpiry.Value(at)
}
