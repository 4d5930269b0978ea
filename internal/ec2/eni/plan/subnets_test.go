package plan

import (
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

func TestCandidates(t *testing.T) {
	described := cloud.Subnet{ID: "s1", VPCID: "vpc-1", Zone: "a", Tags: map[string]string{"for": "pods", "team": "x"}}
	here := Candidates{VPC: "vpc-1", Zone: "a", InstanceZone: "a", Primary: "s0"}
	with := func(change func(*Candidates)) Candidates { c := here; change(&c); return c }
	for _, c := range []struct {
		name string
		of   Candidates
		s    cloud.Subnet
		want bool
	}{
		{"the primary's", with(func(c *Candidates) { c.Primary = "s1" }), described, true},
		{"another than the primary's", here, described, false},
		{"the primary's, not described yet", here, cloud.Subnet{ID: "s0"}, true},
		{"by ID", with(func(c *Candidates) { c.IDs = []string{"s9", "s1"} }), described, true},
		{"not by ID, whatever its tags", with(func(c *Candidates) { c.IDs, c.Tags = []string{"s9"}, described.Tags }), described, false},
		{"by tags", with(func(c *Candidates) { c.Tags = map[string]string{"for": "pods"} }), described, true},
		{"with other tags", with(func(c *Candidates) { c.Tags = map[string]string{"for": "pods", "team": "y"} }), described, false},
		{"any", with(func(c *Candidates) { c.Any = true }), described, true},
		{"any, not described yet", with(func(c *Candidates) { c.Any = true }), cloud.Subnet{ID: "s1"}, false},
		{"in another VPC", with(func(c *Candidates) { c.IDs, c.VPC = []string{"s1"}, "vpc-2" }), described, false},
		{"in another zone", with(func(c *Candidates) { c.IDs, c.Zone = []string{"s1"}, "b" }), described, false},
		{"in a configured zone that is not the instance's", with(func(c *Candidates) { c.IDs, c.InstanceZone = []string{"s1"}, "b" }), described, false},
	} {
		if got := c.of.Has(c.s); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
