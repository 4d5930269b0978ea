package nicrequest_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// policy returns a policy that was made at a second and selects by labels "key=value"; "-" is no
// selector, "" selects everything.
func policy(kind nicrequest.PolicyKind, name string, second int64, pods, accounts string, groups ...string) nicrequest.Policy {
	selector := func(text string) labels.Selector {
		if text == "-" {
			return nil
		}
		s, err := labels.Parse(text)
		if err != nil {
			panic(err)
		}
		return s
	}
	return nicrequest.Policy{Kind: kind, Name: name, Created: time.Unix(second, 0), Pods: selector(pods), Accounts: selector(accounts), SecurityGroups: groups}
}

func namesOf(policies []nicrequest.Policy) string {
	var out []string
	for _, p := range policies {
		out = append(out, p.String())
	}
	return strings.Join(out, " ")
}

func TestChoose(t *testing.T) {
	ours := func(name string, second int64, pods, accounts string) nicrequest.Policy {
		return policy(nicrequest.KindNICPolicy, name, second, pods, accounts)
	}
	theirs := func(name string, second int64, pods, accounts string) nicrequest.Policy {
		return policy(nicrequest.KindSecurityGroupPolicy, name, second, pods, accounts)
	}
	db, data := map[string]string{"app": "db"}, map[string]string{"tier": "data"}
	for _, tt := range []struct {
		name         string
		policies     []nicrequest.Policy
		pod, account map[string]string
		counts, over string
	}{
		{"none", nil, db, data, "", ""},
		{"one that selects others", []nicrequest.Policy{ours("a", 1, "app=web", "-")}, db, data, "", ""},
		{"one of all", []nicrequest.Policy{ours("a", 1, "", "-")}, nil, nil, "NICPolicy/a", ""},
		{"by the pod", []nicrequest.Policy{ours("a", 1, "app=db", "-")}, db, nil, "NICPolicy/a", ""},
		{"by the account", []nicrequest.Policy{ours("a", 1, "-", "tier=data")}, nil, data, "NICPolicy/a", ""},
		{"by both", []nicrequest.Policy{ours("a", 1, "app=db", "tier=data")}, db, data, "NICPolicy/a", ""},
		{"by both, of another account", []nicrequest.Policy{ours("a", 1, "app=db", "tier=data")}, db, nil, "", ""},
		{"by both, another pod", []nicrequest.Policy{ours("a", 1, "app=db", "tier=data")}, nil, data, "", ""},
		{"by the account's labels, which are the pod's", []nicrequest.Policy{ours("a", 1, "-", "app=db")}, db, nil, "", ""},
		{"the oldest", []nicrequest.Policy{ours("a", 3, "", "-"), ours("c", 1, "app=db", "-"), ours("b", 2, "", "-")}, db, nil, "NICPolicy/c", "NICPolicy/b NICPolicy/a"},
		{"the oldest that selects", []nicrequest.Policy{ours("a", 3, "", "-"), ours("c", 1, "app=web", "-"), ours("b", 2, "", "-")}, db, nil, "NICPolicy/b", "NICPolicy/a"},
		{"the first by name", []nicrequest.Policy{ours("b", 1, "", "-"), ours("a", 1, "", "-")}, db, nil, "NICPolicy/a", "NICPolicy/b"},
		{"all of the other kind", []nicrequest.Policy{theirs("b", 2, "", "-"), theirs("a", 1, "app=db", "-"), theirs("c", 3, "app=web", "-")}, db, nil, "SecurityGroupPolicy/a SecurityGroupPolicy/b", ""},
		{"theirs first", []nicrequest.Policy{ours("a", 2, "", "-"), theirs("b", 1, "", "-"), theirs("c", 3, "", "-")}, db, nil, "SecurityGroupPolicy/b SecurityGroupPolicy/c", "NICPolicy/a"},
		{"ours first", []nicrequest.Policy{theirs("b", 2, "", "-"), ours("a", 1, "", "-"), theirs("c", 3, "", "-")}, db, nil, "NICPolicy/a", "SecurityGroupPolicy/b SecurityGroupPolicy/c"},
	} {
		for range 2 {
			got := nicrequest.Choose(tt.policies, tt.pod, tt.account)
			if counts, over := namesOf(got.Counts), namesOf(got.Over); counts != tt.counts || over != tt.over {
				t.Errorf("%s: %q count and %q do not, want %q and %q", tt.name, counts, over, tt.counts, tt.over)
			}
			slices.Reverse(tt.policies)
		}
	}
	if nicrequest.AskAccounts([]nicrequest.Policy{ours("a", 1, "", "-")}) || !nicrequest.AskAccounts([]nicrequest.Policy{ours("a", 1, "", "-"), ours("b", 1, "", "")}) {
		t.Error("a service account is asked for that no policy needs, or is not")
	}
}

// vpcOf returns a VPC for some namespaces.
func vpcOf(name string, provider v1alpha1.VPCProvider, namespaces ...string) v1alpha1.VPC {
	v := v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.VPCSpec{Provider: provider}}
	v.Spec.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: namespaces, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"vpc": name}}}
	v.Spec.NamespaceLimits = []v1alpha1.VPCNamespaceLimits{{Namespaces: *v.Spec.AllowedNamespaces, SecurityGroups: []string{"*"}}}
	v.Status.Subnets = []v1alpha1.VPCSubnet{
		{ID: "subnet-1", Name: "web", CIDR: "10.0.0.0/24"}, {ID: "subnet-2", Name: "twice", CIDR: "10.0.1.0/24"}, {ID: "subnet-3", Name: "twice", CIDR: "10.0.2.0/24"},
		{ID: "subnet-4", Name: `we"b`, CIDR: "10.0.3.0/24"},
	}
	return v
}

func TestVPCOfAPolicy(t *testing.T) {
	e, n, other := vpcOf("e", v1alpha1.ProviderEC2, "shop"), vpcOf("n", v1alpha1.ProviderNeutron, "shop"), vpcOf("other", v1alpha1.ProviderEC2, "elsewhere")
	ours, theirs := nicrequest.Policy{Kind: nicrequest.KindNICPolicy, Name: "a"}, nicrequest.Policy{Kind: nicrequest.KindSecurityGroupPolicy, Name: "b"}
	named := func(p nicrequest.Policy, vpc string) nicrequest.Policy { p.VPC = vpc; return p }
	shop := func(vpc string) nicrequest.Namespace { return nicrequest.Namespace{Name: "shop", VPC: vpc} }
	for _, tt := range []struct {
		name      string
		policy    nicrequest.Policy
		namespace nicrequest.Namespace
		all       []v1alpha1.VPC
		want, err string
	}{
		{"its own", named(ours, "n"), shop("e"), []v1alpha1.VPC{e, n}, "n", ""},
		{"its own, which is not for the namespace", named(ours, "other"), shop(""), []v1alpha1.VPC{e, other}, "other", ""},
		{"its own, that is not there", named(ours, "x"), shop("e"), []v1alpha1.VPC{e, n}, "", "NICPolicy/a: spec.vpc: there is no VPC x"},
		{"the namespace's", ours, shop("n"), []v1alpha1.VPC{e, n}, "n", ""},
		{"the namespace's, that is not there", ours, shop("x"), []v1alpha1.VPC{e}, "", "NICPolicy/a: spec.vpc is not set, and there is no VPC x, which namespace shop names"},
		{"the only one", ours, shop(""), []v1alpha1.VPC{other, n}, "n", ""},
		{"the only one by labels", ours, nicrequest.Namespace{Name: "bank", Labels: map[string]string{"vpc": "e"}}, []v1alpha1.VPC{other, n, e}, "e", ""},
		{"none", ours, shop(""), []v1alpha1.VPC{other}, "", "NICPolicy/a: spec.vpc is not set, and 0 VPCs are for namespace shop"},
		{"two", ours, shop(""), []v1alpha1.VPC{e, n}, "", "NICPolicy/a: spec.vpc is not set, and 2 VPCs are for namespace shop"},
		{"of EC2", theirs, shop(""), []v1alpha1.VPC{n, e, other}, "e", ""},
		{"of EC2, where the namespace names another", theirs, shop("n"), []v1alpha1.VPC{n, e}, "e", ""},
		{"of EC2, the namespace's", theirs, shop("e2"), []v1alpha1.VPC{e, vpcOf("e2", v1alpha1.ProviderEC2, "shop")}, "e2", ""},
		{"of EC2, where the namespace names one that is not there", theirs, shop("x"), []v1alpha1.VPC{n, e}, "", "SecurityGroupPolicy/b: there is no VPC x, which namespace shop names"},
		{"of EC2, beside those of Neutron alone", theirs, shop(""), []v1alpha1.VPC{n}, "", "SecurityGroupPolicy/b: 0 VPCs of provider ec2 are for namespace shop"},
		{"none of EC2, where the namespace names another", theirs, shop("n"), []v1alpha1.VPC{n, other}, "", "SecurityGroupPolicy/b: 0 VPCs of provider ec2 are for namespace shop"},
		{"two of EC2", theirs, shop(""), []v1alpha1.VPC{e, vpcOf("e2", v1alpha1.ProviderEC2, "shop")}, "", "SecurityGroupPolicy/b: 2 VPCs of provider ec2 are for namespace shop"},
	} {
		got, err := nicrequest.Choice{Counts: []nicrequest.Policy{tt.policy}}.VPC(tt.namespace, tt.all)
		if (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) || err == nil && got.Name != tt.want {
			t.Errorf("%s: got %+v, %v, want %s, %s", tt.name, got, err, tt.want, tt.err)
		}
	}
}

// Annotations that a policy writes are read as the policy meant them.
func TestAnnotationsOfAPolicy(t *testing.T) {
	e, n := vpcOf("e", v1alpha1.ProviderEC2, "*"), vpcOf("n", v1alpha1.ProviderNeutron, "*")
	always, maybe, never := nicrequest.First{Name: "eth0", IsPort: true}, nicrequest.First{Name: "eth0", MayBePort: true}, nicrequest.First{Name: "eth0"}
	groups := nicrequest.Choice{Counts: []nicrequest.Policy{
		policy(nicrequest.KindSecurityGroupPolicy, "a", 1, "", "-", "sg-1", "sg-2"), policy(nicrequest.KindSecurityGroupPolicy, "b", 2, "", "-", "sg-2", "sg-3"),
	}, Over: []nicrequest.Policy{policy(nicrequest.KindNICPolicy, "c", 3, "", "-")}}
	subnet := nicrequest.Choice{Counts: []nicrequest.Policy{{Kind: nicrequest.KindNICPolicy, Name: "d", Subnet: `we"b`}}}
	for _, tt := range []struct {
		name     string
		choice   nicrequest.Choice
		vpc      *v1alpha1.VPC
		first    nicrequest.First
		by, over string
		want     nicrequest.NIC
	}{
		{"the first of EC2", groups, &e, maybe, "SecurityGroupPolicy/a,SecurityGroupPolicy/b", "NICPolicy/c", nicrequest.NIC{Name: "eth0", SecurityGroups: []string{"sg-1", "sg-2", "sg-3"}}},
		{"beside another source", groups, &n, maybe, "SecurityGroupPolicy/a,SecurityGroupPolicy/b", "NICPolicy/c", nicrequest.NIC{Name: "eth1", SecurityGroups: []string{"sg-1", "sg-2", "sg-3"}}},
		{"of EC2 beside another source", groups, &e, never, "SecurityGroupPolicy/a,SecurityGroupPolicy/b", "NICPolicy/c", nicrequest.NIC{Name: "eth1", SecurityGroups: []string{"sg-1", "sg-2", "sg-3"}}},
		{"the first of all", subnet, &n, always, "NICPolicy/d", "", nicrequest.NIC{Name: "eth0", Addresses: []nicrequest.Address{{Subnet: "subnet-4"}}}},
		{"a subnet of EC2", subnet, &e, maybe, "NICPolicy/d", "", nicrequest.NIC{Name: "eth0", Addresses: []nicrequest.Address{{Subnet: "subnet-4"}}}},
		{"neither groups nor subnet", nicrequest.Choice{Counts: []nicrequest.Policy{{Kind: nicrequest.KindNICPolicy, Name: "d"}}}, &n, never, "NICPolicy/d", "", nicrequest.NIC{Name: "eth1"}},
	} {
		got := tt.choice.Annotations(tt.vpc, tt.first)
		if got[v1alpha1.AnnotationNICPolicy] != tt.by || got[v1alpha1.AnnotationNICPolicyOverlap] != tt.over || got[v1alpha1.AnnotationVPC] != tt.vpc.Name {
			t.Errorf("%s: got %v", tt.name, got)
		}
		nics, errs := nicrequest.Pod{Annotations: got}.NICs(tt.first.In(tt.vpc.Spec.Provider), 0)
		if len(errs) == 0 {
			nics, errs = nicrequest.Resolve(nics, nicrequest.NetworkOf(tt.vpc))
		}
		if len(errs) > 0 || len(nics) != 1 || nics[0].Name != tt.want.Name || !slices.Equal(nics[0].SecurityGroups, tt.want.SecurityGroups) || !slices.Equal(nics[0].Addresses, tt.want.Addresses) {
			t.Errorf("%s: got %+v, %v, want %+v", tt.name, nics, errs, tt.want)
		}
	}
	if got, want := (nicrequest.Choice{}).Annotations(nil, always), map[string]string{v1alpha1.AnnotationNICPolicy: ""}; !maps.Equal(got, want) {
		t.Errorf("a pod that none selects has %v, want %v", got, want)
	}
}

func TestCheckPolicy(t *testing.T) {
	e, n := vpcOf("e", v1alpha1.ProviderEC2, "shop"), vpcOf("n", v1alpha1.ProviderNeutron, "shop")
	unknown := n
	unknown.Status.Subnets = nil
	six := []string{"1", "2", "3", "4", "5", "6"}
	for _, tt := range []struct {
		name      string
		policy    nicrequest.Policy
		vpc       v1alpha1.VPC
		namespace string
		want      string
	}{
		{"groups", nicrequest.Policy{SecurityGroups: six[:5]}, e, "shop", ""},
		{"a subnet", nicrequest.Policy{Subnet: "web"}, n, "shop", ""},
		{"a subnet by its ID", nicrequest.Policy{Subnet: "subnet-3"}, n, "shop", ""},
		{"six groups elsewhere", nicrequest.Policy{SecurityGroups: six}, n, "shop", ""},
		{"a subnet of a VPC that is not known yet", nicrequest.Policy{Subnet: "lost"}, unknown, "shop", ""},
		{"six groups", nicrequest.Policy{SecurityGroups: six}, e, "shop", "spec.securityGroups: has 6 groups, expected 5 at most in VPC e of provider ec2"},
		{"no subnet of it", nicrequest.Policy{Subnet: "lost"}, n, "shop", `spec.subnet: VPC n has no subnet "lost"`},
		{"one of two subnets", nicrequest.Policy{Subnet: "twice"}, n, "shop", `spec.subnet: VPC n has 2 subnets named "twice", expected an ID such as subnet-2`},
		{"another namespace", nicrequest.Policy{}, n, "bank", "spec.vpc: VPC n is not for namespace bank (spec.allowedNamespaces of the VPC)"},
	} {
		err := nicrequest.CheckPolicy(tt.policy, nicrequest.Namespace{Name: tt.namespace}, &tt.vpc).Err()
		if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}
