package nicrequest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/api/v1alpha1"
)

// PolicyKind is a kind of policies that give pods a NIC.
type PolicyKind string

// The kinds of policies.
const (
	KindNICPolicy           PolicyKind = "NICPolicy"
	KindSecurityGroupPolicy PolicyKind = "SecurityGroupPolicy" // the Amazon VPC CNI's
)

// Policy gives a NIC to the pods of its namespace that it selects.
type Policy struct {
	Kind    PolicyKind
	Name    string
	Created time.Time

	Pods     labels.Selector // of their labels; nil: all
	Accounts labels.Selector // of the labels of their service accounts; nil: all

	VPC            string // empty: that of the namespace, or the only one
	Subnet         string // empty: the default of the VPC
	SecurityGroups []string
}

// String returns KIND/NAME, as annotations, Events and errors have it.
func (p Policy) String() string { return string(p.Kind) + "/" + p.Name }

// selects reports whether a policy selects a pod with some labels and a service account with some labels.
func (p Policy) selects(pod, account labels.Set) bool {
	return (p.Pods == nil || p.Pods.Matches(pod)) && (p.Accounts == nil || p.Accounts.Matches(account))
}

// MayBeSelected reports whether policies count for a pod: it may have NICs, and its annotations do not mention any.
func (p Pod) MayBeSelected() bool {
	_, asks := p.Annotations[v1alpha1.AnnotationNICs]
	_, names := p.Annotations[v1alpha1.AnnotationVPC]
	return !asks && !names && !p.Mirror && !p.HostNetwork
}

// AskAccounts reports whether a policy selects by labels of service accounts.
func AskAccounts(policies []Policy) bool {
	return slices.ContainsFunc(policies, func(p Policy) bool { return p.Accounts != nil })
}

// Choice is which policies count for a pod: none, one, or several SecurityGroupPolicies.
type Choice struct {
	Counts []Policy
	Over   []Policy // select the pod too, but do not count
}

// Choose returns which policies of its namespace count for a pod with some labels and a service account with some labels: the
// oldest that selects it, and of equally old ones the first by kind and name. If that is a SecurityGroupPolicy, all others of
// its kind that select the pod count too, as with the Amazon VPC CNI, which gives a pod the groups of all of them.
func Choose(policies []Policy, pod, account map[string]string) (c Choice) {
	var selected []Policy
	for _, p := range policies {
		if p.selects(pod, account) {
			selected = append(selected, p)
		}
	}
	slices.SortFunc(selected, func(x, y Policy) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.String(), y.String()))
	})
	for i, p := range selected {
		if i == 0 || p.Kind == KindSecurityGroupPolicy && selected[0].Kind == p.Kind {
			c.Counts = append(c.Counts, p)
		} else {
			c.Over = append(c.Over, p)
		}
	}
	return c
}

// VPC returns the VPC in which a pod of a namespace gets its NIC: the one that the policy names, else the one that the namespace
// names, else the only one that is for the namespace. For a SecurityGroupPolicy only VPCs of EC2 count: if the namespace
// names one of another provider, it has no effect. A name of no VPC is an error. Errors name the policy.
func (c Choice) VPC(namespace Namespace, all []v1alpha1.VPC) (*v1alpha1.VPC, error) {
	p := c.Counts[0]
	name := cmp.Or(p.VPC, namespace.VPC)
	var fit []*v1alpha1.VPC
	var named bool // there is a VPC of that name, of any provider
	for i := range all {
		v := &all[i]
		named = named || v.Name == name
		if p.Kind == KindSecurityGroupPolicy && v.Spec.Provider != v1alpha1.ProviderEC2 {
			continue
		}
		if v.Name == name {
			return v, nil
		}
		if allowed, err := v.Spec.AllowedNamespaces.Allows(namespace.Name, namespace.Labels); allowed && err == nil {
			fit = append(fit, v)
		}
	}
	switch {
	case p.VPC != "":
		return nil, fmt.Errorf("%s: spec.vpc: there is no VPC %s", p, p.VPC)
	case name != "" && p.Kind != KindSecurityGroupPolicy:
		return nil, fmt.Errorf("%s: spec.vpc is not set, and there is no VPC %s, which namespace %s names by the annotation %s", p, name, namespace.Name, v1alpha1.AnnotationVPC)
	case name != "" && !named:
		return nil, fmt.Errorf("%s: there is no VPC %s, which namespace %s names by the annotation %s", p, name, namespace.Name, v1alpha1.AnnotationVPC)
	case len(fit) == 1:
		return fit[0], nil
	case p.Kind == KindSecurityGroupPolicy:
		return nil, fmt.Errorf("%s: %d VPCs of provider ec2 are for namespace %s, expected one, or the annotation %s of the namespace", p, len(fit), namespace.Name, v1alpha1.AnnotationVPC)
	}
	return nil, fmt.Errorf("%s: spec.vpc is not set, and %d VPCs are for namespace %s, expected the name of one, or the annotation %s of the namespace", p, len(fit), namespace.Name, v1alpha1.AnnotationVPC)
}

// Namespace is what policies need of a namespace.
type Namespace struct {
	Name   string
	Labels map[string]string
	VPC    string // its annotation berth.dev/vpc
}

// groups are the security groups of all policies that count, each once.
func (c Choice) groups() (all []string) {
	for _, p := range c.Counts {
		for _, g := range p.SecurityGroups {
			if !slices.Contains(all, g) {
				all = append(all, g)
			}
		}
	}
	return all
}

// Annotations returns the annotations by which a pod asks for the NIC of its policies in a VPC. The NIC is the first interface if
// that may be a port of the VPC, else a further one.
func (c Choice) Annotations(vpc *v1alpha1.VPC, first First) map[string]string {
	out := map[string]string{v1alpha1.AnnotationNICPolicy: names(c.Counts)}
	if len(c.Counts) == 0 {
		return out
	}
	if len(c.Over) > 0 {
		out[v1alpha1.AnnotationNICPolicyOverlap] = names(c.Over)
	}
	nic := written{Subnet: c.Counts[0].Subnet, SecurityGroups: c.groups()}
	if first.In(vpc.Spec.Provider).IsNIC(first.Name) {
		nic.Name = first.Name
	}
	text, _ := json.Marshal([]written{nic}) // of strings, which cannot fail
	out[v1alpha1.AnnotationVPC], out[v1alpha1.AnnotationNICs] = vpc.Name, string(text)
	return out
}

// written is an Entry as Parse reads it.
type written struct {
	Name           string   `json:"name,omitempty"`
	Subnet         string   `json:"subnet,omitempty"`
	SecurityGroups []string `json:"securityGroups,omitempty"`
}

func names(policies []Policy) string {
	texts := make([]string, len(policies))
	for i, p := range policies {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// maxEC2Groups is the default quota of security groups of a network interface (Amazon VPC quotas, "Security groups per network
// interface").
const maxEC2Groups = 5

// CheckPolicy returns why pods of a namespace cannot get the NIC of a policy in a VPC.
func CheckPolicy(p Policy, namespace Namespace, vpc *v1alpha1.VPC) Errors {
	errs := checkNamespace(fieldSpecVPC, vpc.Name, vpc.Spec.AllowedNamespaces, namespace.Name, namespace.Labels)
	if most := maxEC2Groups; vpc.Spec.Provider == v1alpha1.ProviderEC2 && len(p.SecurityGroups) > most {
		errs.add("spec.securityGroups", "has %d groups, expected %d at most in VPC %s of provider %s", len(p.SecurityGroups), most, vpc.Name, v1alpha1.ProviderEC2)
	}
	net, wrong := networkFor(fieldSpecVPC, vpc, namespace.Name, namespace.Labels)
	if errs = append(errs, wrong...); len(errs) > 0 {
		return errs
	}
	n := NIC{SecurityGroups: p.SecurityGroups}
	if p.Subnet != "" {
		n.Addresses = []Address{{Subnet: p.Subnet}}
	}
	net.checkLimits(n, func(name string) string { return "spec." + name }, &errs)
	if p.Subnet != "" && len(net.Subnets) > 0 {
		net.find(Address{Subnet: p.Subnet}, "spec.subnet", &errs)
	}
	return errs
}
