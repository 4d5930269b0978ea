package nicrequest_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/vpcport"
)

// shared is a VPC of several namespaces: shop has limits by its name, teams by a label, and the rest has none.
func shared(provider v1alpha1.VPCProvider) *v1alpha1.VPC {
	none, two := int32(0), int32(2)
	v := &v1alpha1.VPC{Spec: v1alpha1.VPCSpec{
		Provider: provider, DefaultSecurityGroups: []string{"open"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
		NamespaceLimits: []v1alpha1.VPCNamespaceLimits{
			{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"shop"}}, SecurityGroups: []string{"web"}, Subnets: []string{"s-2", "named"}, MaxNICs: &two},
			{Namespaces: v1alpha1.VPCNamespaces{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "ops"}}}, SecurityGroups: []string{"*"}},
			{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"shop", "closed"}}, SecurityGroups: []string{"db"}, MaxNICs: &none},
			{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"lost"}}, Subnets: []string{"gone"}},
		},
	}}
	v.Name = "v"
	v.Status.Subnets = []v1alpha1.VPCSubnet{
		{ID: "s-1", Name: "first", CIDR: "10.0.1.0/24"}, {ID: "s-2", Name: "second", CIDR: "10.0.2.0/24"},
		{ID: "s-3", Name: "named", CIDR: "10.0.3.0/24"}, {ID: "s-6", CIDR: "2001:db8::/64"},
	}
	if provider != v1alpha1.ProviderEC2 {
		v.Spec.DefaultSubnets = []string{"first"}
	}
	return v
}

// A NIC of a pod, a PodNIC or a policy may name the VPC's default groups, and the groups and subnets that the VPC
// grants to its namespace.
func TestLimits(t *testing.T) {
	const (
		groups  = " (spec.namespaceLimits of the VPC)"
		subnets = ", expected one of s-2, named (spec.namespaceLimits of the VPC)"
	)
	ops := map[string]string{"team": "ops"}
	for _, tt := range []struct {
		name, namespace string
		has             map[string]string
		spec            v1alpha1.PodNICSpec // what is asked for
		at, want        string              // the field, of a NIC, and what is wrong with it
	}{
		{"nothing", "any", nil, v1alpha1.PodNICSpec{}, "", ""},
		{"the VPC's group", "any", nil, v1alpha1.PodNICSpec{SecurityGroups: []string{"open"}}, "", ""},
		{"a group that is for nobody", "any", nil, v1alpha1.PodNICSpec{SecurityGroups: []string{"open", "db"}}, "securityGroups[1]", "db is not for namespace any in VPC v, expected one of open" + groups},
		{"any subnet", "any", nil, v1alpha1.PodNICSpec{Addresses: []v1alpha1.NICAddress{{IP: "10.0.1.9"}}}, "", ""},
		{"a group of its own", "shop", nil, v1alpha1.PodNICSpec{SecurityGroups: []string{"web", "open"}}, "", ""},
		{"that of a later entry", "shop", nil, v1alpha1.PodNICSpec{SecurityGroups: []string{"db"}}, "securityGroups[0]", "db is not for namespace shop in VPC v, expected one of open, web" + groups},
		{"its group in capitals", "shop", nil, v1alpha1.PodNICSpec{SecurityGroups: []string{"WEB"}}, "securityGroups[0]", "WEB is not for namespace shop in VPC v, expected one of open, web" + groups},
		{"all groups", "any", nil, v1alpha1.PodNICSpec{SecurityGroups: []string{"*"}}, "securityGroups[0]", "* is not for namespace any in VPC v, expected one of open" + groups},
		{"any group by a label", "shop-2", ops, v1alpha1.PodNICSpec{SecurityGroups: []string{"db"}}, "", ""},
		{"its subnets by ID and name", "shop", nil, v1alpha1.PodNICSpec{Addresses: []v1alpha1.NICAddress{{Subnet: "second"}}}, "", ""},
		{"its subnet by name", "shop", nil, v1alpha1.PodNICSpec{Addresses: []v1alpha1.NICAddress{{Subnet: "s-3", IP: "10.0.3.9"}}}, "", ""},
		{"another subnet", "shop", nil, v1alpha1.PodNICSpec{Addresses: []v1alpha1.NICAddress{{Subnet: "s-1"}}}, "subnet", "subnet first is not for namespace shop in VPC v" + subnets},
		{"an address of another subnet", "shop", nil, v1alpha1.PodNICSpec{Addresses: []v1alpha1.NICAddress{{IP: "10.0.1.9"}}}, "ip", "subnet first is not for namespace shop in VPC v" + subnets},
	} {
		v := shared(v1alpha1.ProviderNeutron)
		full := func(at, prefix string) string {
			if tt.want == "" {
				return ""
			}
			return prefix + at + ": " + tt.want
		}
		check := func(of string, errs nicrequest.Errors, want string) {
			t.Helper()
			if err := errs.Err(); (err == nil) != (want == "") || err != nil && err.Error() != want {
				t.Errorf("%s: %s: got %v\nwant %s", tt.name, of, err, want)
			}
		}
		objectAt := tt.at
		if len(tt.spec.Addresses) > 0 {
			objectAt = "addresses[0]." + tt.at
		}
		check("PodNIC", nicrequest.CheckObject(tt.spec, v, tt.namespace, tt.has), full(objectAt, "spec."))
		_, errs := nicrequest.Request{Pod: asking(tt.spec), Namespace: tt.namespace, Labels: tt.has, VPC: v, First: ofPort}.Judge()
		check("pod", errs, full(tt.at, nicsField+"[0]."))
		p := nicrequest.Policy{Kind: nicrequest.KindSecurityGroupPolicy, SecurityGroups: tt.spec.SecurityGroups}
		if len(tt.spec.Addresses) > 0 {
			if p.Subnet = tt.spec.Addresses[0].Subnet; p.Subnet == "" {
				continue
			}
		}
		check("policy", nicrequest.CheckPolicy(p, nicrequest.Namespace{Name: tt.namespace, Labels: tt.has}, v), full(tt.at, "spec."))
	}
}

// asking returns a pod that asks for the same NIC as a PodNIC.
func asking(spec v1alpha1.PodNICSpec) nicrequest.Pod {
	keys := []string{}
	if len(spec.SecurityGroups) > 0 {
		keys = append(keys, fmt.Sprintf("securityGroups: ['%s']", strings.Join(spec.SecurityGroups, "', '")))
	}
	for _, a := range spec.Addresses {
		for key, value := range map[string]string{"subnet": a.Subnet, "ip": a.IP} {
			if value != "" {
				keys = append(keys, key+": "+value)
			}
		}
	}
	return nicrequest.Pod{Annotations: map[string]string{"berth.dev/vpc": "v", "berth.dev/nics": "[{" + strings.Join(keys, ", ") + "}]"}}
}

// A namespace that only invalid limits select gets nothing.
func TestLimitsThatCannotBeRead(t *testing.T) {
	v := shared(v1alpha1.ProviderNeutron)
	v.Spec.NamespaceLimits[0].Namespaces = v1alpha1.VPCNamespaces{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}
	const want = "VPC v: spec.namespaceLimits[0].namespaces.selector: "
	if err := nicrequest.CheckObject(v1alpha1.PodNICSpec{}, v, "shop", nil).Err(); err == nil || !strings.HasPrefix(err.Error(), "spec.vpc: "+want) {
		t.Errorf("got %v", err)
	}
	if l, err := nicrequest.LimitsOf(v.Spec, "shop", nil); err == nil || l.Most != 0 || l.Groups != nil {
		t.Errorf("got %+v, %v", l, err)
	}
}

// A NIC that names no subnet is in one that its namespace may use.
func TestDefaultSubnetsWithinLimits(t *testing.T) {
	for _, tt := range []struct {
		name, namespace string
		provider        v1alpha1.VPCProvider
		defaults        []string
		want, among     []string
		err             string
	}{
		{"the VPC's", "any", v1alpha1.ProviderNeutron, []string{"first"}, []string{"s-1"}, nil, ""},
		{"those of both", "shop", v1alpha1.ProviderNeutron, []string{"named", "s-6"}, []string{"s-3"}, []string{"s-2", "s-3"}, ""},
		{"the first of its own", "shop", v1alpha1.ProviderNeutron, []string{"first"}, []string{"s-2"}, []string{"s-2", "s-3"}, ""},
		{"as the provider chooses", "any", v1alpha1.ProviderNeutron, nil, nil, nil, ""},
		{"not as the provider chooses", "shop", v1alpha1.ProviderNeutron, nil, []string{"s-2"}, []string{"s-2", "s-3"}, ""},
		{"by the zone, among its own", "shop", v1alpha1.ProviderEC2, nil, nil, []string{"s-2", "s-3"}, ""},
		{"of none that is there", "lost", v1alpha1.ProviderEC2, nil, nil, nil, nicsField + "[0]: names no subnet, and VPC v has none of those that are for namespace lost: gone"},
	} {
		v := shared(tt.provider)
		net := nicrequest.NetworkOf(v)
		net.Default = tt.defaults
		net.Limits, _ = nicrequest.LimitsOf(v.Spec, tt.namespace, nil)
		got, errs := nicrequest.Resolve([]nicrequest.NIC{{}}, net)
		var ids []string
		for _, a := range got[0].Addresses {
			ids = append(ids, a.Subnet)
		}
		err := errs.Err()
		if fmt.Sprint(ids) != fmt.Sprint(tt.want) || fmt.Sprint(net.Among()) != fmt.Sprint(tt.among) || (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) {
			t.Errorf("%s: got %v among %v, %v", tt.name, ids, net.Among(), err)
		}
	}
	both := vpcport.Subnet{ID: "s", CIDR: netip.MustParsePrefix("10.0.0.0/24")}
	if got, errs := nicrequest.Resolve([]nicrequest.NIC{{}}, nicrequest.Network{Subnets: []vpcport.Subnet{both}}); len(errs) > 0 || len(got[0].Addresses) > 0 {
		t.Errorf("without limits: %+v, %v", got, errs)
	}
}

// The first entry for a namespace limits its number of NICs.
func TestMostNICs(t *testing.T) {
	v := shared(v1alpha1.ProviderNeutron)
	for _, tt := range []struct {
		namespace string
		per       int32 // 0: not set
		want      string
	}{
		{"any", 0, "namespace any may have 128 NICs with a port in VPC v (spec.maxNICsPerNamespace of the VPC)"},
		{"any", 5, "namespace any may have 5 NICs with a port in VPC v (spec.maxNICsPerNamespace of the VPC)"},
		{"shop", 5, "namespace shop may have 2 NICs with a port in VPC v (spec.namespaceLimits[0].maxNICs of the VPC)"},
		{"closed", 0, "namespace closed may have 0 NICs with a port in VPC v (spec.namespaceLimits[2].maxNICs of the VPC)"},
	} {
		v.Spec.MaxNICsPerNamespace = nil
		if tt.per > 0 {
			v.Spec.MaxNICsPerNamespace = &tt.per
		}
		l, err := nicrequest.LimitsOf(v.Spec, tt.namespace, nil)
		if got := l.Full("v"); err != nil || !strings.HasPrefix(got.Error(), tt.want) {
			t.Errorf("got %v, %v\nwant %s", got, err, tt.want)
		}
	}
}
