package nodenetworksupplier

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
)

// Waiting pods are told the trouble nearest to the node.
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
		"all well":    {func(*observed) {}, "growing", "is berth-operator running?"},
		"told before": {func(s *observed) { s.reportedAt = s.cfg.Clock.Now() }, "growing", "the operator was told 0s ago"},
		"no API":      {func(s *observed) { s.heard(errors.New("connection refused")) }, "unreachable", "connection refused"},
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
			if healthy := tt.reason == "growing" || tt.reason == "eni-limit"; healthy != (s.lastError() == "") {
				t.Errorf("last error: %q", s.lastError())
			}
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
	m.until("a pod too many is told why it has to wait", func() bool {
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
		if u := o.Status.IPAM.Used[l.IPv4.String()]; u.UID != request(i).Pod.UID {
			t.Errorf("%v is reported as %+v", l.IPv4, u)
		}
	}
	check.Equal(t, o.Status.IPAM.Released, []string{"10.0.0.15"}, "released")
	m.operator(releasing())
	m.gets(7, 15)
}
