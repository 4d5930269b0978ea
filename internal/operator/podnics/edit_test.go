package podnics

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

// What somebody was to change is tried at once when it is another, and what nobody needs
// any more waits for nothing; else the wait after a failure stays.
func TestEdited(t *testing.T) {
	wants := func(group string, over bool) nicplan.Want {
		return nicplan.Want{Device: "d", Network: "n", Addresses: []vpcport.NewAddress{{SubnetID: "s"}}, Groups: []string{group}, Over: over}
	}
	for _, tt := range []struct {
		what   string
		class  vpcport.Class
		want   nicplan.Want
		edited bool
	}{
		{"the same again", vpcport.Invalid, wants("g-1", false), false},
		{"another group", vpcport.Invalid, wants("g-2", false), true},
		{"another group, of one that nothing is wrong with", vpcport.Transient, wants("g-2", false), false},
		{"not needed any more", vpcport.Bug, wants("g-1", true), true},
	} {
		n, now := &nic{}, time.Now()
		n.failed.fail(now, tt.class, errors.New("no"))
		n.learn(job{want: wants("g-1", false)}, answer{err: &vpcport.Error{Class: tt.class}}, now)
		if got := n.edited(tt.want); got != tt.edited {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.edited)
		}
	}
}

// The call for what was edited is made at once.
func TestEditIsNotWaitedFor(t *testing.T) {
	clk := clock.NewFake(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC))
	c := &Controller{o: Options{Clock: clk}, book: newBook(clk, time.Minute), desks: newDesks(clk, func(job, answer) {})}
	o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "u"}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
	var n nic
	c.book.with(o, true, func(known *nic) {
		known.failed.fail(clk.Now(), vpcport.ReferenceGone, errors.New("no group g-1"))
		known.asked = nicplan.Want{Groups: []string{"g-1"}}
		n = *known
	})
	c.book.setListed(o.UID)
	s := &scene{o: o, want: nicplan.Want{Groups: []string{"g-2"}}, limits: nicrequest.Limits{Most: 1}}
	if _, err := c.call(t.Context(), s, n, nicplan.Step{Kind: nicplan.Create}); err != nil {
		t.Fatal(err)
	}
	if d := c.desks.byVPC["a"]; d == nil || len(d.waiting[creates]) != 1 {
		t.Errorf("no call is to be made: %+v", d)
	}
}
