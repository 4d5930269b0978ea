package nicrequest

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
)

// fieldSpecVPC is the field of a PodNIC with the name of its VPC.
const fieldSpecVPC = "spec.vpc"

// CheckNamespace returns an error if pods of a namespace may not have NICs in a VPC.
func CheckNamespace(vpc string, of *v1alpha1.VPCNamespaces, namespace string, has map[string]string) Errors {
	return checkNamespace(fieldVPC, vpc, of, namespace, has)
}

func checkNamespace(at, vpc string, of *v1alpha1.VPCNamespaces, namespace string, has map[string]string) Errors {
	var errs Errors
	allowed, err := of.Allows(namespace, has)
	if err != nil {
		errs.add(at, "VPC %s: spec.allowedNamespaces.%s", vpc, err)
	}
	if allowed || err != nil {
		return errs
	}
	errs.add(at, "VPC %s is not for namespace %s (spec.allowedNamespaces of the VPC)", vpc, namespace)
	return errs
}

// CheckObject returns the errors of a PodNIC that a person creates in a namespace, or whose groups a person changes: the namespace
// may not use the VPC or its limits forbid the NIC, or a subnet or address does not exist. Subnets and addresses are not
// checked while the VPC's subnets are unknown.
func CheckObject(spec v1alpha1.PodNICSpec, vpc *v1alpha1.VPC, namespace string, has map[string]string) Errors {
	errs := checkNamespace(fieldSpecVPC, spec.VPC, vpc.Spec.AllowedNamespaces, namespace, has)
	net, wrong := networkFor(fieldSpecVPC, vpc, namespace, has)
	net.checkBinding(string(spec.Binding), "spec.binding", &errs)
	if errs = append(errs, wrong...); len(errs) > 0 {
		return errs
	}
	n := nicOf(spec)
	errs = net.CheckLimits(n, true)
	if len(errs) > 0 || len(net.Subnets) == 0 || spec.PortID != "" || len(spec.Addresses) == 0 {
		return errs
	}
	_, errs = Resolve([]NIC{n}, net)
	for i := range errs {
		errs[i].Field = objectField(strings.TrimPrefix(errs[i].Field, field(0, "")+"."))
	}
	return errs
}

// networkFor is NetworkOf with the limits of a namespace. The errors, for the field at, are about limits that cannot be
// parsed.
func networkFor(at string, vpc *v1alpha1.VPC, namespace string, has map[string]string) (Network, Errors) {
	var errs Errors
	net := NetworkOf(vpc)
	limits, err := LimitsOf(vpc.Spec, namespace, has)
	if err != nil {
		errs.add(at, "VPC %s: %s", vpc.Name, err)
	}
	net.Limits = limits
	return net, errs
}

// NetworkOf returns the network of a VPC by its spec and status, without invalid subnets and without Limits.
func NetworkOf(vpc *v1alpha1.VPC) Network {
	net := Network{VPC: vpc.Name, Default: vpc.Spec.DefaultSubnets, Lends: vpc.Spec.Provider == v1alpha1.ProviderAlcor, Zones: vpc.Spec.Provider == v1alpha1.ProviderEC2}
	for _, s := range vpc.Status.Subnets {
		cidr, err := netip.ParsePrefix(s.CIDR)
		if err != nil {
			continue
		}
		gateway, _ := netip.ParseAddr(s.Gateway) // empty if there is none
		second, _ := netip.ParsePrefix(s.IPv6CIDR)
		net.Subnets = append(net.Subnets, vpcport.Subnet{ID: s.ID, Name: s.Name, CIDR: cidr, Gateway: gateway, IPv6CIDR: second})
	}
	return net
}

// Request is a pod that is created or updated.
type Request struct {
	Pod, Before Pod  // Before is the pod before an update
	Edit        bool // there is a Before
	Namespace   string
	Labels      map[string]string // of the namespace
	VPC         *v1alpha1.VPC     // named by Pod; nil: it does not exist
	First       First
}

// Judge returns the errors of a request, and in missing the name of a VPC that does not exist and that the pod will wait for.
func (r Request) Judge() (missing string, errs Errors) {
	name, errs := r.Pod.VPC()
	if r.Edit {
		if before, was := r.Before.VPC(); was == nil && len(errs) == 0 {
			errs = CheckVPCChange(before, name)
		}
	}
	if len(errs) > 0 || name == "" {
		return "", errs
	}
	most := 0
	if r.VPC == nil {
		missing = name
	} else {
		r.First = r.First.In(r.VPC.Spec.Provider)
		if r.VPC.Spec.MaxNICsPerPod != nil {
			most = int(*r.VPC.Spec.MaxNICsPerPod)
		}
	}
	nics, errs := r.Pod.NICs(r.First, most)
	if len(errs) > 0 {
		return missing, errs
	}
	added := nics
	if r.Edit {
		before, was := r.Before.NICs(r.First, 0)
		if was == nil {
			if errs := CheckChange(before, nics, r.First); len(errs) > 0 {
				return missing, errs
			}
			added = slices.DeleteFunc(slices.Clone(nics), func(n NIC) bool {
				return slices.ContainsFunc(before, func(o NIC) bool { return o.Name == n.Name })
			})
		}
	}
	if r.VPC == nil {
		return missing, nil
	}
	if !r.Edit {
		errs = CheckNamespace(name, r.VPC.Spec.AllowedNamespaces, r.Namespace, r.Labels)
	}
	if len(added) == 0 {
		return "", errs
	}
	net, wrong := networkFor(fieldVPC, r.VPC, r.Namespace, r.Labels)
	if errs = append(errs, wrong...); len(errs) > 0 {
		return "", errs
	}
	for _, n := range added {
		errs = append(errs, net.CheckLimits(n, false)...)
	}
	if len(errs) == 0 && len(net.Subnets) > 0 {
		_, errs = Resolve(added, net)
	}
	return "", errs
}

// Missing returns the warning about a pod or a PodNIC in a VPC that does not exist.
func Missing(vpc string) string {
	return fmt.Sprintf("there is no VPC %s: NICs in it wait for it", vpc)
}

// CheckVPCChange returns an error if an update moves a pod to another VPC.
func CheckVPCChange(before, after string) Errors {
	var errs Errors
	if before != after {
		errs.add(fieldVPC, "cannot be changed, was %q: recreate the pod", before)
	}
	return errs
}

// CheckChange returns the errors of an update of a pod's NICs. NICs may be added and removed, except the first interface and the
// one with the default route. No NIC may change, and none may replace a first interface that is not a NIC.
func CheckChange(before, after []NIC, first First) Errors {
	var errs Errors
	for _, old := range before {
		i := slices.IndexFunc(after, func(n NIC) bool { return n.Name == old.Name })
		if i < 0 {
			if first.IsNIC(old.Name) {
				errs.add(fieldNICs, "lacks %s, the pod's first interface, which cannot be removed", old.Name)
			} else if old.DefaultRoute {
				errs.add(fieldNICs, "lacks %s, which has the pod's default route and cannot be removed while the pod runs", old.Name)
			}
			continue
		}
		now := after[i]
		old.Index = now.Index
		if !reflect.DeepEqual(old, now) {
			errs.add(field(now.Index, ""), "%s cannot be changed while the pod has it: remove it, and add one of another name", now.Name)
		}
	}
	for _, n := range after {
		if slices.ContainsFunc(before, func(o NIC) bool { return o.Name == n.Name }) {
			continue
		}
		if first.isBranch(n.Name) && !first.IsPort {
			errs.add(field(n.Index, "name"), "%s is the name of the pod's first interface, which stays what it was when the pod came: recreate the pod", n.Name)
		}
		if n.DefaultRoute {
			errs.add(field(n.Index, "defaultRoute"), "is true of %s, which is added: the default route of a pod stays where it was when the pod came; leave it out, or recreate the pod", n.Name)
		}
	}
	return errs
}
