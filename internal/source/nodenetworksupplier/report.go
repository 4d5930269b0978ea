package nodenetworksupplier

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
)

const (
	// coalesce is how long changes are gathered into one report while the node
	// has addresses enough; spread over half to one and a half of it.
	coalesce = time.Second
	// gather is the same while it has not: a burst of pods is one report.
	gather = 10 * time.Millisecond
	// spacing is between two reports at least.
	spacing = 100 * time.Millisecond

	// maxOvertaken is how many reports in a row go out without a wait in between when
	// each was overtaken by somebody's write to the object: who waits between
	// looking at it and writing loses again to whoever writes all the time.
	maxOvertaken = 10
)

// reports writes the node's use of addresses into the object. It belongs to the
// supplier's loop.
type reports struct {
	cfg       *Config
	api       *kubeapi.Client
	allocator allocator
	observed  *observed
	pending   pending
}

// pending is the report that may be due.
type pending struct {
	since     time.Time     // when something changed that the last one does not have; zero: nothing did
	delay     time.Duration // how long it may wait for more
	last      time.Time     // when the last one went out that was not overtaken
	overtaken int           // how many since then were
	retry     retry.Backoff
}

// note says that something may have changed.
func (p *pending) note(now time.Time) {
	if p.since.IsZero() {
		p.since, p.delay = now, retry.Jitter(coalesce)
	}
}

// due returns when the report goes out.
func (p *pending) due(urgent bool) time.Time {
	at := p.since.Add(p.delay)
	if urgent {
		at = p.since.Add(gather)
	}
	return latest(at, p.last.Add(spacing), p.retry.Until)
}

func latest(list ...time.Time) time.Time { return slices.MaxFunc(list, time.Time.Compare) }

// send writes the node's use into the object when that is due: at once when
// pods wait, fewer than half of the addresses that should be free are, or the link of
// an ENI went or came. released
// are the addresses that the operator may take. With then, the report is due
// now and made in any case; then is called once it was taken, as an answer to
// o and to no later state. It returns when to come back; zero: when woken.
func (s *reports) send(ctx context.Context, o *v1alpha1.NodeNetwork, released []netip.Prefix, then func()) time.Time {
	p, now := &s.pending, s.cfg.Clock.Now()
	if then != nil {
		p.note(now)
	}
	if p.since.IsZero() {
		return time.Time{}
	}
	free, waiting := s.allocator.Room()
	urgent := then != nil || waiting > 0 || 2*free < watermark(o) || !slices.Equal(s.missingLinks(), o.Status.IPAM.MissingLinks)
	if at := p.due(urgent); at.After(now) {
		return at
	}
	status := s.status(released)
	if then == nil && sameStatus(status, o.Status.IPAM) {
		p.since = time.Time{}
		return time.Time{}
	}
	if err := failpoint.Hit("nodenetwork.report.before"); err != nil {
		s.cfg.Logger.Warn("not reported", "error", err)
		p.retry.Fail(now, retry.First, retry.Most)
		return p.retry.Until
	}
	got, err := s.patchStatus(ctx, o, status)
	s.cfg.Reported(result(err), s.cfg.Clock.Now().Sub(now))
	if err != nil {
		return s.failed(ctx, err)
	}
	*p = pending{last: s.cfg.Clock.Now()}
	s.observed.heard(nil)
	s.observed.update(func(o *observed) { o.reportedAt = p.last })
	s.observed.observe(got, func(have *v1alpha1.NodeNetwork) bool { return have != nil && !nodenetwork.Newer(have, got) })
	if err := failpoint.Hit("nodenetwork.report.after"); err != nil {
		s.cfg.Logger.Warn("after a report", "error", err)
	}
	if then != nil {
		then()
	}
	return time.Time{}
}

// failed deals with a report that failed: the next has what is new by then.
func (s *reports) failed(ctx context.Context, err error) time.Time {
	p := &s.pending
	switch {
	case kubeapi.Ended(err):
		return time.Time{}
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// Somebody wrote to the object, or made another: look before the next.
		p.overtaken++
		if looked := s.observed.refresh(ctx); looked && p.overtaken%maxOvertaken != 0 {
			return s.cfg.Clock.Now()
		}
		p.retry.Fail(s.cfg.Clock.Now(), gather, time.Second)
	default:
		s.cfg.Logger.Warn("not reported, will try again", "error", err)
		p.last = s.cfg.Clock.Now()
		p.retry.Fail(p.last, retry.First, retry.Most)
		s.observed.heard(err)
	}
	return p.retry.Until
}

// patchStatus writes the daemon's part of o's status, unless anybody wrote to the
// object since o was read: then the error is a conflict.
func (s *reports) patchStatus(ctx context.Context, o *v1alpha1.NodeNetwork, ipam v1alpha1.IPAMStatus) (*v1alpha1.NodeNetwork, error) {
	body, err := nodenetwork.ApplyBody(o, nil, struct {
		IPAM v1alpha1.IPAMStatus `json:"ipam"`
	}{ipam})
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	out := &v1alpha1.NodeNetwork{}
	return out, s.api.Patch(ctx, types.ApplyPatchType, resource, o.Name, "status", body, out)
}

func result(err error) string {
	switch {
	case err == nil:
		return "success"
	case apierrors.IsConflict(err):
		return "conflict"
	default:
		return "error"
	}
}

// status returns the daemon's part of the object as it should be now.
func (s *reports) status(released []netip.Prefix) v1alpha1.IPAMStatus {
	uses, waiting := s.allocator.Uses()
	st := v1alpha1.IPAMStatus{
		Used: make(map[string]v1alpha1.UsedAddress, len(uses)), UsedCount: podsOf(uses),
		Waiting: int32(min(waiting, maxWaiting)), InstanceID: s.cfg.InstanceID,
		MissingLinks: s.missingLinks(),
	}
	owners := maxOwners
	for _, u := range uses {
		a := v1alpha1.UsedAddress{UID: truncate(u.Pod.UID, maxUID), Resource: u.ENI, Cooling: u.Cooling}
		if u.Pod.Name != "" {
			a.Owner = truncate(u.Pod.Namespace+"/"+u.Pod.Name, min(maxOwner, owners))
			owners -= len(a.Owner)
		}
		st.Used[u.Addr.String()] = a
	}
	for _, p := range released {
		st.Released = append(st.Released, nodenetwork.Format(p))
	}
	return st
}

// podsOf is for how many pods addresses are in use: of each ENI, the number of the
// family that more of it are of, as an address that cools names no pod.
func podsOf(uses []enisource.Use) (sum int32) {
	byENI := map[string][ipfamily.Number]int32{}
	for _, u := range uses {
		n := byENI[u.ENI]
		n[ipfamily.Of(u.Addr)]++
		byENI[u.ENI] = n
	}
	for _, n := range byENI {
		sum += slices.Max(n[:])
	}
	return sum
}

func sameStatus(x, y v1alpha1.IPAMStatus) bool {
	return x.UsedCount == y.UsedCount && x.Waiting == y.Waiting && x.InstanceID == y.InstanceID &&
		maps.Equal(x.Used, y.Used) && slices.Equal(x.Released, y.Released) && slices.Equal(x.MissingLinks, y.MissingLinks)
}

// missingLinks returns the ENIs whose links are missing, as many as a report may have.
func (s *reports) missingLinks() []string {
	ids := s.allocator.MissingLinks()
	return ids[:min(len(ids), maxLinks)]
}

// What the definition of NodeNetworks takes (api/v1alpha1, IPAMStatus and
// UsedAddress). A report that has more would be refused as a whole, with what
// the operator needs in it, because of a name that only people read.
const (
	maxWaiting = 4096
	maxLinks   = 64
	maxOwner   = 317 // a namespace of 63, a slash, a name of 253
	maxUID     = 64
	maxOwners  = 400_000
)

// truncate returns the beginning of a text, of at most so many characters of one byte each.
// No others are in names and UIDs that Kubernetes gives, nor does the definition take any.
func truncate(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < '!' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return text[:min(len(text), max(0, most))]
}

var (
	famReports    = metric.New("berth_nodenetwork_reports_total", "counter", "Reports on this node's addresses to its NodeNetwork object, in operator mode, by result: success, conflict (the object had changed; another report follows) or error.", "result")
	famReportTime = metric.New("berth_nodenetwork_report_duration_seconds", "histogram", "Time that these reports took.")
)

// Reference is what operator mode adds to the page of metrics.
var Reference = source.Reference{Families: []metric.Family{famReports, famReportTime}}

// CountReports registers metrics of the reports to the node's NodeNetwork. What it
// returns counts one: it is a Config's Reported.
func CountReports(to prometheus.Registerer) func(result string, took time.Duration) {
	reports, duration := famReports.Counter(), famReportTime.Histogram(metric.CallBuckets)
	to.MustRegister(reports, duration)
	return func(result string, took time.Duration) {
		reports.WithLabelValues(result).Inc()
		duration.WithLabelValues().Observe(took.Seconds())
	}
}
