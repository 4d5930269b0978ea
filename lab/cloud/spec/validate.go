package spec

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/lab/cloud/iam"
)

// Complete returns the spec with its defaults filled in, or every mistake in it, each with the name of its
// field.
func (s Spec) Complete() (Spec, error) {
	s = s.withDefaults()
	v := validator{subnets: map[string]string{}, groups: map[string]map[string]bool{}, roles: map[string]bool{}}
	v.top(s)
	for i, vpc := range s.VPCs {
		v.vpc(fmt.Sprintf("vpcs[%d]", i), vpc)
	}
	for i, in := range s.Instances {
		v.instance(fmt.Sprintf("instances[%d]", i), in)
	}
	for i, f := range s.Faults {
		v.fault(fmt.Sprintf("faults[%d]", i), f)
	}
	return s, errors.Join(v.errs...)
}

type validator struct {
	errs      []error
	subnets   map[string]string          // subnet name to VPC name
	groups    map[string]map[string]bool // VPC name to group names
	roles     map[string]bool
	instances []string
	cidrs     []netip.Prefix
}

func (v *validator) fail(path, format string, args ...any) {
	v.errs = append(v.errs, fieldError(path, format, args...))
}

var (
	accountID = regexp.MustCompile(`^[0-9]{12}$`)
	hexID     = regexp.MustCompile(`^[a-z]+-([0-9a-f]{8}|[0-9a-f]{17})$`)
)

func (v *validator) id(path, prefix, id string) {
	if id != "" && (!hexID.MatchString(id) || !strings.HasPrefix(id, prefix+"-")) {
		v.fail(path, "%q; expected %s- and 8 or 17 hexadecimal digits", id, prefix)
	}
}

func (v *validator) top(s Spec) {
	if !accountID.MatchString(s.Account) {
		v.fail("account", "%q; expected 12 digits", s.Account)
	}
	if s.Throttle != "documented" && s.Throttle != "none" {
		v.fail("throttle", "%q; expected documented or none", s.Throttle)
	}
	if len(s.VPCs) == 0 {
		v.fail("vpcs", "expected at least one")
	}
	v.allRoles(s.Roles)
	for i, k := range s.AccessKeys {
		if k.ID == "" || k.Secret == "" {
			v.fail(fmt.Sprintf("accessKeys[%d]", i), "expected id and secret")
		}
		v.actions(fmt.Sprintf("accessKeys[%d].actions", i), k.Actions)
		v.policy(fmt.Sprintf("accessKeys[%d].policy", i), k.Policy)
	}
	for action, l := range s.RateLimits {
		if l.Bucket < 1 || l.Refill < 0 {
			v.fail("rateLimits."+action, "bucket %v, refill %v; expected a bucket of at least 1 and no negative refill", l.Bucket, l.Refill)
		}
	}
}

func (v *validator) allRoles(roles []Role) {
	accounts := map[string]string{}
	for i, r := range roles {
		if r.Name == "" || v.roles[r.Name] {
			v.fail(fmt.Sprintf("roles[%d].name", i), "%q; expected a unique name", r.Name)
		}
		v.roles[r.Name] = true
		if namespace, name, ok := strings.Cut(r.ServiceAccount, "/"); r.ServiceAccount != "" && (!ok || namespace == "" || name == "" || strings.ContainsAny(name, "/:")) {
			v.fail(fmt.Sprintf("roles[%d].serviceAccount", i), "%q; expected NAMESPACE/NAME", r.ServiceAccount)
		} else if of, taken := accounts[r.ServiceAccount]; taken && r.ServiceAccount != "" {
			v.fail(fmt.Sprintf("roles[%d].serviceAccount", i), "%q; the role %q has it already", r.ServiceAccount, of)
		}
		accounts[r.ServiceAccount] = r.Name
		v.actions(fmt.Sprintf("roles[%d].actions", i), r.Actions)
		v.policy(fmt.Sprintf("roles[%d].policy", i), r.Policy)
	}
}

// actions checks the actions of roles and keys. A pattern without the service ec2 would match nothing.
func (v *validator) actions(path string, patterns []string) {
	for i, p := range patterns {
		if service, action, _ := strings.Cut(p, ":"); p != "*" && (!strings.EqualFold(service, "ec2") || action == "") {
			v.fail(fmt.Sprintf("%s[%d]", path, i), `%q; expected an EC2 action or a pattern such as "ec2:Describe*", or "*"`, p)
		}
	}
}

func (v *validator) policy(path, document string) {
	if document == "" {
		return
	}
	if _, err := iam.Parse([]byte(document)); err != nil {
		v.fail(path, "%v", err)
	}
}

func (v *validator) vpc(path string, p VPC) {
	if p.Name == "" || v.groups[p.Name] != nil {
		v.fail(path+".name", "%q; expected a unique name", p.Name)
	}
	v.id(path+".id", "vpc", p.ID)
	if len(p.CIDRs) == 0 {
		v.fail(path+".cidrs", "expected at least one IPv4 CIDR")
	}
	for i, c := range p.CIDRs {
		v.cidr4(fmt.Sprintf("%s.cidrs[%d]", path, i), c)
	}
	for i, c := range p.IPv6 {
		if !c.IsValid() || !c.Addr().Is6() || c.Bits() != 56 || c != c.Masked() {
			v.fail(fmt.Sprintf("%s.ipv6[%d]", path, i), "%v; expected an IPv6 /56", c)
		}
	}
	if p.EgressOnlyIPv6 && len(p.IPv6) == 0 {
		v.fail(path+".egressOnlyIPv6", "true; expected a VPC with ipv6")
	}
	v.groups[p.Name] = map[string]bool{"default": true}
	for _, g := range p.SecurityGroups {
		v.groups[p.Name][g.Name] = true
	}
	for i, g := range p.SecurityGroups {
		v.group(fmt.Sprintf("%s.securityGroups[%d]", path, i), p.Name, g)
	}
	for i, n := range p.Subnets {
		v.subnet(fmt.Sprintf("%s.subnets[%d]", path, i), p, n)
	}
}

func (v *validator) cidr4(path string, c netip.Prefix) {
	if !c.IsValid() || !c.Addr().Is4() || c != c.Masked() || c.Bits() < 16 || c.Bits() > 28 {
		v.fail(path, "%v; expected an IPv4 network of /16 to /28", c)
	}
}

func (v *validator) subnet(path string, p VPC, n Subnet) {
	if n.Name == "" || v.subnets[n.Name] != "" {
		v.fail(path+".name", "%q; expected a unique name within the lab", n.Name)
	}
	v.subnets[n.Name] = p.Name
	v.id(path+".id", "subnet", n.ID)
	if n.Zone == "" {
		v.fail(path+".zone", "expected an availability zone, such as lab-1a")
	}
	v.subnetIPv4(path, p, n)
	if n.IPv6.IsValid() && (n.IPv6.Bits() != 64 || n.IPv6 != n.IPv6.Masked() || !within(n.IPv6, p.IPv6)) {
		v.fail(path+".ipv6", "%v; expected a /64 of the VPC's ipv6", n.IPv6)
	}
	if n.AssignIPv6 && !n.IPv6.IsValid() {
		v.fail(path+".assignIPv6", "true; expected a subnet with ipv6")
	}
}

// subnetIPv4 validates a subnet's IPv4 block, which an IPv6-only subnet does not have.
func (v *validator) subnetIPv4(path string, p VPC, n Subnet) {
	if n.IPv6Native {
		if n.CIDR.IsValid() || n.Public {
			v.fail(path+".ipv6Native", "true; expected a subnet without cidr and public")
		}
		if !n.IPv6.IsValid() {
			v.fail(path+".ipv6", "expected a /64 of the VPC's ipv6, with ipv6Native")
		}
		return
	}
	v.cidr4(path+".cidr", n.CIDR)
	if !within(n.CIDR, p.CIDRs) {
		v.fail(path+".cidr", "%v is not in the VPC's cidrs", n.CIDR)
	}
	for _, c := range v.cidrs {
		if c.IsValid() && c.Overlaps(n.CIDR) {
			v.fail(path+".cidr", "%v overlaps %v", n.CIDR, c)
		}
	}
	v.cidrs = append(v.cidrs, n.CIDR)
}

func within(c netip.Prefix, blocks []netip.Prefix) bool {
	return slices.ContainsFunc(blocks, func(b netip.Prefix) bool {
		return b.IsValid() && c.IsValid() && b.Bits() <= c.Bits() && b.Contains(c.Addr())
	})
}

func (v *validator) group(path, vpc string, g SecurityGroup) {
	v.id(path+".id", "sg", g.ID)
	rules := func(path string, rules []Rule) {
		for i, r := range rules {
			for _, name := range r.Groups {
				if !v.groups[vpc][name] {
					v.fail(fmt.Sprintf("%s[%d].groups", path, i), "no security group %q in this VPC", name)
				}
			}
			if r.Protocol == "" {
				v.fail(fmt.Sprintf("%s[%d].protocol", path, i), `expected "-1", tcp, udp, icmp, icmpv6 or a number`)
			}
		}
	}
	rules(path+".ingress", g.Ingress)
	if g.Egress != nil {
		rules(path+".egress", *g.Egress)
	}
}

func (v *validator) instance(path string, in Instance) {
	if in.Name == "" || slices.Contains(v.instances, in.Name) {
		v.fail(path+".name", "%q; expected a unique name", in.Name)
	}
	v.instances = append(v.instances, in.Name)
	v.id(path+".id", "i", in.ID)
	if _, ok := limits.Lookup(in.Type); !ok {
		v.fail(path+".type", "unknown instance type %q", in.Type)
	}
	v.placed(path, in.Subnet, in.SecurityGroups)
	if in.Role != "" && !v.roles[in.Role] {
		v.fail(path+".role", "no role %q", in.Role)
	}
	for i, e := range in.Interfaces {
		p := fmt.Sprintf("%s.interfaces[%d]", path, i)
		if e.Subnet == "" {
			e.Subnet = in.Subnet
		}
		v.placed(p, e.Subnet, e.SecurityGroups)
		if e.DeviceIndex < 1 && e.NetworkCard == 0 {
			v.fail(p+".deviceIndex", "%d; expected at least 1", e.DeviceIndex)
		}
		if !slices.Contains([]string{"", "interface", "efa", "efa-only", "trunk"}, e.Type) {
			v.fail(p+".type", "%q; expected interface, efa, efa-only or trunk", e.Type)
		}
		if e.Type == "trunk" && limits.Branches(in.Type) == 0 {
			v.fail(p+".type", "trunk; expected an instance type with trunks, which %s is not", in.Type)
		}
	}
}

func (v *validator) placed(path, subnet string, groups []string) {
	vpc, ok := v.subnets[subnet]
	if !ok {
		v.fail(path+".subnet", "no subnet %q", subnet)
		return
	}
	for _, g := range groups {
		if !v.groups[vpc][g] {
			v.fail(path+".securityGroups", "no security group %q in VPC %s", g, vpc)
		}
	}
}

func (v *validator) fault(path string, f Fault) {
	if f.Action == "" {
		v.fail(path+".action", `expected an action or a pattern such as "Describe*"`)
	}
	switch f.Kind {
	case "throttle", "lostReply", "lostRequest":
	case "error":
		if f.Code == "" {
			v.fail(path+".code", "expected the error code to answer with")
		}
	case "latency":
		if f.Latency <= 0 {
			v.fail(path+".latency", "expected a duration above zero")
		}
	case "wrongReply":
		if _, err := regexp.Compile(f.Pattern); f.Pattern == "" || err != nil {
			v.fail(path+".pattern", "%q; expected a regular expression of the text to replace in the reply", f.Pattern)
		}
	default:
		v.fail(path+".kind", "%q; expected error, throttle, lostReply, lostRequest, wrongReply or latency", f.Kind)
	}
	if f.Count < 0 {
		v.fail(path+".count", "%d; expected 0 (unlimited) or more", f.Count)
	}
	if f.Skip < 0 {
		v.fail(path+".skip", "%d; expected 0 or more", f.Skip)
	}
	if f.Probability < 0 || f.Probability > 1 {
		v.fail(path+".probability", "%v; expected 0 to 1", f.Probability)
	}
}

// CheckFault checks a fault.
func CheckFault(f Fault) error {
	v := validator{}
	v.fault("fault", f)
	return errors.Join(v.errs...)
}
