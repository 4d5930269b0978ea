package enisource

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/check"
)

// secondary returns the ENI at a device index, as EC2 has it.
func (n *node) secondary(at int) cloud.ENI {
	n.t.Helper()
	for _, e := range n.cloud.State.Truth() {
		if e.Attachment != nil && e.Attachment.DeviceIndex == at {
			return e
		}
	}
	n.t.Fatalf("no ENI has device index %d: %s", at, n.layout())
	return cloud.ENI{}
}

// detach detaches an ENI as someone else would.
func (n *node) detach(e cloud.ENI) {
	n.t.Helper()
	if err := n.cloud.DetachENI(n.t.Context(), e.Attachment.ID); err != nil {
		n.t.Fatal(err)
	}
	n.links.lose(e.ID)
}

// attached waits until EC2 has an ENI attached, for a limited time.
func (n *node) attached(id string, most time.Duration) {
	n.t.Helper()
	for end := time.Now().Add(most); ; n.settle(50 * time.Millisecond) {
		for _, e := range n.cloud.State.Truth() {
			if e.ID == id && e.Attachment != nil && e.Attachment.Status == "attached" {
				return
			}
		}
		if time.Now().After(end) {
			n.t.Fatalf("%s is not attached after %v", id, most)
		}
	}
}

// healthy reports whether a condition exists and is healthy.
func (n *node) healthy(kind string) bool {
	n.t.Helper()
	for _, c := range n.Snapshot().Conditions {
		if c.Type == kind {
			return c.Healthy
		}
	}
	n.t.Fatalf("there is no condition %s", kind)
	return false
}

// wantNotified checks the notifications of pods since the last call.
func (n *node) wantNotified(want ...string) {
	n.t.Helper()
	if got := n.takeNotified(true); !slices.Equal(got, want) {
		n.t.Errorf("notified %q, want %q", got, want)
	}
}

// takeNotified returns the notifications of pods since they were last cleared, sorted, and may clear it.
func (n *node) takeNotified(forget bool) []string {
	synctest.Wait() // a notification may be on its way
	n.notifiedMu.Lock()
	defer n.notifiedMu.Unlock()
	list := slices.Sorted(slices.Values(n.notified))
	if forget {
		n.notified = nil
	}
	return list
}

// An ENI that someone detaches is attached again at once, and no pod gets its addresses meanwhile.
// Running pods keep theirs, and are notified.
func TestENIDetachedByOthers(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for lag, age := range map[time.Duration]time.Duration{0: 20 * time.Second, 3 * time.Second: 5 * time.Minute} {
			t.Run(fmt.Sprintf("restart=%v/lag=%v/age=%v", restart, lag, age), inBubble("m5.xlarge", ipam.Policy{WarmIP: 3, FirstInterfaceIndex: 1}, func(t *testing.T, n *node) {
				n.cloud.State.SetLag(lag)
				n.cloud.State.SetAttachTime(time.Second)
				n.start()
				n.addAll(0, 2, 45*time.Second)
				n.settle(age) // replies outrank listings for a minute
				e := n.secondary(1)
				n.cloud.Front.ResetCalls()
				if restart {
					n.kill()
				}
				n.detach(e)
				if restart {
					n.start()
				} else {
					n.Kick()
				}
				n.settle(time.Millisecond)
				for _, g := range n.addresses.alloc.Groups() {
					if g.ID == e.ID && g.Ready {
						t.Error("addresses of an ENI without a link can be handed out")
					}
				}
				if !restart {
					if !n.healthy(conditionLinks) || !slices.Equal(n.MissingLinks(), []string{e.ID}) {
						t.Errorf("reported too soon, or not to the supplier: %v", n.MissingLinks())
					}
					n.wantNotified()
				}
				n.attached(e.ID, 2*lag+5*time.Second)
				check.Equal(t, n.cloud.Front.Count("DeleteENI"), 0, "deletions of ENIs of which pods have addresses")
				n.settle(time.Millisecond)
				if slices.Contains(n.takeNotified(false), "pod0") {
					t.Error("a pod was notified that the ENI is back before its link was")
				}
				n.links.appear(e.ID)
				n.Kick()
				n.settle(time.Millisecond)
				if free, _ := n.Room(); free < 3 || !n.healthy(conditionLinks) {
					t.Errorf("its link is back, and %d addresses are free: %+v", free, n.Snapshot().Conditions)
				}
				// It may be back before pods are notified that it is gone.
				got := n.takeNotified(false)
				if gone := slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "pod0 ") }); gone && !slices.Contains(got, "pod0") {
					t.Errorf("pods were not notified that the ENI is back: %q", got)
				}
				n.addAll(2, 6, 45*time.Second)
				n.settle(5 * time.Minute)
				n.check()
			}))
		}
	}
}

// A link is gone while EC2 has its ENI attached, for example after it was moved to another network
// namespace: the ENI's addresses are no supply, and the ENI is left alone.
func TestLinkMovedAway(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 3, FirstInterfaceIndex: 1}, func(t *testing.T, n *node) {
		n.start()
		n.addAll(0, 2, 45*time.Second)
		n.settle(5 * time.Minute)
		e := n.secondary(1)
		n.cloud.Front.ResetCalls()
		n.links.lose(e.ID)
		n.Kick()
		n.settle(4 * time.Second)
		n.wantLayout("0,5") // a driver that starts again takes as long
		n.wantNotified()
		n.settle(3 * time.Second)
		n.wantLayout("0,5,3")
		l := n.add(2, time.Second)
		if l.ENI == e.ID {
			t.Errorf("a pod got %v of an ENI without a link", l.IPv4)
		}
		n.settle(10 * time.Minute)
		check.AtMost(t, n.cloud.Front.Count("ENIs"), 45, "listings in ten minutes")
		check.Equal(t, n.cloud.Front.Count("DetachENI", "UnassignAddresses"), 0, "changes of the ENI without a link")
		n.links.appear(e.ID)
		n.Kick()
		n.settle(time.Millisecond)
		if len(n.MissingLinks()) > 0 || !n.healthy(conditionLinks) {
			t.Errorf("its link is back, and reported as missing: %v", n.MissingLinks())
		}
		n.wantNotified("pod0", "pod0 "+causeNoLink, "pod1", "pod1 "+causeNoLink)
		n.settle(10 * time.Minute)
		n.wantLayout("0,5,1")
		n.check()
	})
}

// A driver that restarts removes its link for a moment: the new link is set up like the old one at
// once, and no addresses are asked for in its place.
func TestLinkReplaced(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 3, FirstInterfaceIndex: 1}, func(t *testing.T, n *node) {
		n.start()
		n.addAll(0, 2, 45*time.Second)
		n.settle(5 * time.Minute)
		e := n.secondary(1)
		for _, away := range []time.Duration{0, time.Second} {
			n.cloud.Front.ResetCalls()
			if away > 0 {
				n.links.lose(e.ID)
				n.Kick()
				n.settle(away)
			}
			delete(n.links.set, e.ID)
			n.links.appear(e.ID)
			n.Kick()
			n.settle(time.Millisecond)
			if _, ok := n.links.set[e.ID]; !ok || len(n.MissingLinks()) > 0 {
				t.Errorf("away for %v: the new link is not set up", away)
			}
			if free, _ := n.Room(); free != 3 {
				t.Errorf("away for %v: %d addresses are free", away, free)
			}
			if !n.healthy(conditionLinks) {
				t.Errorf("away for %v: the condition reports it", away)
			}
			n.wantNotified()
			n.settle(time.Minute)
			n.wantNotified()
			check.Equal(t, n.cloud.Front.Count(changes...), 0, "away for %v: changes at EC2: %+v", away, n.cloud.Front.Calls())
		}
		n.check()
	})
}

// If EC2 takes an address of a running pod, the pod is notified, and no other pod gets the address.
func TestAddressOfARunningPodUnassigned(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 3, FirstInterfaceIndex: 1}, func(t *testing.T, n *node) {
		n.start()
		l := n.add(0, 45*time.Second)
		n.add(1, 45*time.Second)
		n.settle(5 * time.Minute)
		if !n.healthy(conditionAddresses) {
			t.Error("reported without a reason")
		}
		check.OK(t, n.cloud.UnassignAddresses(t.Context(), l.ENI, cloud.HostPrefixes(l.Addrs())))
		n.settle(2 * time.Minute)
		n.wantNotified("pod0 " + causeUnassigned)
		if n.healthy(conditionAddresses) || !n.healthy(conditionLinks) {
			t.Errorf("conditions: %+v", n.Snapshot().Conditions)
		}
		check.Equal(t, n.Snapshot().Detail.(detail).cutOff[causeUnassigned], 1, "pods are counted as cut off")
		n.del(0)
		n.settle(time.Minute)
		if !n.healthy(conditionAddresses) {
			t.Error("reported after the pod has gone")
		}
		n.wantNotified()
		n.check()
	})
}

// The link of an ENI that was just attached does not count as missing at first, and does later.
func TestLinkThatDoesNotAppear(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 3, FirstInterfaceIndex: 1}, func(t *testing.T, n *node) {
		n.links.auto = false
		n.startAndSettle(20 * time.Second)
		if !n.healthy(conditionLinks) {
			t.Error("reported too soon")
		}
		n.settle(40 * time.Second)
		if n.healthy(conditionLinks) {
			t.Error("not reported after a minute")
		}
		if why := n.fails(0, time.Second, "not-ready"); !strings.Contains(why.Error(), source.ErrNoLink.Error()) {
			t.Errorf("a pod waits for %v", why)
		}
	})
}
