package podnics

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// The call for what was edited is made at once.
func TestEditIsNotWaitedFor(t *testing.T) {
	clk := clock.NewFake(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC))
	states := newNICStates(clk, time.Minute, func(types.NamespacedName) {})
	r := &nicReconciler{o: Options{Clock: clk}, watch: &observer{o: Options{Clock: clk}, states: states}, states: states, calls: newBatcher(clk, func(call, nicplan.Reply) {})}
	o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "u"}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
	desired := func(group string) nicplan.Desired {
		return nicplan.Desired{Port: vpcport.NewPort{NetworkID: "n-1", Groups: []string{group}}}
	}
	var n nic
	states.with(o, true, func(known *nic) {
		fail(&known.attempts.Failed, clk.Now(), vpcport.ReferenceGone, errors.New("no group g-1"))
		known.attempts.Asked = desired("g-1")
		known.observed.Unclear, known.observed.Looked = false, true
		n = *known
	})
	states.quotas.setComplete(o.UID)
	s := &observation{o: o, opened: Opened{Provider: portfake.New(portfake.Options{})}, desired: desired("g-2"), limits: nicrequest.Limits{Most: 1}}
	if _, err := r.act(t.Context(), s, n); err != nil {
		t.Fatal(err)
	}
	if b := r.calls.byVPC["a"]; b == nil || len(b.waiting[creates]) != 1 {
		t.Errorf("no call is to be made: %+v", b)
	}
}
