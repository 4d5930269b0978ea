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
)

// Whoever waits in vain is told what is wrong nearest to the node.
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
		"first second":    {func(s *observed) { s.object = nil; s.mirror.Sync.SetListed(false, resource) }, "starting", "has not told yet"},
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
