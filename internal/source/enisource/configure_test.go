package enisource

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/test/harness/check"
)

// settingsOf returns the settings of a node, with changes.
func (n *node) settingsOf(change func(*eni.Settings)) eni.Settings {
	s := eni.Settings{Policy: n.policy}
	change(&s)
	return s
}

// inPods puts ENIs into subnet-2, and leaves eth0 to the node.
func inPods(s *eni.Settings) { s.SubnetIDs, s.Policy.FirstInterfaceIndex = []string{"subnet-2"}, 1 }

// document returns what introspection shows.
func (n *node) document() (doc introspect.Document) {
	s := n.Snapshot()
	s.Detail.Describe(&doc)
	doc.LastError = s.LastError
	return doc
}

// furtherSubnets returns the subnets of the ENIs of the node other than eth0.
func (n *node) furtherSubnets() (ids []string) {
	for _, e := range n.cloud.State.Truth() {
		if e.Attachment != nil && e.Attachment.DeviceIndex > 0 {
			ids = append(ids, e.SubnetID)
		}
	}
	slices.Sort(ids)
	return ids
}

// addIn starts a pod, which must get an address of a block.
func (n *node) addIn(i int, block string) {
	n.t.Helper()
	if l := n.add(i, time.Minute); !netip.MustParsePrefix(block).Contains(l.IPv4) {
		n.t.Errorf("pod %d has %v, want one of %s", i, l.IPv4, block)
	}
}

// templated returns a node that has a second subnet for pods.
func templated(t *testing.T, p ipam.Policy) *node {
	n := newNode(t, "m5.large", p)
	n.cloud.State.AddSubnet("subnet-2", "zone-a", "100.64.0.0/20", nil)
	return n
}

// Settings are applied while the daemon runs: new ENIs are in another subnet, and eth0's addresses are
// the node's. Applying the old ones undoes that.
func TestOtherSettingsCountAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmIP: 2})
		n.startAndSettle(time.Minute)
		n.addIn(1, "10.0.0.0/8")
		n.Configure(Desired{Template: "NodeNetworkTemplate/pods", Settings: n.settingsOf(inPods)})
		n.settle(2 * time.Minute)
		check.Equal(t, n.furtherSubnets(), []string{"subnet-2"}, "the subnets of ENIs")
		n.addIn(2, "100.64.0.0/16")
		check.Equal(t, n.document().Template, "NodeNetworkTemplate/pods", "the template is")
		n.del(2)
		n.Configure(Desired{Settings: n.settingsOf(func(*eni.Settings) {})})
		n.settle(10 * time.Minute)
		n.addIn(3, "10.0.0.0/8")
		if doc := n.document(); doc.Template != "" || doc.LastError != "" {
			t.Errorf("the template is %q, the trouble %q", doc.Template, doc.LastError)
		}
	})
}

// eth0 is the node's at once, also while EC2 refuses other ENIs.
func TestFirstInterfaceIndexCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmIP: 2})
		n.startAndSettle(time.Minute)
		n.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1000, Err: cloudfake.Err(cloud.Permission, "")})
		n.Configure(Desired{Template: "NodeNetworkTemplate/pods", Settings: n.settingsOf(inPods)})
		n.settle(time.Second)
		if e := n.document().ENIs; len(e) == 0 || e[0].Ready {
			t.Errorf("eth0 is for pods: %+v", e)
		}
	})
}

// Settings that are given before the first pass apply to the first ENI.
func TestSettingsBeforeTheFirstPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmENI: 1})
		n.startConfigured(Desired{Template: "NodeNetworkTemplate/pods", Settings: n.settingsOf(inPods)})
		n.settle(2 * time.Minute)
		if got := n.furtherSubnets(); len(got) == 0 || slices.Contains(got, "subnet-1") {
			t.Errorf("ENIs are in %v", got)
		}
		if e := n.document().ENIs; len(e) == 0 || e[0].Ready {
			t.Errorf("eth0 is for pods: %+v", e)
		}
	})
}

// Settings that are invalid, or that this instance cannot have, change nothing and are reported until
// others are valid. PrefixDelegation is that of the applied settings.
func TestSenselessSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmIP: 2})
		beyond := n.settingsOf(func(s *eni.Settings) {
			s.Policy.FirstInterfaceIndex, s.Policy.PrefixDelegation = 3, true
		})
		fits := func(inv *eni.Inventory) error { return nodenetwork.BeyondType(beyond, inv) }
		n.startConfigured(Desired{Template: "NodeNetworkTemplate/beyond", Settings: beyond, Fits: fits}) // the limits are not known yet
		n.settle(time.Minute)
		reports := func(words ...string) {
			t.Helper()
			doc := n.document()
			for _, w := range words {
				if !strings.Contains(doc.LastError, w) {
					t.Errorf("the trouble is %q, want %q", doc.LastError, w)
				}
			}
			if doc.Template != "" || n.supply.PrefixDelegation() {
				t.Errorf("the template is %q, prefixes %v", doc.Template, n.supply.PrefixDelegation())
			}
		}
		reports("NodeNetworkTemplate/beyond is not applied", "firstInterfaceIndex is 3: expected at most 2")
		n.addIn(1, "10.0.0.0/8")

		n.Configure(Desired{Template: "NodeNetworkTemplate/odd", Settings: n.settingsOf(inPods), Err: errors.New("spec.eni is odd")})
		n.settle(time.Minute)
		reports("NodeNetworkTemplate/odd is not applied: spec.eni is odd")
		n.Configure(Desired{Template: "NodeNetworkTemplate/beyond", Settings: beyond, Fits: fits}) // the limits are known
		n.settle(time.Minute)
		reports("NodeNetworkTemplate/beyond is not applied")
		n.add(2, time.Minute)
		n.Configure(Desired{Template: "NodeNetworkTemplate/negative", Settings: n.settingsOf(func(s *eni.Settings) { s.Policy.WarmIP = -1 })})
		n.settle(time.Minute)
		reports("NodeNetworkTemplate/negative is not applied")
		check.Equal(t, len(n.furtherSubnets()), 0, "ENIs are in")

		n.Configure(Desired{Template: "NodeNetworkTemplate/good", Settings: n.settingsOf(func(s *eni.Settings) { s.Policy.PrefixDelegation = true })})
		n.settle(time.Minute)
		if doc := n.document(); doc.LastError != "" || doc.Template != "NodeNetworkTemplate/good" || !n.supply.PrefixDelegation() {
			t.Errorf("the template is %q, the trouble %q, prefixes %v", doc.Template, doc.LastError, n.supply.PrefixDelegation())
		}
		// Settings that count are also those that others fall back to.
		n.Configure(Desired{Template: "NodeNetworkTemplate/beyond", Settings: beyond, Fits: fits})
		n.settle(time.Minute)
		if doc := n.document(); doc.LastError == "" || doc.Template != "NodeNetworkTemplate/good" {
			t.Errorf("the template is %q, the trouble %q", doc.Template, doc.LastError)
		}
	})
}

// Trouble with the cloud is reported beside that with settings.
func TestBothTroublesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmENI: 1})
		n.cloud.Front.Inject(cloudfake.Fault{Op: "AssignAddresses", Times: 1000, Err: cloudfake.Err(cloud.Permission, "")})
		n.start()
		n.Configure(Desired{Template: "NodeNetworkTemplate/odd", Err: errors.New("spec.eni is odd")})
		n.settle(time.Minute)
		if got := n.document().LastError; !strings.Contains(got, "assign") || !strings.Contains(got, "odd") {
			t.Errorf("the trouble is %q", got)
		}
	})
}

// When the security groups of the primary ENI change, the other ENIs get them too, unless that is
// switched off or others are configured. Differences are reported.
func TestGroupsOfThePrimaryChange(t *testing.T) {
	for name, tt := range map[string]struct {
		follow     bool
		configured []string
		denied     bool // at first
		want       string
		healthy    bool
	}{
		"followed":     {follow: true, want: "sg-new", healthy: true},
		"denied":       {follow: true, denied: true, want: "sg-old"},
		"not followed": {want: "sg-old"},
		"configured":   {follow: true, configured: []string{"sg-old"}, want: "sg-old", healthy: true},
	} {
		t.Run(name, inBubble("m5.xlarge", ipam.Policy{WarmIP: 3, FirstInterfaceIndex: 1}, func(t *testing.T, n *node) {
			n.tune = func(c *eni.Config) {
				c.FollowGroups, c.Groups, c.ListingInterval = tt.follow, tt.configured, time.Second
			}
			n.cloud.State.AddSecurityGroup("sg-old", nil)
			n.cloud.State.AddSecurityGroup("sg-new", nil)
			primary := n.secondary(0).ID
			set := func(group string) {
				check.OK(t, n.cloud.SetGroups(t.Context(), primary, []string{group}))
			}
			set("sg-old")
			n.cloud.State.SetLag(3 * time.Second)
			n.start()
			n.addAll(0, 2, 45*time.Second)
			n.settle(5 * time.Minute)
			if got := n.secondary(1).Groups; !slices.Equal(got, []string{"sg-old"}) || !n.healthy(conditionGroups) {
				t.Fatalf("a new ENI has %v", got)
			}
			n.cloud.Front.ResetCalls()
			set("sg-new")
			if tt.denied {
				n.cloud.Front.Inject(cloudfake.Fault{Op: "SetGroups", Times: 1000, Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")})
			}
			n.settle(5 * time.Minute)
			check.Equal(t, n.secondary(1).Groups, []string{tt.want}, "the ENI has")
			check.Equal(t, n.healthy(conditionGroups), tt.healthy, "conditions %+v", n.Snapshot().Conditions)
			if got := n.cloud.Front.Count("SetGroups") - 1; !tt.denied && (got == 1) != (tt.want == "sg-new") || got > 15 {
				t.Errorf("%d calls", got)
			}
			n.addAll(2, 6, 45*time.Second) // whatever becomes of groups
			n.check()
			if tt.denied {
				n.cloud.Front.ClearFaults()
				n.settle(5 * time.Minute)
				if !n.healthy(conditionGroups) || !slices.Equal(n.secondary(1).Groups, []string{"sg-new"}) {
					t.Errorf("not healed: %v", n.secondary(1).Groups)
				}
			}
		}))
	}
}
