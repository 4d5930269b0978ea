package addresspool

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/objects"
)

// reportEvery is the minimum interval between writes of a pool's status.
const reportEvery = time.Second

// Reasons of a pool's conditions, in addition to those of requests.
const (
	reasonReady         = "Ready"
	reasonBlocksFree    = "BlocksFree"
	reasonUsedElsewhere = "UsedElsewhere"
	reasonNoneWithheld  = "NoneWithheld"
)

// report writes a pool's counts and conditions if they changed and the last write is long enough
// ago; otherwise it returns when to come back. why is the reason why no further subnet is cut.
func (p *pools) report(ctx context.Context, o *v1alpha1.AddressPool, why *refusal) (time.Duration, error) {
	before, now := o.DeepCopy(), p.api.clock.Now()
	describe(o, p.allocator.counts(o.Name), why, explain(p.withholding.occupied.within(prefixesOf(o)...)), now)
	if reflect.DeepEqual(before.Status, o.Status) {
		return 0, nil
	}
	if wait := p.reported[o.Name].Add(reportEvery).Sub(now); wait > 0 {
		return wait, nil
	}
	p.reported[o.Name] = now
	if err := objects.PatchStatus(ctx, p.api.cached, o, client.MergeFrom(before)); err != nil {
		return 0, err
	}
	p.recordChanges(before, o)
	return 0, nil
}

// prefixesOf returns the accepted subnets of a pool.
func prefixesOf(p *v1alpha1.AddressPool) (out []netip.Prefix) {
	for _, r := range ownedRanges(p, accepted(p)) {
		out = append(out, r.Prefix)
	}
	return out
}

// describe sets a pool's status as of now. withheld describes the addresses that are in use
// elsewhere.
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
		set(v1alpha1.ConditionReady, false, v1alpha1.ReasonPoolDeleted, fmt.Sprintf("%d blocks are left; each is released with the last pod that uses one of its addresses", n.blocks.Allocated))
	case why != nil: // blocks are still allocated from the subnets accepted before
		set(v1alpha1.ConditionReady, n.blocks.Total > 0, why.reason, why.message)
	default:
		set(v1alpha1.ConditionReady, true, reasonReady, "")
	}
	if n.blocks.Total > 0 && n.blocks.Free == 0 {
		set(v1alpha1.ConditionExhausted, true, v1alpha1.ReasonPoolExhausted, fmt.Sprintf("all %d blocks are allocated: append a subnet, or wait until a node returns a block", n.blocks.Total))
	} else {
		set(v1alpha1.ConditionExhausted, false, reasonBlocksFree, "")
	}
	if withheld != "" {
		set(v1alpha1.ConditionWithheld, true, reasonUsedElsewhere, withheld)
	} else {
		set(v1alpha1.ConditionWithheld, false, reasonNoneWithheld, "")
	}
}

// recordChanges records Events for conditions whose reason changed.
func (p *pools) recordChanges(before, o *v1alpha1.AddressPool) {
	for kind, good := range map[string]string{v1alpha1.ConditionReady: reasonReady, v1alpha1.ConditionExhausted: reasonBlocksFree, v1alpha1.ConditionWithheld: reasonNoneWithheld} {
		was, is := meta.FindStatusCondition(before.Status.Conditions, kind), meta.FindStatusCondition(o.Status.Conditions, kind)
		switch {
		case was == nil && is.Reason == good, was != nil && was.Reason == is.Reason:
		case is.Reason == good:
			p.api.events.Eventf(o, nil, corev1.EventTypeNormal, is.Reason, "Report", "resolved %s: %s", was.Reason, was.Message)
		case is.Reason == v1alpha1.ReasonPoolDeleted:
			p.api.events.Eventf(o, nil, corev1.EventTypeNormal, is.Reason, "Report", "%s", is.Message)
		default:
			p.api.events.Eventf(o, nil, corev1.EventTypeWarning, is.Reason, "Report", "%s", is.Message)
		}
	}
}

var (
	famBlocks    = metric.New("berth_operator_pool_blocks", "gauge", "Blocks of a pool by state: max (all blocks), allocated (to nodes) or free.", "pool", "state")
	famAddresses = metric.New("berth_operator_pool_addresses", "gauge", "Addresses of one family of a pool by state, those of allocated blocks as allocated.", "pool", "state")
	famWaiting   = metric.New("berth_operator_pool_waiting_requests", "gauge", "Requests of nodes for which a pool has no block.", "pool")
	famServed    = metric.New("berth_operator_block_request_seconds", "histogram", "Time from a node's request for a block to its answer with one.")
	famRefused   = metric.New("berth_operator_block_requests_refused_total", "counter", "Requests for blocks that were refused because of what their node has or asks for already, by reason: NoPods, NodeQuota or TooManyRequests.", "reason")
)

// Families returns the metrics, for the reference page.
var Families = []metric.Family{famBlocks, famAddresses, famWaiting, famServed, famRefused}

// Metrics counts requests for blocks. It is safe for concurrent use.
type Metrics struct {
	served  *prometheus.HistogramVec
	refused *prometheus.CounterVec
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{famServed.Histogram(metric.WaitBuckets), famRefused.Counter()}
	m.served.WithLabelValues() // so that the series exists before the first request
	for _, reason := range []string{v1alpha1.ReasonNoPods, v1alpha1.ReasonNodeQuota, v1alpha1.ReasonTooManyRequests} {
		m.refused.WithLabelValues(reason) // so that rate() sees the first increment
	}
	return m
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.served, m.refused}
}

// RequestServed counts an answered request and the time until its answer.
func (m *Metrics) RequestServed(after time.Duration) {
	m.served.WithLabelValues().Observe(after.Seconds())
}

// RequestRefused counts a request that was refused because of its node's quota.
func (m *Metrics) RequestRefused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Gauges collects the usage of the pools on each scrape.
func (c *Controller) Gauges() prometheus.Collector { return gauges(c.Usage) }

func gauges(usage func() []Usage) prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		counts := func(f metric.Family, pool string, n v1alpha1.PoolCounts) {
			emit(f, float64(n.Total), pool, "max")
			emit(f, float64(n.Allocated), pool, "allocated")
			emit(f, float64(n.Free), pool, "free")
		}
		for _, u := range usage() {
			counts(famBlocks, u.Pool, u.Blocks)
			counts(famAddresses, u.Pool, u.Addresses)
			emit(famWaiting, float64(u.Waiting), u.Pool)
		}
	}, famBlocks, famAddresses, famWaiting)
}
