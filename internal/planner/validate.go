package planner

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/maxpods"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// Limits of a scenario, which keep a simulation short.
const (
	MaxNodes        = 2000
	maxServedNodes  = 500 // in a request: the simulation runs in a child, for a minute and with bounded memory
	MaxPods         = 20_000
	MaxDuration     = 7 * 24 * time.Hour
	MaxAlternatives = 8
	maxPoints       = 2000
	maxList         = 200                    // entries of any other list
	maxStarts       = 2_000_000              // pods ever, estimated
	maxValues       = 3_000_000              // numbers in all series of a result
	maxProblems     = 100                    // number of mistakes that are listed
	maxTags         = 50                     // of a subnet, as in EC2
	maxName         = 317                    // bytes, the maximum of an object's NAMESPACE/NAME
	shortest        = 100 * time.Millisecond // minimum of a latency that is not 0
)

// Reserved is the number of addresses that EC2 keeps of each subnet.
const Reserved = 5

func (s Subnet) size() int {
	p, err := netip.ParsePrefix(s.CIDR)
	if err != nil {
		return 0
	}
	return 1 << (32 - p.Bits())
}

// HasTags reports whether a subnet has all of these tags.
func (s Subnet) HasTags(tags map[string]string) bool {
	for key, value := range tags {
		if got, ok := s.Tags[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func (s Subnet) others() int {
	if s.CIDR == "" {
		return 0
	}
	return Reserved + s.Used
}

// add appends a problem unless there are maxProblems already.
func (p *Problems) add(field, format string, args ...any) {
	switch n := len(*p); {
	case n < maxProblems:
		*p = append(*p, FieldError{field, fmt.Sprintf(format, args...)})
	case n == maxProblems:
		*p = append(*p, FieldError{Message: "there are more mistakes that are not listed"})
	}
}

// count checks a number of things.
func (p *Problems) count(field string, n, most int) {
	if n < 0 || n > most {
		p.add(field, "%d: expected 0 to %d", n, most)
	}
}

// time checks a duration, which may be 0 for the default.
func (p *Problems) time(field string, d Duration, least, most time.Duration) {
	if v := d.Std(); v != 0 && (v < least || v > most) {
		p.add(field, "%v: expected %v to %v", v, least, most)
	}
}

// name checks a name, which has to be unique.
func (p *Problems) name(field, name string, seen map[string]bool) {
	switch {
	case name == "":
		p.add(field, "expected a name")
	case len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl):
		p.add(field, "%q: expected at most %d bytes, without control characters", name, maxName)
	case seen[name]:
		p.add(field, "%q: expected a unique name", name)
	}
	seen[name] = true
}

// check finds the mistakes that do not depend on the alternative.
func (s Scenario) check() (out Problems) {
	end := s.Duration.Or(defaultDuration)
	out.time("duration", s.Duration, time.Minute, MaxDuration)
	if sample := s.Sample.Std(); sample != 0 && (sample < time.Second || sample > end || end/sample > maxPoints) {
		out.add("sample", "%v: expected 1s to the duration, and at most %d points", sample, maxPoints)
	}
	for _, l := range []struct {
		field       string
		n, min, max int
	}{
		{"subnets", len(s.Subnets), 1, maxList}, {"nodes", len(s.Nodes), 1, maxList},
		{"workload.deployments", len(s.Workload.Deployments), 0, maxList}, {"alternatives", len(s.Alternatives), 0, MaxAlternatives},
	} {
		if l.n < l.min || l.n > l.max {
			out.add(l.field, "%d entries: expected %d to %d", l.n, l.min, l.max)
		}
	}
	if len(out) > 0 {
		return out
	}
	points := int(end/s.sample()) + 1
	if values := points * (6*len(s.Subnets) + 8) * (1 + len(s.Alternatives)); values > maxValues {
		out.add("sample", "the series would have %d numbers, as there are %d points, %d subnets and %d alternatives: expected at most %d; use a longer sample", values, points, len(s.Subnets), len(s.Alternatives), maxValues)
		return out
	}
	subnets := s.checkSubnets(&out)
	s.checkNodes(&out, subnets, end)
	s.checkEC2(&out)
	s.checkWorkload(&out, end)
	s.checkAlternatives(&out)
	return out
}

func (s Scenario) checkSubnets(out *Problems) (names map[string]bool) {
	names = map[string]bool{}
	var blocks []netip.Prefix
	for i, n := range s.Subnets {
		field := fmt.Sprintf("subnets[%d].", i)
		out.name(field+"name", n.Name, names)
		if n.Zone != "" {
			out.name(field+"zone", n.Zone, map[string]bool{})
		}
		if len(n.Tags) > maxTags {
			out.add(field+"tags", "%d tags: expected at most %d", len(n.Tags), maxTags)
		}
		blocks = out.subnet(field, n, blocks)
	}
	return names
}

// subnet checks a subnet's addresses, and that its block does not overlap the others.
func (p *Problems) subnet(field string, n Subnet, blocks []netip.Prefix) []netip.Prefix {
	if n.CIDR == "" {
		if !n.IPv6 || n.Used != 0 {
			p.add(field+"cidr", "expected an IPv4 block, or ipv6: true and no used addresses")
		}
		return blocks
	}
	b, err := netip.ParsePrefix(n.CIDR)
	switch {
	case err != nil || !b.Addr().Is4() || b != b.Masked() || b.Bits() < 16 || b.Bits() > 28:
		p.add(field+"cidr", "%q: expected an IPv4 block from /16 to /28, such as 10.0.0.0/24", n.CIDR)
		return blocks
	case slices.ContainsFunc(blocks, b.Overlaps):
		p.add(field+"cidr", "%s overlaps another subnet", n.CIDR)
	}
	p.count(field+"used", n.Used, n.size()-Reserved)
	return append(blocks, b)
}

func (s Scenario) checkNodes(out *Problems, subnets map[string]bool, end time.Duration) {
	names := map[string]bool{}
	for i, g := range s.Nodes {
		field := fmt.Sprintf("nodes[%d].", i)
		out.name(field+"name", g.Name, names)
		out.count(field+"count", g.Count, MaxNodes)
		out.count(field+"maxPods", g.MaxPods, 1000)
		if len(g.Subnets) == 0 || len(g.Subnets) > maxList {
			out.add(field+"subnets", "%d entries: expected the names of 1 to %d subnets", len(g.Subnets), maxList)
		}
		for j, name := range g.Subnets {
			if !subnets[name] {
				out.add(fmt.Sprintf("%ssubnets[%d]", field, j), "%q: no subnet has this name", name)
			}
		}
		out.changes(field, g.Count, g.Changes, MaxNodes, end)
		if r := g.Replace; r != nil {
			out.count(field+"replace.nodes", r.Nodes, MaxNodes)
			if every := r.Every.Std(); every < 5*time.Minute || every > MaxDuration {
				out.add(field+"replace.every", "%v: expected %v to %v", every, 5*time.Minute, MaxDuration)
			}
		}
	}
	if n := mostNodes(s.Nodes); n > MaxNodes {
		out.add("nodes", "%d nodes in all at the most: expected at most %d", n, MaxNodes)
	}
}

// mostNodes returns the highest number of nodes of all groups.
func mostNodes(groups []NodeGroup) (sum int) {
	for _, g := range groups {
		n := g.Count
		for _, c := range g.Changes {
			n = max(n, c.Count)
		}
		if g.Replace != nil {
			n += max(1, g.Replace.Nodes)
		}
		sum += n
	}
	return sum
}

// checkServed finds what is too large for a server.
func (s Scenario) checkServed() error {
	n := mostNodes(s.Nodes)
	for _, a := range s.Alternatives {
		n = max(n, mostNodes(s.with(a).Nodes))
	}
	if n > maxServedNodes {
		return Problems{{"nodes", fmt.Sprintf("%d nodes in all at the most: expected at most %d; the command berthctl plan simulates up to %d", n, maxServedNodes, MaxNodes)}}
	}
	return nil
}

// changes checks changes of a count, and returns the highest count.
func (p *Problems) changes(field string, count int, list []Change, limit int, end time.Duration) int {
	if len(list) > maxList {
		p.add(field+"changes", "%d entries: expected at most %d", len(list), maxList)
		return count
	}
	before := Duration(0)
	for i, c := range list {
		at := fmt.Sprintf("%schanges[%d].", field, i)
		p.count(at+"count", c.Count, limit)
		p.within(at+"at", c.At, end)
		if c.At < before {
			p.add(at+"at", "%v: expected a time after the change before", c.At.Std())
		}
		before, count = c.At, max(count, c.Count)
	}
	return count
}

// within checks a time of the simulation.
func (p *Problems) within(field string, at Duration, end time.Duration) {
	if at.Std() > end {
		p.add(field, "%v: expected at most the duration, which is %v", at.Std(), end)
	}
}

func (s Scenario) checkEC2(out *Problems) {
	if f := s.EC2.RateLimits; f != nil && (*f < 0 || *f > 1000 || *f != 0 && *f < 0.01) {
		out.add("ec2.rateLimits", "%v: expected 0 for no limits, or 0.01 to 1000", *f)
	}
	out.time("ec2.latency", s.EC2.Latency, shortest/10, 10*time.Second)
	out.time("ec2.attachTime", s.EC2.AttachTime, shortest, time.Minute)
}

func (s Scenario) checkWorkload(out *Problems, end time.Duration) {
	out.count("workload.daemonPods", s.Workload.DaemonPods, 100)
	names, most, starts := map[string]bool{}, 0, 0.0
	for i, d := range s.Workload.Deployments {
		field := fmt.Sprintf("workload.deployments[%d].", i)
		out.name(field+"name", d.Name, names)
		out.count(field+"replicas", d.Replicas, MaxPods)
		peak := out.changes(field, d.Replicas, d.Changes, MaxPods, end)
		most += peak
		out.time(field+"ready", d.Ready, shortest, time.Hour)
		out.time(field+"lifetime", d.Lifetime, 5*time.Second, MaxDuration)
		if d.Lifetime > 0 {
			starts += float64(peak) * end.Seconds() / d.Lifetime.Std().Seconds()
		}
		if len(d.Rollouts) > maxList {
			out.add(field+"rollouts", "%d entries: expected at most %d", len(d.Rollouts), maxList)
			continue
		}
		starts += float64(peak * len(d.Rollouts))
		for j, r := range d.Rollouts {
			at := fmt.Sprintf("%srollouts[%d].", field, j)
			out.within(at+"at", r.At, end)
			out.share(at+"maxSurge", r.MaxSurge)
			out.share(at+"maxUnavailable", r.MaxUnavailable)
		}
		if c := d.CrashLoop; c != nil {
			out.within(field+"crashLoop.from", c.From, end)
			out.time(field+"crashLoop.after", c.After, shortest, time.Hour)
			out.count(field+"crashLoop.pods", c.Pods, MaxPods)
			if c.Until != 0 && (c.Until <= c.From || c.Until.Std() > end) {
				out.add(field+"crashLoop.until", "%v: expected a time after from, and at most the duration", c.Until.Std())
			}
			starts += float64(peak) * end.Seconds() / 240
		}
	}
	if most > MaxPods {
		out.add("workload.deployments", "%d replicas in all at the most: expected at most %d", most, MaxPods)
	}
	if starts > maxStarts {
		out.add("workload.deployments", "about %.0f pods would start: expected at most %d; use longer lifetimes, a shorter duration or fewer replicas", starts, maxStarts)
	}
}

// share checks a number of pods or a percentage.
func (p *Problems) share(field, text string) {
	if text == "" {
		return
	}
	digits, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || percent && n > 100 || n > MaxPods {
		p.add(field, "%q: expected a number, or a percentage such as 25%%", text)
	}
}

func (s Scenario) checkAlternatives(out *Problems) {
	names := map[string]bool{cmp.Or(s.Settings.Name, asGiven): true}
	groups, subnets := map[string]bool{}, map[string]bool{}
	for _, g := range s.Nodes {
		groups[g.Name] = true
	}
	for _, n := range s.Subnets {
		subnets[n.Name] = true
	}
	for i, a := range s.Alternatives {
		field := fmt.Sprintf("alternatives[%d].", i)
		out.name(field+"name", a.Name, names)
		if a.Settings != nil && a.Settings.Name != "" && a.Settings.Name != a.Name {
			out.add(field+"settings.name", "%q: expected none, as the alternative has a name", a.Settings.Name)
		}
		for _, l := range []struct {
			what  string
			keys  []string
			known map[string]bool
		}{
			{"instanceTypes", slices.Sorted(maps.Keys(a.InstanceTypes)), groups}, {"counts", slices.Sorted(maps.Keys(a.Counts)), groups},
			{"cidrs", slices.Sorted(maps.Keys(a.CIDRs)), subnets},
		} {
			for _, k := range l.keys {
				if !l.known[k] {
					out.add(field+l.what+"."+k, "expected the name of a node group (instanceTypes, counts) or subnet (cidrs)")
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(a.Counts)) {
			out.count(field+"counts."+name, a.Counts[name], MaxNodes)
		}
	}
}

// asGiven names the first alternative, unless the settings have a name.
const asGiven = "as given"

// in returns the problems of an alternative with the fields of the document that they are about.
func (p Problems) in(i int, a Alternative) Problems {
	if i == 0 {
		return p
	}
	out := slices.Clone(p)
	for j, e := range out {
		if a.Settings != nil && strings.HasPrefix(e.Field, "settings.") || len(a.InstanceTypes)+len(a.CIDRs)+len(a.Counts) > 0 {
			out[j].Field = fmt.Sprintf("alternatives[%d].%s", i-1, e.Field)
		}
	}
	return out
}

// complete finds the mistakes of an alternative, and works out its settings.
func (v *variant) complete() (out Problems) {
	var blocks []netip.Prefix
	for i, n := range v.Subnets {
		blocks = out.subnet(fmt.Sprintf("subnets[%d].", i), n, blocks)
	}
	v.completeSettings(&out)
	if len(out) > 0 {
		return out
	}
	for i, g := range v.Nodes {
		field := fmt.Sprintf("nodes[%d].", i)
		v.completeNodes(&out, field, g)
	}
	if n := mostNodes(v.Nodes); n > MaxNodes {
		out.add("nodes", "%d nodes in all at the most: expected at most %d", n, MaxNodes)
	}
	for i, d := range v.Workload.Deployments {
		if d.Branch && (v.settings.Mode != ModeOperator || !v.eni.Trunk) {
			out.add(fmt.Sprintf("workload.deployments[%d].branch", i), "expected settings with mode %s and eni.trunk: true, which branch interfaces need", ModeOperator)
		}
	}
	return out
}

func (v *variant) completeSettings(out *Problems) {
	s := &v.settings
	s.Mode = cmp.Or(s.Mode, ModeNode)
	base := eni.Settings{Policy: ipam.DefaultAWS()}
	switch s.Mode {
	case ModeNode:
		if s.ENI.Trunk != nil && *s.ENI.Trunk {
			out.add("settings.eni.trunk", "expected mode %s, which a trunk needs", ModeOperator)
		}
	case ModeOperator:
		base = eni.Settings{Policy: ipam.DefaultCilium(), AnySubnet: true}
	default:
		out.add("settings.mode", "%q: expected %s or %s", s.Mode, ModeNode, ModeOperator)
	}
	if s.Cooling != nil && s.Cooling.Std() > time.Hour {
		out.add("settings.cooling", "%v: expected at most %v", s.Cooling.Std(), time.Hour)
	}
	out.time("settings.shrinkDelay", s.ShrinkDelay, time.Second, 24*time.Hour)
	out.time("settings.listingInterval", s.ListingInterval, 10*time.Second, 24*time.Hour)
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"vpcID", s.ENI.VPCID != ""}, {"availabilityZone", s.ENI.AvailabilityZone != ""},
		{"securityGroups", len(s.ENI.SecurityGroups) > 0}, {"securityGroupTags", len(s.ENI.SecurityGroupTags) > 0},
	} {
		if f.set {
			out.add("settings.eni."+f.name, "expected none: a scenario has one VPC without security groups, and selects subnets by subnetIDs or subnetTags")
		}
	}
	for i, id := range s.ENI.SubnetIDs {
		if !slices.ContainsFunc(v.Subnets, func(n Subnet) bool { return n.Name == id }) {
			out.add(fmt.Sprintf("settings.eni.subnetIDs[%d]", i), "%q: no subnet has this name", id)
		}
	}
	if tags := s.ENI.SubnetTags; len(tags) > 0 && !slices.ContainsFunc(v.Subnets, func(n Subnet) bool { return n.HasTags(tags) }) {
		out.add("settings.eni.subnetTags", "no subnet has all these tags: expected tags of a subnet of the scenario")
	}
	var err error
	if v.eni, err = nodenetwork.Over(base, &s.ENI); err != nil {
		for line := range strings.Lines(err.Error()) {
			field, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			out.add("settings."+strings.TrimPrefix(field, "spec."), "%s", message)
		}
	}
}

func (v *variant) completeNodes(out *Problems, field string, g NodeGroup) {
	p := v.eni.Policy
	l, known := limits.Lookup(g.InstanceType)
	if !known {
		_, err := maxpods.LimitsOf(g.InstanceType)
		out.add(field+"instanceType", "%v", err)
		return
	}
	if p.FirstInterfaceIndex >= l.MaxENIs {
		out.add("settings.eni.firstInterfaceIndex", "%d: expected at most %d, as node group %s has instances of type %s", p.FirstInterfaceIndex, l.MaxENIs-1, g.Name, g.InstanceType)
		return
	}
	for i, name := range g.Subnets {
		n := v.Subnets[slices.IndexFunc(v.Subnets, func(n Subnet) bool { return n.Name == name })]
		if p.Families.Has(ipfamily.IPv4) && n.CIDR == "" || p.Families.Has(ipfamily.IPv6) && !n.IPv6 {
			out.add(fmt.Sprintf("%ssubnets[%d]", field, i), "subnet %s lacks a family of settings.eni.ipFamilies, which is %s", name, p.Families)
		}
	}
	if v.maxPods[g.Name] = g.MaxPods; g.MaxPods == 0 {
		c, err := maxpods.Of(g.InstanceType, maxpods.Options{
			Prefixes: p.PrefixDelegation && l.Prefixes, Families: p.Families, First: p.FirstInterfaceIndex, MaxENI: p.MaxENI,
			Trunk: v.eni.Trunk && limits.Branches(g.InstanceType) > 0,
		})
		if err != nil {
			out.add(field+"instanceType", "%v", err)
			return
		}
		// Pods of the host network are not simulated.
		v.maxPods[g.Name] = max(0, c.MaxPods-maxpods.HostPods)
		if v.eni.Trunk && !c.Unlimited { // pods with branch interfaces need no addresses of ENIs
			v.maxPods[g.Name] = min(c.Recommended, c.Allowed+limits.Branches(g.InstanceType)) - maxpods.HostPods
		}
	}
}
