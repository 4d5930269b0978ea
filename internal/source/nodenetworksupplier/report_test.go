package nodenetworksupplier

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
)

// While there are enough addresses, changes are collected. Below half of the watermark, or while pods
// wait, they are reported at once, but never too often, nor during a backoff.
func TestWhenAReportIsDue(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		p      pending
		urgent bool
		low    time.Duration // after t0, when the change was noted
		high   time.Duration
	}{
		"enough":            {pending{}, false, coalesce / 2, coalesce * 3 / 2},
		"too few":           {pending{}, true, gather, gather},
		"reported just now": {pending{last: t0}, true, spacing, spacing},
		"reported long ago": {pending{last: t0.Add(-time.Hour)}, true, gather, gather},
		"the API is ill":    {pending{retry: retry.Backoff{Until: t0.Add(time.Minute)}}, true, time.Minute, time.Minute},
	} {
		for range 100 {
			p := tt.p
			p.note(t0)
			p.note(t0.Add(time.Second)) // later changes put nothing off
			if due := p.due(tt.urgent).Sub(t0); due < tt.low || due > tt.high {
				t.Errorf("%s: due after %v, want %v to %v", name, due, tt.low, tt.high)
			}
		}
	}
}

// A burst is one report.
func TestReportsAreFew(t *testing.T) {
	m := newMachine(t)
	var reports atomic.Int32 // that were taken
	clk := clock.NewFake(time.Now())
	m.tune = func(c *Config) {
		c.Clock = clk
		c.Reported = func(result string, _ time.Duration) {
			if result == "success" {
				reports.Add(1)
			}
		}
	}
	m.start()
	reported := func(pods int32) func(*v1alpha1.NodeNetwork) bool {
		return func(o *v1alpha1.NodeNetwork) bool {
			clk.Advance(coalesce) // time passes where the test waits
			return o.Status.IPAM.UsedCount == pods
		}
	}
	m.appears("the object", reported(0))
	m.operator(give(10, 49))
	m.add(1)
	m.appears("the first pod", reported(1))

	before := reports.Load()
	for i := 3; i < 23; i++ {
		m.add(i)
	}
	m.appears("the burst", reported(21))
	if n := reports.Load() - before; n > 2 { // one of them may be the first pod's
		t.Errorf("%d reports for a burst", n)
	}
}

// stock is an allocator with some addresses.
type stock struct {
	allocator
	uses    []enisource.Use
	missing []string
}

func (s stock) MissingLinks() []string                    { return s.missing }
func (s stock) Room() (free, waiting int)                 { return 100, 0 }
func (s stock) Uses() (uses []enisource.Use, waiting int) { return s.uses, 0 }

// A pod's two addresses count once, and as one more where they are no pair.
func TestUsedCountIsOfPods(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
	use := func(a netip.Addr, id string) enisource.Use { return enisource.Use{Addr: a, ENI: id} }
	for _, tt := range []struct {
		uses []enisource.Use
		want int32
	}{
		{nil, 0},
		{[]enisource.Use{use(four, "eni-1"), use(four.Next(), "eni-1"), use(four.Next().Next(), "")}, 3},
		{[]enisource.Use{use(four, "eni-1"), use(six, "eni-1")}, 1},
		{[]enisource.Use{use(four, "eni-1"), use(six, "eni-1"), use(six.Next(), "eni-1")}, 2},
		{[]enisource.Use{use(four, "eni-1"), use(six, "eni-2")}, 2},
	} {
		check.Equal(t, podsOf(tt.uses), tt.want, "%v", tt.uses)
	}
}

// A report that is due and says what the object has already makes no request.
func TestNothingIsWrittenWithoutAChange(t *testing.T) {
	clk := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s := newSupplier(&Config{InstanceID: instance, Clock: clk, Logger: slog.New(slog.DiscardHandler)}, nil).reports // and no API
	pods := stock{uses: []enisource.Use{{Addr: address(10), ENI: eth1, Pod: request(1).Pod, Listed: true}}}
	s.allocator = pods
	o := small()
	o.Status.IPAM = v1alpha1.IPAMStatus{
		Used:      map[string]v1alpha1.UsedAddress{"10.0.0.10": {Owner: "ns/pod1", UID: "uid-1", Resource: eth1}},
		UsedCount: 1, InstanceID: instance,
	}
	s.pending.note(clk.Now())
	at := s.send(t.Context(), o, nil, nil)
	clk.Advance(at.Sub(clk.Now()))
	if at = s.send(t.Context(), o, nil, nil); !at.IsZero() || !s.pending.since.IsZero() {
		t.Errorf("another look at %v", at)
	}
	// A link that is gone is reported at once.
	s.allocator = stock{uses: pods.uses, missing: []string{eth1}}
	s.pending.note(clk.Now())
	if at = s.send(t.Context(), o, nil, nil); at.Sub(clk.Now()) != gather {
		t.Errorf("the missing link is reported after %v, want %v", at.Sub(clk.Now()), gather)
	}
	check.Equal(t, s.status(nil).MissingLinks, []string{eth1}, "missing links")
}

// A waiting pod is reported, and so is that it gave up.
func TestWaitingPodsAreReported(t *testing.T) {
	m := newMachine(t)
	m.begin()
	m.operator(give(1, 0)) // ENIs without addresses
	done := make(chan error)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	go func() {
		_, err := m.Acquire(ctx, request(1))
		done <- err
	}()
	m.appears("the pod that waits", func(o *v1alpha1.NodeNetwork) bool { return o.Status.IPAM.Waiting == 1 })
	giveUp()
	if err := <-done; err == nil {
		t.Error("a pod got an address out of nowhere")
	}
	m.appears("nobody waits", func(o *v1alpha1.NodeNetwork) bool { return o.Status.IPAM.Waiting == 0 })
}

// A name that no pod of Kubernetes can have does not keep the node from reporting.
func TestLongNamesAreCut(t *testing.T) {
	m := newMachine(t)
	m.begin()
	m.operator(give(10, 17))
	r := request(1)
	r.Pod.Name, r.Pod.UID = strings.Repeat("ä", 50_000), strings.Repeat("u", 1000)
	if _, err := m.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	o := m.reports(1)
	if u := o.Status.IPAM.Used["10.0.0.10"]; u.Owner != "ns/"+strings.Repeat("?", 314) || len(u.UID) != 64 {
		t.Errorf("reported as %d bytes, UID %d", len(u.Owner), len(u.UID))
	}
}

// The daemon creates its object, serves the addresses that the operator adds, and reports who uses
// them, with the generated role.
func TestServesFromTheObject(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.appears("the daemon makes the object", func(o *v1alpha1.NodeNetwork) bool { return o.Spec.InstanceID == instance })
	if err := m.Ready(); err == nil {
		t.Error("ready without an address")
	}
	m.operator(give(10, 17))
	l := m.add(1)
	if l.ENI != eth1 || l.Uplink != 1 || l.IPv4 != address(10) {
		t.Errorf("the pod got %+v", l)
	}
	check.NoError(t, m.Ready())
	o := m.reports(1)
	want := v1alpha1.IPAMStatus{
		Used:      map[string]v1alpha1.UsedAddress{"10.0.0.10": {Owner: "ns/pod1", UID: "uid-1", Resource: eth1}},
		UsedCount: 1, InstanceID: instance,
	}
	check.Same(t, o.Status.IPAM, want)
}

// Waiting pods report the trouble nearest to the node.
func TestWhyPodsWait(t *testing.T) {
	condition := func(kind, reason, message string) func(*observed) {
		return func(s *observed) {
			s.object.Status.Conditions = append(s.object.Status.Conditions, metav1.Condition{Type: kind, Status: "True", Reason: reason, Message: message})
		}
	}
	for name, tt := range map[string]struct {
		change       func(*observed)
		reason, says string
	}{
		"all well":        {func(*observed) {}, "growing", "is berth-operator running?"},
		"reported before": {func(s *observed) { s.reportedAt = s.cfg.Clock.Now() }, "growing", "the operator was told 0s ago"},
		"no API":          {func(s *observed) { s.heard(errors.New("connection refused")) }, "unreachable", "connection refused"},
		"no right": {func(s *observed) {
			s.heard(apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource(resource).GroupResource(), "n", nil))
		}, "permission", "apply deploy/chart"},
		"no kind": {func(s *observed) {
			s.heard(apierrors.NewGenericServerResponse(404, "get", v1alpha1.GroupVersion.WithResource(resource).GroupResource(), "", "", 0, true))
		}, "unreachable", "lacks kinds of Berth's: the server could not find the requested resource"},
		"first second":    {func(s *observed) { s.object = nil; s.mirror.Sync.SetListed(false, resource) }, "starting", "waiting for the API server"},
		"not made":        {func(s *observed) { s.object, s.createErr = nil, errors.New("spec.eni is wrong") }, "no-object", "spec.eni is wrong"},
		"being made":      {func(s *observed) { s.object = nil }, "no-object", "is being created"},
		"nobody makes it": {func(s *observed) { s.object, s.cfg.Spec = nil, nil }, "no-object", "--auto-create-node-network"},
		"another's":       {func(s *observed) { s.object.Spec.InstanceID = "i-0ddd" }, "other-instance", "is of instance i-0ddd"},
		"not reported on": {func(s *observed) { s.object.Status.ENI.ENIs, s.object.Spec.IPAM.Available = nil, nil }, "no-operator", "has not reported"},
		"EC2 fails":       {condition(v1alpha1.ConditionDegraded, "SubnetFull", "subnet-1 is full; next try at 12:00"), "subnet-full", "subnet-1 is full"},
		"EC2 fails first": {func(s *observed) {
			s.object.Status.ENI.ENIs, s.object.Spec.IPAM.Available = nil, nil
			condition(v1alpha1.ConditionDegraded, "Permission", "ec2:DescribeInstances is denied")(s)
		}, "permission", "denied"},
		"no more fit": {condition(v1alpha1.ConditionAtCapacity, "ENILimit", "m5.large has 3 ENIs"), "eni-limit", "m5.large has 3"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newObserved(&Config{
				NodeName: "node-1", InstanceID: instance, Spec: &v1alpha1.NodeNetworkSpec{},
				Clock: clock.NewFake(time.Now()), Logger: slog.New(slog.DiscardHandler),
			}, nil)
			s.object = small()
			s.mirror.Sync.SetListed(true, resource)
			tt.change(s)
			why := s.why()
			if why.Reason != tt.reason || !strings.Contains(why.Message, tt.says) {
				t.Errorf("%s: %s; want %s: ...%s...", why.Reason, why.Message, tt.reason, tt.says)
			}
			check.Equal(t, tt.reason == "growing" || tt.reason == "eni-limit", s.lastError() == "", "last error: %q", s.lastError())
		})
	}
}

// The API server dies: pods start and end from memory, a restarted daemon serves from its file and
// withholds what it had confirmed, and the changes are reported afterwards.
func TestAPIServerOutage(t *testing.T) {
	m := startMachine(t)
	m.operator(give(10, 15))
	kept := map[int]source.Lease{1: m.add(1)}
	m.operator(releasing("10.0.0.15"))
	m.released("10.0.0.15")

	back := harness.WithoutAPIServer(t)
	kept[2] = m.add(2)
	kept[3] = m.add(3)
	m.Release(key(1))
	delete(kept, 1)
	m.until("the daemon sees the outage", func() bool { return m.Snapshot().LastError != "" })

	m.stop()
	m.start()
	for i, l := range kept {
		check.OK(t, m.Restore(request(i), l))
	}
	for i := 4; i <= 6; i++ { // from the file: nobody else can tell
		kept[i] = m.add(i)
	}
	m.until("a pod too many reports why it has to wait", func() bool {
		l, err := m.try(7, 200*time.Millisecond)
		ex, ok := err.(*source.Exhausted) //nolint:errorlint // the contract is this very type
		if !ok {
			t.Fatalf("a pod too many got %v, %v", l.IPv4, err)
		}
		return ex.Reason == "unreachable"
	})

	back()
	o := m.reports(5)
	for i, l := range kept {
		check.Equal(t, o.Status.IPAM.Used[l.IPv4.String()].UID, request(i).Pod.UID, "%v is reported as", l.IPv4)
	}
	check.Equal(t, o.Status.IPAM.Released, []string{"10.0.0.15"}, "released")
	m.operator(releasing())
	m.gets(7, 15)
}
