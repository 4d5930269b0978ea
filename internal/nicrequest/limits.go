package nicrequest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport"
)

// anyGroup in a list of security groups allows all.
const anyGroup = "*"

// Limits are what the NICs of a namespace may have in a VPC. The zero value allows no group, all subnets, and no NIC.
type Limits struct {
	Namespace string
	Groups    []string // IDs of the security groups that NICs may name; "*": any
	Subnets   []string // IDs or names of the subnets that NICs may be in; nil: all
	Most      int      // how many NICs may have a port

	from string // the field of the VPC with Most
}

// LimitsOf returns the limits of a namespace with some labels: those of the first entry of the VPC that selects it.
func LimitsOf(spec v1alpha1.VPCSpec, namespace string, has map[string]string) (Limits, error) {
	out := Limits{Namespace: namespace, Groups: spec.DefaultSecurityGroups, Most: v1alpha1.DefaultMaxNICsPerNamespace, from: "spec.maxNICsPerNamespace"}
	if most := spec.MaxNICsPerNamespace; most != nil {
		out.Most = int(*most)
	}
	for i, entry := range spec.NamespaceLimits {
		at := fmt.Sprintf("spec.namespaceLimits[%d]", i)
		in, err := entry.Namespaces.Allows(namespace, has)
		if err != nil {
			return Limits{Namespace: namespace, from: at}, fmt.Errorf("%s.namespaces.%w", at, err)
		}
		if !in {
			continue
		}
		out.Groups = slices.Concat(out.Groups, entry.SecurityGroups)
		out.Subnets = entry.Subnets
		if entry.MaxNICs != nil {
			out.Most, out.from = int(*entry.MaxNICs), at+".maxNICs"
		}
		break
	}
	return out, nil
}

// Full is the error of a namespace that has as many NICs with a port in a VPC as it may.
func (l Limits) Full(vpc string) error {
	return fmt.Errorf("namespace %s may have %d NICs with a port in VPC %s (%s of the VPC), and has no place for another", l.Namespace, l.Most, vpc, l.from)
}

// CheckLimits returns what a NIC, of a pod's annotation or of a user's PodNIC (ofObject), asks for and its namespace may not have.
// The webhook checks that early; the check that counts is that of the operator before it creates a port, takes one, or
// changes its groups.
func (net Network) CheckLimits(n NIC, ofObject bool) Errors {
	var errs Errors
	at := objectField
	if !ofObject {
		at = func(name string) string { return field(n.Index, name) }
	}
	net.checkLimits(n, at, &errs)
	return errs
}

func (net Network) checkLimits(n NIC, at func(string) string, errs *Errors) {
	l := net.Limits
	for i, g := range n.SecurityGroups {
		if !slices.Contains(l.Groups, anyGroup) && !slices.Contains(l.Groups, g) {
			errs.add(at(fmt.Sprintf("securityGroups[%d]", i)), "%.80s is not for namespace %s in VPC %s, expected %s (spec.namespaceLimits of the VPC)",
				g, l.Namespace, net.VPC, oneOf(l.Groups))
		}
	}
	names := fieldNames(n.Addresses)
	for k, a := range n.Addresses {
		var unknown Errors // Resolve reports it
		if s, ok := net.find(a, "", &unknown); ok && !net.permits(s) {
			errs.add(at(names[k]), "subnet %s is not for namespace %s in VPC %s, expected %s (spec.namespaceLimits of the VPC)", label(s), l.Namespace, net.VPC, oneOf(l.Subnets))
		}
	}
}

// permits reports whether NICs of the namespace may be in a subnet.
func (net Network) permits(s vpcport.Subnet) bool {
	l := net.Limits.Subnets
	return l == nil || slices.Contains(l, s.ID) || s.Name != "" && slices.Contains(l, s.Name)
}

// Among returns the IDs of the subnets that a NIC may be in if it names none and the VPC has no defaults; nil: any.
func (net Network) Among() (ids []string) {
	if net.Limits.Subnets == nil {
		return nil
	}
	for _, s := range net.Subnets {
		if net.permits(s) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// defaults are the subnets of a NIC that names none: the defaults of the VPC that the namespace may use, else the first subnet of
// each IP family that it may use. Without any the provider chooses.
func (net Network) defaults(at string, errs *Errors) (out []string) {
	if net.Limits.Subnets == nil {
		return net.Default
	}
	for _, d := range net.Default {
		var unknown Errors
		if s, ok := net.find(Address{Subnet: d}, "", &unknown); ok && net.permits(s) {
			out = append(out, d)
		}
	}
	among := net.Among()
	if len(among) == 0 {
		errs.add(at, "names no subnet, and VPC %s has none of those that are for namespace %s: %s (spec.namespaceLimits of the VPC)", net.VPC, net.Limits.Namespace, strings.Join(net.Limits.Subnets, ", "))
	}
	if len(out) > 0 || net.Zones {
		return out
	}
	has := map[ipfamily.Family]bool{}
	for _, id := range among {
		s, _ := net.subnet(id)
		if f := ipfamily.Of(s.CIDR.Addr()); !has[f] {
			has[f] = true
			out = append(out, id)
		}
	}
	return out
}

// oneOf is the part of an error that names what was expected, of a list that may be long.
func oneOf(list []string) string {
	const shown = 5
	switch {
	case len(list) == 0:
		return "none"
	case len(list) > shown:
		list = append(slices.Clone(list[:shown]), "...")
	}
	return "one of " + strings.Join(list, ", ")
}

// nicOf is a NIC with what is checked of a PodNIC.
func nicOf(spec v1alpha1.PodNICSpec) (n NIC) {
	n.SecurityGroups = spec.SecurityGroups
	for _, a := range spec.Addresses {
		ip, _ := netip.ParseAddr(a.IP) // valid by the schema
		n.Addresses = append(n.Addresses, Address{a.Subnet, ip})
	}
	return n
}

// objectField is the field of a PodNIC for a key of the annotation.
func objectField(name string) string {
	if !strings.HasPrefix(name, "addresses[") && !strings.HasPrefix(name, "securityGroups[") {
		name = "addresses[0]." + name
	}
	return "spec." + name
}
