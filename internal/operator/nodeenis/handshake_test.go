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

// handOut repeats a withdrawal until the node hands out addresses.
func handOut(t *testing.T, n *node, id string, addresses int) (out []netip.Prefix) {
	t.Helper()
	await(t, "addresses handed out", func() bool {
		out = n.Withdraw(id, cloud.Amount{Addresses: addresses})
		return len(out) > 0
	})
	return out
}

func TestHandshake(t *testing.T) {
	fl, n := setUp(t, Options{})
	inv := inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"})
	publish(t, n, inv)
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.4"), Released: []string{"10.0.0.3"}}) // left over from an earlier handshake
	awaitUsage(t, n, func(u eni.Usage) bool { return u.ENIs["eni-1"].Used == 1 })
	// Unconfirmed addresses are not handed out. Addresses in use, and addresses confirmed without being
	// asked for, do not become candidates.
	if a := n.Withdraw("eni-1", cloud.Amount{Addresses: 2}); len(a) != 0 {
		t.Fatalf("Withdraw() = %v before the daemon confirmed anything", a)
	}
	until(t, "node-1", "candidates", releasing("10.0.0.1", "10.0.0.2"))
	kicks := fl.called("Kick")
	// A pod takes one of them before the daemon sees the list.
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.4", "10.0.0.2"), Released: []string{"10.0.0.1"}})
	await(t, "Kick called", func() bool { return fl.called("Kick") > kicks })
	got := handOut(t, n, "eni-1", 2)
	if d := cmp.Diff([]netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}, got, compareAddrs); d != "" {
		t.Fatal(d)
	}
	harness.OK(t, controllers.Same("free addresses, not counting those handed out", n.Usage().ENIs["eni-1"].Free.Addresses, 1))
	inv.Releasing = []eni.Release{{Prefix: got[0], ENI: "eni-1", Since: time.Now()}}
	publish(t, n, inv)
	n.Reconciled(eni.Status{Confirmed: true})

	// After a failover, the address is still being released.
	fl.end()
	fl, n = play(t, Options{})
	if r := fl.seed().Releasing; len(r) != 1 || r[0].Prefix != got[0] || r[0].ENI != "eni-1" {
		t.Fatalf("seed.Releasing = %+v, want the address handed out", r)
	}
	publish(t, n, inv)
	until(t, "node-1", "address still being released", releasing("10.0.0.1"))
	harness.OK(t, unassigning("10.0.0.1")(get(t, "node-1")))
	// A marked address is never returned to the daemon; the release ends when the address is unassigned.
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
	// eni-2's primary address serves pods as well.
	publish(t, n, inventory([]string{"10.0.0.1"}, []string{"10.0.0.2", "10.0.255.12", "10.0.0.32/28"}))
	if a := n.Withdraw("eni-2", cloud.Amount{Addresses: 2}); len(a) != 0 {
		t.Fatal(a)
	}
	until(t, "node-1", "candidates without the primary address", releasing("10.0.0.2"))
	if n.WithdrawENI("eni-2") {
		t.Fatal("WithdrawENI() = true before the daemon confirmed anything")
	}
	o := until(t, "node-1", "all addresses of the ENI being released", releasing("10.0.0.2", "10.0.255.12", "10.0.0.32/28"))
	report(t, "node-1", v1alpha1.IPAMStatus{Released: o.Spec.IPAM.Releasing[:2]})
	if n.WithdrawENI("eni-2") {
		t.Fatal("WithdrawENI() = true before the daemon confirmed all addresses")
	}
	report(t, "node-1", v1alpha1.IPAMStatus{Released: o.Spec.IPAM.Releasing})
	await(t, "withdrawn", func() bool { return n.WithdrawENI("eni-2") })
	leaving := inventory([]string{"10.0.0.1"})
	leaving.Leaving = []eni.Leave{{ENI: "eni-2", Attached: true}}
	publish(t, n, leaving)
	o = get(t, "node-1")
	harness.OK(t, errors.Join(available("10.0.0.1")(o), releasing()(o), unassigning("eni-2")(o)))
	// It is still attached, and another operator may be about to detach it.
	publish(t, n, inventory([]string{"10.0.0.1"}, []string{"10.0.0.2", "10.0.255.12", "10.0.0.32/28"}))
	o = get(t, "node-1")
	harness.OK(t, errors.Join(available("10.0.0.1")(o), releasing()(o), unassigning("eni-2")(o)))
	if c := n.Committed(); len(c) != 1 || c[0].ENI != "eni-2" || c[0].Prefix.IsValid() || !n.WithdrawENI("eni-2") {
		t.Errorf("Committed() = %+v, want eni-2", c)
	}
	// It was detached, and another ENI with the same ID was attached.
	publish(t, n, inventory([]string{"10.0.0.1"}))
	publish(t, n, inventory([]string{"10.0.0.1"}, []string{"10.0.0.2", "10.0.255.12", "10.0.0.32/28"}))
	o = get(t, "node-1")
	harness.OK(t, available("10.0.0.1", "10.0.0.2", "10.0.255.12", "10.0.0.32/28")(o))
	harness.OK(t, releasing()(o))
}

// Candidates that pods need, or that the fleet no longer asks for, are returned to the daemon.
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
	n.Reconciled(eni.Status{Confirmed: true}) // a pass that did not ask again
	harness.OK(t, releasing("10.0.0.2", "10.0.0.3", "10.0.0.16/28")(get(t, "node-1")))
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.1"), Waiting: 1})
	awaitUsage(t, n, func(u eni.Usage) bool { return u.Waiting == 1 })
	n.Reconciled(eni.Status{Confirmed: true})
	until(t, "node-1", "no addresses being released", releasing())
}

// confirm publishes an inventory, begins to release an address, and returns once the node has seen the
// daemon's confirmation.
func confirm(t *testing.T, n *node, inv eni.Inventory, address string) {
	t.Helper()
	publish(t, n, inv)
	n.Withdraw("eni-1", cloud.Amount{Addresses: 1})
	until(t, "node-1", "address being released", releasing(address))
	report(t, "node-1", v1alpha1.IPAMStatus{Released: []string{address}})
	await(t, "confirmed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return confirmed(n.state.obj, netip.MustParsePrefix(address+"/32"))
	})
}

// If an operator is stopped right before its EC2 call and another one takes over, the marked address is
// not returned to the daemon, whatever pods need and the new fleet decides; nor is an ENI that is to be
// detached.
func TestMarkOutlivesItsOperator(t *testing.T) {
	older, stopped := setUp(t, Options{})
	inv := inventory([]string{"10.0.0.1", "10.0.0.2"})
	confirm(t, stopped, inv, "10.0.0.2")
	got := handOut(t, stopped, "eni-1", 1)
	handed := inv
	handed.Releasing = []eni.Release{{Prefix: got[0], ENI: "eni-1", Since: time.Now()}}
	publish(t, stopped, handed)
	older.end() // its next step, at any time, is the EC2 call

	_, n := play(t, Options{})
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.1"), Waiting: 3, Released: []string{"10.0.0.2"}})
	publish(t, n, inv)
	n.RestoreWithdrawn(got)
	n.Reconciled(eni.Status{Confirmed: true, Needed: 3})
	publish(t, n, inv)
	o := get(t, "node-1")
	harness.OK(t, errors.Join(releasing("10.0.0.2")(o), unassigning("10.0.0.2")(o)))
	harness.Eventually(t, controllers.Limit, "address committed to be unassigned", func() error {
		if c := n.Committed(); len(c) != 1 || c[0].Prefix != got[0] || c[0].ENI != "eni-1" {
			return fmt.Errorf("Committed() = %+v, want the marked address", c)
		}
		return nil
	})
}

// An operator that was suspended after an address was confirmed must not unassign the address: another
// operator may have returned it to the daemon.
func TestStaleReleaseIsRejected(t *testing.T) {
	older, sleeper := setUp(t, Options{})
	inv := inventory([]string{"10.0.0.1", "10.0.0.2"})
	confirm(t, sleeper, inv, "10.0.0.2")
	older.end()
	_, n := play(t, Options{})
	publish(t, n, inv)
	for range 2 { // passes that do not ask for the address
		n.Reconciled(eni.Status{Confirmed: true, Needed: 1})
	}
	until(t, "node-1", "restored", releasing())
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used("10.0.0.2")})

	got := sleeper.Withdraw("eni-1", cloud.Amount{Addresses: 1})
	if len(got) != 1 {
		t.Fatalf("Withdraw() = %v, want one address", got)
	}
	inv.Releasing = []eni.Release{{Prefix: got[0], ENI: "eni-1", Since: time.Now()}}
	rejected(t, sleeper, inv, errForeign) // a pod uses the address now
	harness.OK(t, errors.Join(releasing()(get(t, "node-1")), unassigning()(get(t, "node-1"))))
}

// An ENI that was to be detached stays if the daemon has started to use one of its addresses again. So
// does the mark of an address that EC2 may have been asked to unassign.
func TestMarkOfKeptENI(t *testing.T) {
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
	got := s.desiredIPAM(s.fleet.unmarked(s.obj))
	if len(got.Available) != 2 || !slices.Equal(got.Releasing, []string{"10.0.0.2"}) || !slices.Equal(got.Unassigning, []string{"10.0.0.2"}) {
		t.Errorf("desiredIPAM() = %+v, want both addresses available and 10.0.0.2 marked", got)
	}
}
