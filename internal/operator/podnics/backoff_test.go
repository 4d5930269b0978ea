package podnics

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

// A failure that all NICs of a scope would meet holds them up. After the wait one tries for all, and its
// success resumes the others.
func TestBackoffs(t *testing.T) {
	clk := clock.NewFake(time.Unix(10_000, 0))
	b := newBackoffs(clk)
	nics := map[types.UID]*nic{}
	for _, uid := range []types.UID{"a", "b", "c"} {
		nics[uid] = &nic{key: types.NamespacedName{Name: string(uid)}, vpc: "blue"}
	}
	inSubnet := func(id string) nicplan.Desired {
		return nicplan.Desired{Port: vpcport.NewPort{Addresses: []vpcport.NewAddress{{SubnetID: id}}}}
	}
	full := inSubnet("full")
	pass := func(uid types.UID, d nicplan.Desired, k nicplan.Kind, want bool) {
		t.Helper()
		if failed, ok := b.pass(uid, nics[uid], d, k); ok != want || !ok && !failed.Until.After(clk.Now()) {
			t.Errorf("%s may call: %v until %v, want %v", uid, ok, failed.Until, want)
		}
	}
	ended := func(uid types.UID, class vpcport.Class, want ...string) {
		t.Helper()
		var err error
		if class != vpcport.Unknown {
			err = &vpcport.Error{Class: class}
		}
		resumed := map[string]bool{}
		for _, w := range b.ended(uid, nics[uid], full, nicplan.Create, err) {
			resumed[w.key.Name] = true
		}
		if len(resumed) != len(want) {
			t.Errorf("after the call of %s are resumed %v, want %v", uid, resumed, want)
		}
		for _, name := range want {
			if !resumed[name] {
				t.Errorf("after the call of %s %s is not resumed", uid, name)
			}
		}
	}
	ended("a", vpcport.SubnetFull)
	pass("b", full, nicplan.Create, false)
	pass("b", inSubnet("other"), nicplan.Create, true)
	pass("b", full, nicplan.Look, true)
	clk.Advance(time.Minute)
	pass("a", full, nicplan.Create, true)
	pass("b", full, nicplan.Create, false) // a tries for all
	pass("c", full, nicplan.Create, false)
	ended("a", vpcport.SubnetFull)
	if f := nics["a"].attempts.Failed; f.Times != 2 || !f.Until.After(clk.Now()) {
		t.Errorf("after the second failure: %+v", f)
	}
	clk.Advance(time.Minute)
	pass("b", full, nicplan.Create, true)
	pass("a", full, nicplan.Create, false)
	b.forget("b", nics["b"].key) // it does not try any more
	pass("c", full, nicplan.Create, true)
	ended("c", vpcport.Unknown, "a")
	pass("a", full, nicplan.Create, true)

	// A failure of the credentials holds up all calls of the VPC; a port that is deleted does not end that.
	ended("a", vpcport.Unauthorized)
	pass("c", full, nicplan.Look, false)
	ended("b", vpcport.OverQuota)
	if resumed := b.room("blue"); len(resumed) != 1 || resumed[0].class != vpcport.OverQuota {
		t.Errorf("a deleted port resumes %+v", resumed)
	}
	if resumed := b.open("blue"); len(resumed) != 2 || len(b.of) != 0 {
		t.Errorf("another provider resumes %+v", resumed)
	}
}
