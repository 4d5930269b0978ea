package vpc

import (
	"fmt"
	"slices"
	"strings"
)

// Zones are the names of the region's availability zones, those of the spec's
// subnets, in order.
func (c *Cloud) Zones() []string {
	var out []string
	for _, v := range c.spec.VPCs {
		for _, s := range v.Subnets {
			if !slices.Contains(out, s.Zone) {
				out = append(out, s.Zone)
			}
		}
	}
	slices.Sort(out)
	return out
}

// ZoneIDs are the IDs of the availability zones by name, such as lab1-az2. As
// with EC2 they say nothing of the name: they count the zones.
func (c *Cloud) ZoneIDs() map[string]string {
	out := map[string]string{}
	for i, z := range c.Zones() {
		out[z] = fmt.Sprintf("%s-az%d", strings.ReplaceAll(c.region, "-", ""), i+1)
	}
	return out
}
