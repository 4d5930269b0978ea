package enisource

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// subnetsOf returns the subnets of the secondary ENIs, by device index.
func (n *node) subnetsOf() string {
	list := n.cloud.State.Truth()
	slices.SortFunc(list, func(x, y cloud.ENI) int { return index(x) - index(y) })
	var out []string
	for _, e := range list {
		if index(e) > 0 && index(e) < 99 {
			out = append(out, e.SubnetID)
		}
	}
	return strings.Join(out, " then ")
}

// Where Berth may choose, new ENIs are created in subnets with the routes of the primary's, though
// others have more free addresses, and elsewhere only when these are full. One call finds the routes,
// and only when an ENI is to be created.
func TestNewENIsPreferThePrimarysRoutes(t *testing.T) {
	denied := &cloud.Error{Class: cloud.Permission, Op: "DescribeRouteTables", Code: "UnauthorizedOperation"}
	away := &cloud.Error{Class: cloud.Transient, Op: "DescribeRouteTables"}
	for _, c := range []struct {
		name  string
		tune  func(*eni.Config)
		fault *cloudfake.Fault
		want  string
		calls int
	}{
		{"chosen by tags", func(c *eni.Config) { c.SubnetTags = map[string]string{"for": "pods"} }, nil, "subnet-near then subnet-far", 1},
		{"any", func(c *eni.Config) { c.AnySubnet = true }, nil, "subnet-1 then subnet-1", 1},
		{"named by ID: the person chose", func(c *eni.Config) { c.SubnetIDs = []string{"subnet-far", "subnet-near"} }, nil, "subnet-far then subnet-far", 0},
		{"not permitted: as if all were alike", func(c *eni.Config) { c.AnySubnet = true },
			&cloudfake.Fault{Op: "RouteTables", Times: 99, Err: denied}, "subnet-far then subnet-far", 1},
		{"tried again after trouble", func(c *eni.Config) { c.AnySubnet = true },
			&cloudfake.Fault{Op: "RouteTables", Times: 2, Err: away}, "subnet-1 then subnet-1", 3},
		{"not for ever", func(c *eni.Config) { c.AnySubnet = true },
			&cloudfake.Fault{Op: "RouteTables", Times: 99, Err: away}, "subnet-far then subnet-far", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, "t3.small", ipam.Policy{WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
				pods := map[string]string{"for": "pods"}
				n.cloud.State.AddSubnet("subnet-near", "zone-a", "10.1.0.0/28", pods)
				for _, id := range []string{"i-a", "i-b", "i-c", "i-d", "i-e", "i-f"} {
					n.cloud.State.AddInstance(id, "t3.small", "subnet-near") // 5 addresses are left: one ENI of three pods
				}
				n.cloud.State.AddSubnet("subnet-far", "zone-a", "10.64.0.0/18", pods)
				n.cloud.State.AddRouteTable("rtb-far", "subnet-far")
				n.cloud.State.AddRouteTable("rtb-other", "subnet-elsewhere")
				n.cloud.State.AddRouteTable("rtb-home", "subnet-1", "subnet-near")
				if c.fault != nil {
					n.cloud.Front.Inject(*c.fault)
				}
				n.tune = c.tune
				n.start()
				n.settle(time.Second)
				check.Equal(t, n.cloud.Front.Count("RouteTables"), 0, "calls before an ENI is to be made")
				for i := range 8 {
					n.add(i, time.Minute)
				}
				n.settle(time.Second)
				check.Equal(t, n.subnetsOf(), c.want, "new ENIs in")
				check.Equal(t, n.cloud.Front.Count("RouteTables"), c.calls, "calls for route tables")
				n.check()
			})
		})
	}
}
