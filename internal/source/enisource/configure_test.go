package enisource

import (
	"errors"
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
)

// settingsOf are those of a node, with what change makes of them.
func (n *node) settingsOf(change func(*eni.Settings)) eni.Settings {
	s := eni.Settings{Policy: n.policy}
	change(&s)
	return s
}

// inPods has ENIs be in subnet-2, and eth0 be the node's.
func inPods(s *eni.Settings) { s.SubnetIDs, s.Policy.FirstInterfaceIndex = []string{"subnet-2"}, 1 }

// document is what introspection shows.
func (n *node) document() (doc introspect.Document) {
	s := n.Snapshot()
	s.Detail.Describe(&doc)
	doc.LastError = s.LastError
	return doc
}

// furtherSubnets are those of the ENIs of the node beside eth0.
func (n *node) furtherSubnets() (ids []string) {
	for _, e := range n.cloud.State.Truth() {
		if e.Attachment != nil && e.Attachment.DeviceIndex > 0 {
			ids = append(ids, e.SubnetID)
		}
	}
	slices.Sort(ids)
	return ids
}

// templated is a node that has a second subnet for pods.
func templated(t *testing.T, p ipam.Policy) *node {
	n := newNode(t, "m5.large", p)
	n.cloud.State.AddSubnet("subnet-2", "zone-a", "100.64.0.0/20", nil)
	return n
}

// Settings are taken up while the daemon runs: new ENIs are in other subnets, eth0's
// addresses are the node's, and it goes back as it came.
func TestOtherSettingsCountAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmIP: 2})
		n.start()
		n.settle(time.Minute)
		if l := n.add(1, time.Minute); l.IPv4.String()[:3] != "10." {
			t.Errorf("the first pod has %v", l.IPv4)
		}
		n.Configure(Wanted{Template: "NodeNetworkTemplate/pods", Settings: n.settingsOf(inPods)})
		n.settle(2 * time.Minute)
		if got := n.furtherSubnets(); !slices.Equal(got, []string{"subnet-2"}) {
			t.Errorf("ENIs are in %v", got)
		}
		if l := n.add(2, time.Minute); l.IPv4.String()[:7] != "100.64." {
			t.Errorf("the second pod has %v", l.IPv4)
		}
		if got := n.document().Template; got != "NodeNetworkTemplate/pods" {
			t.Errorf("the template is %q", got)
		}
		n.del(2)
		n.Configure(Wanted{Settings: n.settingsOf(func(*eni.Settings) {})})
		n.settle(10 * time.Minute)
		if l := n.add(3, time.Minute); l.IPv4.String()[:3] != "10." {
			t.Errorf("the third pod has %v", l.IPv4)
		}
		if doc := n.document(); doc.Template != "" || doc.LastError != "" {
			t.Errorf("the template is %q, the trouble %q", doc.Template, doc.LastError)
		}
		n.kill()
	})
}

// eth0 is the node's at once, also while EC2 makes no other ENI.
func TestFirstInterfaceIndexCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmIP: 2})
		n.start()
		n.settle(time.Minute)
		n.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1000, Err: cloudfake.Err(cloud.Permission, "")})
		n.Configure(Wanted{Template: "NodeNetworkTemplate/pods", Settings: n.settingsOf(inPods)})
		n.settle(time.Second)
		if e := n.document().ENIs; len(e) == 0 || e[0].Ready {
			t.Errorf("eth0 is for pods: %+v", e)
		}
		n.kill()
	})
}

// Settings that are given before the first pass are those of the first ENI.
func TestSettingsBeforeTheFirstPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmENI: 1})
		n.startConfigured(Wanted{Template: "NodeNetworkTemplate/pods", Settings: n.settingsOf(inPods)})
		n.settle(2 * time.Minute)
		if got := n.furtherSubnets(); len(got) == 0 || slices.Contains(got, "subnet-1") {
			t.Errorf("ENIs are in %v", got)
		}
		if e := n.document().ENIs; len(e) == 0 || e[0].Ready {
			t.Errorf("eth0 is for pods: %+v", e)
		}
		n.kill()
	})
}

// Settings that make no sense, or are not for this instance, change nothing, and are told
// until others make sense. Prefixes are told by those that count.
func TestSenselessSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmIP: 2})
		beyond := n.settingsOf(func(s *eni.Settings) {
			s.Policy.FirstInterfaceIndex, s.Policy.PrefixDelegation = 3, true
		})
		fits := func(inv *eni.Inventory) error { return nodenetwork.BeyondType(beyond, inv) }
		n.startConfigured(Wanted{Template: "NodeNetworkTemplate/beyond", Settings: beyond, Fits: fits}) // the limits are not known yet
		n.settle(time.Minute)
		told := func(words ...string) {
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
		told("NodeNetworkTemplate/beyond changes nothing", "firstInterfaceIndex is 3: expected at most 2")
		if l := n.add(1, time.Minute); l.IPv4.String()[:3] != "10." {
			t.Errorf("the first pod has %v", l.IPv4)
		}

		n.Configure(Wanted{Template: "NodeNetworkTemplate/odd", Settings: n.settingsOf(inPods), Err: errors.New("spec.eni is odd")})
		n.settle(time.Minute)
		told("NodeNetworkTemplate/odd changes nothing: spec.eni is odd")
		n.Configure(Wanted{Template: "NodeNetworkTemplate/beyond", Settings: beyond, Fits: fits}) // the limits are known
		n.settle(time.Minute)
		told("NodeNetworkTemplate/beyond changes nothing")
		n.add(2, time.Minute)
		n.Configure(Wanted{Template: "NodeNetworkTemplate/negative", Settings: n.settingsOf(func(s *eni.Settings) { s.Policy.WarmIP = -1 })})
		n.settle(time.Minute)
		told("NodeNetworkTemplate/negative changes nothing")
		if got := n.furtherSubnets(); len(got) > 0 {
			t.Errorf("ENIs are in %v", got)
		}

		n.Configure(Wanted{Template: "NodeNetworkTemplate/good", Settings: n.settingsOf(func(s *eni.Settings) { s.Policy.PrefixDelegation = true })})
		n.settle(time.Minute)
		if doc := n.document(); doc.LastError != "" || doc.Template != "NodeNetworkTemplate/good" || !n.supply.PrefixDelegation() {
			t.Errorf("the template is %q, the trouble %q, prefixes %v", doc.Template, doc.LastError, n.supply.PrefixDelegation())
		}
		// Settings that count are also those that others fall back to.
		n.Configure(Wanted{Template: "NodeNetworkTemplate/beyond", Settings: beyond, Fits: fits})
		n.settle(time.Minute)
		if doc := n.document(); doc.LastError == "" || doc.Template != "NodeNetworkTemplate/good" {
			t.Errorf("the template is %q, the trouble %q", doc.Template, doc.LastError)
		}
		n.kill()
	})
}

// Trouble with the cloud is told beside that of settings.
func TestBothTroublesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := templated(t, ipam.Policy{WarmENI: 1})
		n.cloud.Front.Inject(cloudfake.Fault{Op: "AssignAddresses", Times: 1000, Err: cloudfake.Err(cloud.Permission, "")})
		n.start()
		n.Configure(Wanted{Template: "NodeNetworkTemplate/odd", Err: errors.New("spec.eni is odd")})
		n.settle(time.Minute)
		if got := n.document().LastError; !strings.Contains(got, "assign") || !strings.Contains(got, "odd") {
			t.Errorf("the trouble is %q", got)
		}
		n.kill()
	})
}
