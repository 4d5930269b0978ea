package nodeenis

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

var compareAddrs = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// handOut asks until the node hands something out.
func handOut(t *testing.T, n *node, id string, addresses int) (out []netip.Prefix) {
	t.Helper()
	await(t, "something is handed out", func() bool {
		out = n.Withdraw(id, cloud.Amount{Addresses: addresses})
		return len(out) > 0
	})
	return out
}

func TestHandshake(t *testing.T) {
	fl, n := setUp(t, Options{})
	inv := inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"})
	publish(t, n, inv)
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.4"), Released: []string{"10.0.0.3"}}) // that of an older round
	awaitUsage(t, n, func(u eni.Usage) bool { return u.ENIs["eni-1"].Used == 1 })
	// Nothing is handed out that is not confirmed, nor is what is used, or
	// confirmed by accident, asked for.
	if a := n.Withdraw("eni-1", cloud.Amount{Addresses: 2}); len(a) != 0 {
		t.Fatalf("handed out unconfirmed: %v", a)
	}
	until(t, "node-1", "candidates", releasing("10.0.0.1", "10.0.0.2"))
	kicks := fl.called("Kick")
	// A pod takes one of them before the daemon sees the list.
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.4", "10.0.0.2"), Released: []string{"10.0.0.1"}})
	await(t, "a kick", func() bool { return fl.called("Kick") > kicks })
	got := handOut(t, n, "eni-1", 2)
	if d := cmp.Diff([]netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}, got, compareAddrs); d != "" {
		t.Fatal(d)
	}
	harness.OK(t, controllers.Same("free addresses without those that were handed out", n.Usage().ENIs["eni-1"].Free.Addresses, 1))
	inv.Releasing = []eni.Release{{Prefix: got[0], ENI: "eni-1", Since: time.Now()}}
	publish(t, n, inv)
	n.Reconciled(eni.Status{Confirmed: true})

	// A failover in between: it is on its way back still.
	fl.end()
	fl, n = play(t, Options{})
	if r := fl.seed().Releasing; len(r) != 1 || r[0].Prefix != got[0] || r[0].ENI != "eni-1" {
		t.Fatalf("seed has %+v on its way back", r)
	}
	publish(t, n, inv)
	until(t, "node-1", "still on its way", releasing("10.0.0.1"))
	harness.OK(t, unassigning("10.0.0.1")(get(t, "node-1")))
	// Nobody takes that back; it is over when the address is gone.
	inv.Releasing = nil
	n.RestoreWithdrawn(got)
	publish(t, n, inv)
	harness.OK(t, errors.Join(releasing("10.0.0.1")(get(t, "node-1")), unassigning("10.0.0.1")(get(t, "node-1"))))
	publish(t, n, inventory([]string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}))
	o := get(t, "node-1")
	harness.OK(t, errors.Join(available("10.0.0.2", "10.0.0.3", "10.0.0.4")(o), releasing()(o), unassigning()(o)))
}

func TestWithdrawENI(t *testing.T) {
	harness.KubeClean(t)
	create(t, "node-1", func(o *v1alpha1.NodeNetwork) { o.Spec.ENI.UsePrimaryAddress = new(true) })
	_, n := play(t, Options{})
	// eni-2's own address serves pods, too.
	publish(t, n, inventory([]string{"10.0.0.1"}, []string{"10.0.0.2", "10.0.255.12", "10.0.0.32/28"}))
	if a := n.Withdraw("eni-2", cloud.Amount{Addresses: 2}); len(a) != 0 {
		t.Fatal(a)
	}
	until(t, "node-1", "the own address is no candidate by itself", releasing("10.0.0.2"))
	if n.WithdrawENI("eni-2") {
		t.Fatal("withdrawn without the daemon")
	}
	o := until(t, "node-1", "the whole ENI", releasing("10.0.0.2", "10.0.255.12", "10.0.0.32/28"))
	report(t, "node-1", v1alpha1.IPAMStatus{Released: o.Spec.IPAM.Releasing[:2]})
	if n.WithdrawENI("eni-2") {
		t.Fatal("withdrawn though not all is confirmed")
	}
	report(t, "node-1", v1alpha1.IPAMStatus{Released: o.Spec.IPAM.Releasing})
	await(t, "withdrawn", func() bool { return n.WithdrawENI("eni-2") })
	leaving := inventory([]string{"10.0.0.1"})
	leaving.Leaving = []eni.Leave{{ENI: "eni-2", Attached: true}}
	publish(t, n, leaving)
	o = get(t, "node-1")
	harness.OK(t, errors.Join(available("10.0.0.1")(o), releasing()(o), unassigning("eni-2")(o)))
	// It is there still, and somebody may be about to detach it.
	publish(t, n, inventory([]string{"10.0.0.1"}, []string{"10.0.0.2", "10.0.255.12", "10.0.0.32/28"}))
	o = get(t, "node-1")
	harness.OK(t, errors.Join(available("10.0.0.1")(o), releasing()(o), unassigning("eni-2")(o)))
	if c := n.Committed(); len(c) != 1 || c[0].ENI != "eni-2" || c[0].Prefix.IsValid() || !n.WithdrawENI("eni-2") {
		t.Errorf("committed: %+v", c)
	}
	// It was detached, and another came.
	publish(t, n, inventory([]string{"10.0.0.1"}))
	publish(t, n, inventory([]string{"10.0.0.1"}, []string{"10.0.0.2", "10.0.255.12", "10.0.0.32/28"}))
	o = get(t, "node-1")
	harness.OK(t, available("10.0.0.1", "10.0.0.2", "10.0.255.12", "10.0.0.32/28")(o))
	harness.OK(t, releasing()(o))
}

// Candidates that pods need, or that nobody asks for, are the daemon's again.
func TestUnneededCandidatesAreCanceled(t *testing.T) {
	harness.KubeClean(t)
	create(t, "node-1", func(o *v1alpha1.NodeNetwork) { o.Spec.ENI.PreAllocate = new(int32) })
	_, n := play(t, Options{})
	publish(t, n, inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, []string{"10.0.0.16/28"}))
	n.Reconciled(eni.Status{Confirmed: true})
	n.Withdraw("eni-1", cloud.Amount{Addresses: 2})
	n.Withdraw("eni-2", cloud.Amount{Prefixes: 1})
	n.Reconciled(eni.Status{Confirmed: true})
	until(t, "node-1", "candidates", releasing("10.0.0.2", "10.0.0.3", "10.0.0.16/28"))
	n.Reconciled(eni.Status{Confirmed: true}) // a pass that could not ask
	harness.OK(t, releasing("10.0.0.2", "10.0.0.3", "10.0.0.16/28")(get(t, "node-1")))
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.1"), Waiting: 1})
	awaitUsage(t, n, func(u eni.Usage) bool { return u.Waiting == 1 })
	n.Reconciled(eni.Status{Confirmed: true})
	until(t, "node-1", "nothing on its way back", releasing())
}

// confirm has a node publish an inventory and begin to take an address back, and
// returns once it has seen that the daemon confirms that.
func confirm(t *testing.T, n *node, inv eni.Inventory, address string) {
	t.Helper()
	publish(t, n, inv)
	n.Withdraw("eni-1", cloud.Amount{Addresses: 1})
	until(t, "node-1", "a candidate", releasing(address))
	report(t, "node-1", v1alpha1.IPAMStatus{Released: []string{address}})
	await(t, "confirmed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return confirmed(n.state.obj, netip.MustParsePrefix(address+"/32"))
	})
}

// An operator that was stopped right before its call to EC2 goes on when another
// works for the node: that one does not give the address back to the daemon, nor
// an ENI that is to be detached, whatever pods need and its own fleet thinks of it.
func TestMarkOutlivesItsOperator(t *testing.T) {
	older, stopped := setUp(t, Options{})
	inv := inventory([]string{"10.0.0.1", "10.0.0.2"})
	confirm(t, stopped, inv, "10.0.0.2")
	got := handOut(t, stopped, "eni-1", 1)
	handed := inv
	handed.Releasing = []eni.Release{{Prefix: got[0], ENI: "eni-1", Since: time.Now()}}
	publish(t, stopped, handed)
	older.end() // EC2 is asked next, whenever that is

	_, n := play(t, Options{})
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.1"), Waiting: 3, Released: []string{"10.0.0.2"}})
	publish(t, n, inv)
	n.RestoreWithdrawn(got)
	n.Reconciled(eni.Status{Confirmed: true, Needed: 3})
	publish(t, n, inv)
	o := get(t, "node-1")
	harness.OK(t, errors.Join(releasing("10.0.0.2")(o), unassigning("10.0.0.2")(o)))
	harness.Eventually(t, controllers.Limit, "it goes on to unassign it", func() error {
		if c := n.Committed(); len(c) != 1 || c[0].Prefix != got[0] || c[0].ENI != "eni-1" {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// What an operator that slept was handed, another may have given back to the
// daemon meanwhile: it must not be unassigned.
func TestHandedOutOnAnOldState(t *testing.T) {
	older, sleeper := setUp(t, Options{})
	inv := inventory([]string{"10.0.0.1", "10.0.0.2"})
	confirm(t, sleeper, inv, "10.0.0.2")
	older.end()
	_, n := play(t, Options{})
	publish(t, n, inv)
	for range 2 { // passes that did not ask for it
		n.Reconciled(eni.Status{Confirmed: true, Needed: 1})
	}
	until(t, "node-1", "restored", releasing())
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.2")})

	got := sleeper.Withdraw("eni-1", cloud.Amount{Addresses: 1})
	if len(got) != 1 {
		t.Fatalf("handed out %v; the test needs one", got)
	}
	inv.Releasing = []eni.Release{{Prefix: got[0], ENI: "eni-1", Since: time.Now()}}
	rejected(t, sleeper, inv, errForeign) // a pod has it by now
	harness.OK(t, errors.Join(releasing()(get(t, "node-1")), unassigning()(get(t, "node-1"))))
}

// An ENI that was to be detached, and of which the daemon took something back
// meanwhile, stays as it is, the mark of an address that EC2 was asked for included.
func TestMarkOfAnENIThatStays(t *testing.T) {
	s := &alone(newScript()).state
	s.obj.Spec.IPAM = v1alpha1.IPAMSpec{
		Available:   map[string]v1alpha1.AvailableAddress{"10.0.0.1": {Resource: "eni-2"}, "10.0.0.2": {Resource: "eni-2"}},
		Releasing:   []string{"10.0.0.2"},
		Unassigning: []string{"10.0.0.2"},
	}
	s.obj.Status.IPAM.Released = []string{"10.0.0.2"}
	leaving := inventory()
	leaving.Leaving = []eni.Leave{{ENI: "eni-2", Attached: true}}
	s.setInventory(&leaving)
	got := s.desiredIPAM()
	if len(got.Available) != 2 || !slices.Equal(got.Releasing, []string{"10.0.0.2"}) || !slices.Equal(got.Unassigning, []string{"10.0.0.2"}) {
		t.Errorf("got %+v", got)
	}
}
