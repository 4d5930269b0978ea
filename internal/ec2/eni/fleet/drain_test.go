package fleet

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// draining returns a node with some running pods, whose new ENIs from now on get another subnet or
// other security groups.
func draining(t *testing.T, w *world, p ipam.Policy, pods int, change func(*eni.Settings)) *writer {
	t.Helper()
	s := eni.Settings{InstanceType: "m5.xlarge", Policy: p, DrainOutdated: true}
	n := w.operator(w.cloud).set(t, w.objects[0], s)
	n.runFor(pods, 2*minute)
	n.wantPods(t, pods)
	w.cloud.State.AddSubnet("subnet-new", "zone-a", "10.1.0.0/24", nil) // after the others were described
	change(&s)
	n.configure(t, s)
	return n
}

func toNewSubnet(s *eni.Settings) { s.SubnetIDs = []string{"subnet-new"} }

// in returns the number of the operator's ENIs in a subnet, and of their addresses for pods.
func (w *world) in(subnet string) (enis, addresses int) {
	for _, e := range w.attached() {
		if e.SubnetID == subnet {
			enis, addresses = enis+1, addresses+len(e.Addresses)
		}
	}
	return enis, addresses
}

func (w *writer) wantOutdated(t *testing.T, when string, want int) {
	t.Helper()
	check.Equal(t, w.last().Outdated, want, "%s: outdated ENIs", when)
}

// warm is a policy with two free addresses on ENIs other than the primary.
var warm = ipam.Policy{WarmIP: 2, FirstInterfaceIndex: 1}

func TestDrainToAnotherSubnet(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		n := draining(t, w, warm, 5, toNewSubnet)
		pass(30 * time.Second)
		n.wantOutdated(t, "at once", 1)
		if enis, _ := w.in("subnet-new"); enis > 0 {
			t.Error("an ENI is made before the settings have lasted")
		}
		pass(2 * minute)
		if enis, addresses := w.in("subnet-new"); enis != 1 || addresses != 2 {
			t.Errorf("%d ENIs and %d addresses in the new subnet, want the 2 that are warm", enis, addresses)
		}
		if _, addresses := w.in("subnet-home"); addresses != 5 {
			t.Errorf("%d addresses in the old subnet, want those of 5 pods", addresses)
		}
		n.runFor(3, 30*time.Second)
		n.wantPods(t, 8)
		if _, addresses := w.in("subnet-new"); addresses != 5 {
			t.Errorf("%d addresses in the new subnet, want 3 for pods and 2 free", addresses)
		}
		n.endOn(1)
		n.runFor(0, 3*minute)
		n.wantPods(t, 3)
		n.wantOutdated(t, "without pods on it", 0)
		if enis, _ := w.in("subnet-home"); enis > 0 {
			t.Errorf("%d ENIs are left in the old subnet", enis)
		}
	})
}

// If all device indexes are taken, the ENIs are replaced one after the other, and pods that start
// meanwhile get addresses.
func TestRollingDrain(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		n := draining(t, w, warm, 40, toNewSubnet) // on three ENIs of 14
		pass(3 * minute)
		n.wantOutdated(t, "with pods on all", 3)
		for range 25 {
			n.end()
		}
		for range 60 {
			n.end()
			n.runFor(1, 30*time.Second)
			n.wantPods(t, 15)
		}
		for n.last().Outdated > 0 {
			if with, _ := n.pods(); with == 0 {
				t.Fatalf("%d ENIs are outdated and no pod runs", n.last().Outdated)
			}
			n.end()
			n.runFor(0, minute)
		}
		pass(3 * minute)
		if enis, _ := w.in("subnet-home"); enis > 0 {
			t.Errorf("%d ENIs are left in the old subnet", enis)
		}
		if enis, _ := w.in("subnet-new"); enis == 0 {
			t.Error("none is in the new one")
		}
	})
}

func TestDrainToOtherSecurityGroups(t *testing.T) {
	for name, change := range map[string]func(*eni.Settings){
		"by ID":   func(s *eni.Settings) { s.Groups = []string{"sg-b", "sg-a"} },
		"by tags": func(s *eni.Settings) { s.GroupTags = map[string]string{"for": "pods"} },
	} {
		t.Run(name, inBubble(1, func(t *testing.T, w *world) {
			w.cloud.State.AddSecurityGroup("sg-a", map[string]string{"for": "pods"})
			w.cloud.State.AddSecurityGroup("sg-b", map[string]string{"for": "pods"})
			n := draining(t, w, warm, 5, change)
			pass(30 * time.Second)
			n.wantOutdated(t, "at once", 1)
			n.endOn(1)
			n.runFor(2, 5*minute)
			n.wantPods(t, 2)
			n.end()
			n.end()
			n.runFor(0, 5*minute)
			n.wantOutdated(t, "in the end", 0)
			for _, e := range w.attached() {
				if len(e.Groups) != 2 || e.Groups[0] == e.Groups[1] {
					t.Errorf("%s has the groups %v", e.ID, e.Groups)
				}
			}
		}))
	}
}

// Without DrainOutdated, outdated ENIs stay.
func TestOutdatedENIsStayUnlessAsked(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		n := draining(t, w, warm, 5, func(s *eni.Settings) { toNewSubnet(s); s.DrainOutdated = false })
		pass(5 * minute)
		n.runFor(3, 5*minute)
		n.wantPods(t, 8)
		if enis, addresses := w.in("subnet-home"); enis != 1 || addresses != 10 {
			t.Errorf("%d ENIs and %d addresses in the old subnet, want it to have grown", enis, addresses)
		}
	})
}

// If the configured subnet does not exist, no ENI is drained whose pods have nowhere to go, and no pod
// waits that an outdated ENI has room for.
func TestNoDrainToNowhere(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		n := draining(t, w, warm, 5, func(s *eni.Settings) { s.SubnetIDs = []string{"subnet-mistyped"} })
		pass(10 * minute)
		n.endOn(1)
		n.runFor(0, 10*minute)
		if enis, addresses := w.in("subnet-home"); enis != 1 || addresses < 2 {
			t.Errorf("%d ENIs and %d addresses in the old subnet", enis, addresses)
		}
		n.runFor(1, time.Second)
		n.wantPods(t, 1)
		n.runFor(11, minute)
		n.wantPods(t, 12)
	})
}
