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
	// coalesce is how long changes are batched into one report while the node
	// has enough addresses, with jitter of half of it.
	coalesce = time.Second
	// gather is coalesce for a node without enough addresses, so that a burst of pods is one report.
	gather = 10 * time.Millisecond
	// spacing is the minimum time between two reports.
	spacing = 100 * time.Millisecond

	// maxOvertaken is the number of consecutive reports that are sent without a wait when
	// each conflicts with another write to the object: a daemon that waits between
	// reading and writing keeps losing against a frequent writer.
	maxOvertaken = 10
)

// reports writes the node's use of addresses into the object. It belongs to the supplier's loop.
type reports struct {
	cfg       *Config
	api       *kubeapi.Client
	allocator allocator
	observed  *observed
	pending   pending
}

// pending is the report that may be due.
type pending struct {
	since     time.Time     // time of the first change since the last report; zero: none
	delay     time.Duration // how long to wait for more changes
	last      time.Time     // time of the last report without a conflict
	overtaken int           // number of conflicts since then
	retry     retry.Backoff
}

// note records a possible change.
func (p *pending) note(now time.Time) {
	if p.since.IsZero() {
		p.since, p.delay = now, retry.Jitter(coalesce)
	}
}

// due returns the time at which the report is sent.
func (p *pending) due(urgent bool) time.Time {
	at := p.since.Add(p.delay)
	if urgent {
		at = p.since.Add(gather)
	}
	return latest(at, p.last.Add(spacing), p.retry.Until)
}

func latest(list ...time.Time) time.Time { return slices.MaxFunc(list, time.Time.Compare) }

// send writes the node's use of addresses into the object when that is due. It is due immediately when pods
// wait, when fewer than half of the addresses that should be free are free, or when the link of an ENI
// vanished or appeared. released are the addresses that the operator may take. With then, the report is due now
// and sent in any case; then is called once the report was accepted, as an answer to o and to no later state.
// send returns the time of the next call; zero: when woken.
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
		s.cfg.Logger.Warn("not reported", "err", err)
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
		s.cfg.Logger.Warn("after a report", "err", err)
	}
	if then != nil {
		then()
	}
	return time.Time{}
}

// failed handles a failed report. The next report includes all changes until then.
func (s *reports) failed(ctx context.Context, err error) time.Time {
	p := &s.pending
	switch {
	case kubeapi.Cancelled(err):
		return time.Time{}
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// Another client wrote to the object, or created another one: read it before the next report.
		p.overtaken++
		if looked := s.observed.refresh(ctx); looked && p.overtaken%maxOvertaken != 0 {
			return s.cfg.Clock.Now()
		}
		p.retry.Fail(s.cfg.Clock.Now(), gather, time.Second)
	default:
		s.cfg.Logger.Warn("not reported, will try again", "err", err)
		p.last = s.cfg.Clock.Now()
		p.retry.Fail(p.last, retry.First, retry.Most)
		s.observed.heard(err)
	}
	return p.retry.Until
}

// patchStatus writes the daemon's part of o's status. If the object was written to since o was
// read, the error is a conflict.
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
	if apierrors.IsConflict(err) {
		return "conflict"
	}
	return metric.Result(err)
}

// status returns the current daemon's part of the object.
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

// podsOf returns the number of pods whose addresses are in use. For each ENI it counts the
// addresses of the family with more of them, because a cooling address names no pod.
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

// missingLinks returns the ENIs whose links are missing, up to the maximum of a report.
func (s *reports) missingLinks() []string {
	ids := s.allocator.MissingLinks()
	return ids[:min(len(ids), maxLinks)]
}

// Limits of the definition of NodeNetworks (api/v1alpha1, IPAMStatus and UsedAddress). A report that
// exceeds one would be rejected as a whole, including the data that the operator needs, because of a name that is
// only informational.
const (
	maxWaiting = 4096
	maxLinks   = 64
	maxOwner   = 317 // a namespace of 63, a slash, a name of 253
	maxUID     = 64
	maxOwners  = 400_000
)

// truncate returns at most the given number of characters of a text, with ? for those that are
// not printable ASCII. Names and UIDs in Kubernetes have no such characters, and the definition does
// not allow them.
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
	famReportTime = metric.New("berth_nodenetwork_report_duration_seconds", "histogram", "Duration of these reports.")
)

// Reference is the part of the metrics reference for operator mode.
var Reference = source.Reference{Families: []metric.Family{famReports, famReportTime}}

// CountReports registers metrics of the reports to the node's NodeNetwork. It returns a function that
// counts a report, for Config.Reported.
func CountReports(to prometheus.Registerer) func(result string, took time.Duration) {
	reports, duration := famReports.Counter(), famReportTime.Histogram(metric.CallBuckets)
	to.MustRegister(reports, duration)
	return func(result string, took time.Duration) {
		reports.WithLabelValues(result).Inc()
		duration.WithLabelValues().Observe(took.Seconds())
	}
}
