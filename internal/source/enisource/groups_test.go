package enisource

import (
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// Security groups of the primary ENI that change later are those of the others too, unless
// that is switched off or others are configured. What differs is told.
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
		t.Run(name, func(t *testing.T) {
			bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 3, FirstInterfaceIndex: 1}, func(t *testing.T, n *node) {
				n.tune = func(c *eni.Config) {
					c.FollowGroups, c.Groups, c.ListingInterval = tt.follow, tt.configured, time.Second
				}
				n.cloud.State.AddSecurityGroup("sg-old", nil)
				n.cloud.State.AddSecurityGroup("sg-new", nil)
				primary := n.secondary(0).ID
				set := func(group string) {
					if err := n.cloud.SetGroups(t.Context(), primary, []string{group}); err != nil {
						t.Fatal(err)
					}
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
				if got := n.secondary(1).Groups; !slices.Equal(got, []string{tt.want}) {
					t.Errorf("the ENI has %v, want %s", got, tt.want)
				}
				if got := n.healthy(conditionGroups); got != tt.healthy {
					t.Errorf("conditions %+v", n.Snapshot().Conditions)
				}
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
			})
		})
	}
}
