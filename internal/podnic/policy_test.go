package podnic_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/podnic"
)

// policy is one that was made at some second and selects by labels "key=value"; "-" is no
// selector, "" one of everything.
func policy(kind podnic.PolicyKind, name string, second int64, pods, accounts string, groups ...string) podnic.Policy {
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
	return podnic.Policy{Kind: kind, Name: name, Created: time.Unix(second, 0), Pods: selector(pods), Accounts: selector(accounts), SecurityGroups: groups}
}

func namesOf(policies []podnic.Policy) string {
	var out []string
	for _, p := range policies {
		out = append(out, p.String())
	}
	return strings.Join(out, " ")
}

func TestChoose(t *testing.T) {
	ours := func(name string, second int64, pods, accounts string) podnic.Policy {
		return policy(podnic.KindNICPolicy, name, second, pods, accounts)
	}
	theirs := func(name string, second int64, pods, accounts string) podnic.Policy {
		return policy(podnic.KindSecurityGroupPolicy, name, second, pods, accounts)
	}
	db, data := map[string]string{"app": "db"}, map[string]string{"tier": "data"}
	for _, tt := range []struct {
		name         string
		policies     []podnic.Policy
		pod, account map[string]string
		counts, over string
	}{
		{"none", nil, db, data, "", ""},
		{"one that selects others", []podnic.Policy{ours("a", 1, "app=web", "-")}, db, data, "", ""},
		{"one of all", []podnic.Policy{ours("a", 1, "", "-")}, nil, nil, "NICPolicy/a", ""},
		{"by the pod", []podnic.Policy{ours("a", 1, "app=db", "-")}, db, nil, "NICPolicy/a", ""},
		{"by the account", []podnic.Policy{ours("a", 1, "-", "tier=data")}, nil, data, "NICPolicy/a", ""},
		{"by both", []podnic.Policy{ours("a", 1, "app=db", "tier=data")}, db, data, "NICPolicy/a", ""},
		{"by both, of another account", []podnic.Policy{ours("a", 1, "app=db", "tier=data")}, db, nil, "", ""},
		{"by both, another pod", []podnic.Policy{ours("a", 1, "app=db", "tier=data")}, nil, data, "", ""},
		{"by the account's labels, which are the pod's", []podnic.Policy{ours("a", 1, "-", "app=db")}, db, nil, "", ""},
		{"the oldest", []podnic.Policy{ours("a", 3, "", "-"), ours("c", 1, "app=db", "-"), ours("b", 2, "", "-")}, db, nil, "NICPolicy/c", "NICPolicy/b NICPolicy/a"},
		{"the oldest that selects", []podnic.Policy{ours("a", 3, "", "-"), ours("c", 1, "app=web", "-"), ours("b", 2, "", "-")}, db, nil, "NICPolicy/b", "NICPolicy/a"},
		{"the first by name", []podnic.Policy{ours("b", 1, "", "-"), ours("a", 1, "", "-")}, db, nil, "NICPolicy/a", "NICPolicy/b"},
		{"all of the other kind", []podnic.Policy{theirs("b", 2, "", "-"), theirs("a", 1, "app=db", "-"), theirs("c", 3, "app=web", "-")}, db, nil, "SecurityGroupPolicy/a SecurityGroupPolicy/b", ""},
		{"theirs first", []podnic.Policy{ours("a", 2, "", "-"), theirs("b", 1, "", "-"), theirs("c", 3, "", "-")}, db, nil, "SecurityGroupPolicy/b SecurityGroupPolicy/c", "NICPolicy/a"},
		{"ours first", []podnic.Policy{theirs("b", 2, "", "-"), ours("a", 1, "", "-"), theirs("c", 3, "", "-")}, db, nil, "NICPolicy/a", "SecurityGroupPolicy/b SecurityGroupPolicy/c"},
	} {
		for range 2 {
			got := podnic.Choose(tt.policies, tt.pod, tt.account)
			if counts, over := namesOf(got.Counts), namesOf(got.Over); counts != tt.counts || over != tt.over {
				t.Errorf("%s: %q count and %q do not, want %q and %q", tt.name, counts, over, tt.counts, tt.over)
			}
			slices.Reverse(tt.policies)
		}
	}
	if podnic.AskAccounts([]podnic.Policy{ours("a", 1, "", "-")}) || !podnic.AskAccounts([]podnic.Policy{ours("a", 1, "", "-"), ours("b", 1, "", "")}) {
		t.Error("a service account is asked for that no policy needs, or is not")
	}
}

// vpcOf is a VPC that is for some namespaces.
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
	ours, theirs := podnic.Policy{Kind: podnic.KindNICPolicy, Name: "a"}, podnic.Policy{Kind: podnic.KindSecurityGroupPolicy, Name: "b"}
	named := func(p podnic.Policy, vpc string) podnic.Policy { p.VPC = vpc; return p }
	shop := func(vpc string) podnic.Namespace { return podnic.Namespace{Name: "shop", VPC: vpc} }
	for _, tt := range []struct {
		name      string
		policy    podnic.Policy
		namespace podnic.Namespace
		all       []v1alpha1.VPC
		want, err string
	}{
		{"its own", named(ours, "n"), shop("e"), []v1alpha1.VPC{e, n}, "n", ""},
		{"its own, which is not for the namespace", named(ours, "other"), shop(""), []v1alpha1.VPC{e, other}, "other", ""},
		{"its own, that is not there", named(ours, "x"), shop("e"), []v1alpha1.VPC{e, n}, "", "NICPolicy/a: spec.vpc: there is no VPC x"},
		{"the namespace's", ours, shop("n"), []v1alpha1.VPC{e, n}, "n", ""},
		{"the namespace's, that is not there", ours, shop("x"), []v1alpha1.VPC{e}, "", "NICPolicy/a: spec.vpc is not set, and there is no VPC x, which namespace shop names"},
		{"the only one", ours, shop(""), []v1alpha1.VPC{other, n}, "n", ""},
		{"the only one by labels", ours, podnic.Namespace{Name: "bank", Labels: map[string]string{"vpc": "e"}}, []v1alpha1.VPC{other, n, e}, "e", ""},
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
		got, err := podnic.Choice{Counts: []podnic.Policy{tt.policy}}.VPC(tt.namespace, tt.all)
		if (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) || err == nil && got.Name != tt.want {
			t.Errorf("%s: got %+v, %v, want %s, %s", tt.name, got, err, tt.want, tt.err)
		}
	}
}

// What a policy has written is read as it was meant.
func TestAnnotationsOfAPolicy(t *testing.T) {
	e, n := vpcOf("e", v1alpha1.ProviderEC2, "*"), vpcOf("n", v1alpha1.ProviderNeutron, "*")
	always, maybe, never := podnic.First{Name: "eth0", IsPort: true}, podnic.First{Name: "eth0", MayBePort: true}, podnic.First{Name: "eth0"}
	groups := podnic.Choice{Counts: []podnic.Policy{
		policy(podnic.KindSecurityGroupPolicy, "a", 1, "", "-", "sg-1", "sg-2"), policy(podnic.KindSecurityGroupPolicy, "b", 2, "", "-", "sg-2", "sg-3"),
	}, Over: []podnic.Policy{policy(podnic.KindNICPolicy, "c", 3, "", "-")}}
	subnet := podnic.Choice{Counts: []podnic.Policy{{Kind: podnic.KindNICPolicy, Name: "d", Subnet: `we"b`}}}
	for _, tt := range []struct {
		name     string
		choice   podnic.Choice
		vpc      *v1alpha1.VPC
		first    podnic.First
		by, over string
		want     podnic.NIC
	}{
		{"the first of EC2", groups, &e, maybe, "SecurityGroupPolicy/a,SecurityGroupPolicy/b", "NICPolicy/c", podnic.NIC{Name: "eth0", SecurityGroups: []string{"sg-1", "sg-2", "sg-3"}}},
		{"beside another source", groups, &n, maybe, "SecurityGroupPolicy/a,SecurityGroupPolicy/b", "NICPolicy/c", podnic.NIC{Name: "eth1", SecurityGroups: []string{"sg-1", "sg-2", "sg-3"}}},
		{"of EC2 beside another source", groups, &e, never, "SecurityGroupPolicy/a,SecurityGroupPolicy/b", "NICPolicy/c", podnic.NIC{Name: "eth1", SecurityGroups: []string{"sg-1", "sg-2", "sg-3"}}},
		{"the first of all", subnet, &n, always, "NICPolicy/d", "", podnic.NIC{Name: "eth0", Addresses: []podnic.Address{{Subnet: "subnet-4"}}}},
		{"a subnet of EC2", subnet, &e, maybe, "NICPolicy/d", "", podnic.NIC{Name: "eth0", Addresses: []podnic.Address{{Subnet: "subnet-4"}}}},
		{"neither groups nor subnet", podnic.Choice{Counts: []podnic.Policy{{Kind: podnic.KindNICPolicy, Name: "d"}}}, &n, never, "NICPolicy/d", "", podnic.NIC{Name: "eth1"}},
	} {
		got := tt.choice.Annotations(tt.vpc, tt.first)
		if got[v1alpha1.AnnotationNICPolicy] != tt.by || got[v1alpha1.AnnotationNICPolicyOverlap] != tt.over || got[v1alpha1.AnnotationVPC] != tt.vpc.Name {
			t.Errorf("%s: got %v", tt.name, got)
		}
		nics, errs := podnic.Pod{Annotations: got}.NICs(tt.first.In(tt.vpc.Spec.Provider), 0)
		if len(errs) == 0 {
			nics, errs = podnic.Resolve(nics, podnic.NetworkOf(tt.vpc))
		}
		if len(errs) > 0 || len(nics) != 1 || nics[0].Name != tt.want.Name || !slices.Equal(nics[0].SecurityGroups, tt.want.SecurityGroups) || !slices.Equal(nics[0].Addresses, tt.want.Addresses) {
			t.Errorf("%s: got %+v, %v, want %+v", tt.name, nics, errs, tt.want)
		}
	}
	if got, want := (podnic.Choice{}).Annotations(nil, always), map[string]string{v1alpha1.AnnotationNICPolicy: ""}; !maps.Equal(got, want) {
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
		policy    podnic.Policy
		vpc       v1alpha1.VPC
		namespace string
		want      string
	}{
		{"groups", podnic.Policy{SecurityGroups: six[:5]}, e, "shop", ""},
		{"a subnet", podnic.Policy{Subnet: "web"}, n, "shop", ""},
		{"a subnet by its ID", podnic.Policy{Subnet: "subnet-3"}, n, "shop", ""},
		{"six groups elsewhere", podnic.Policy{SecurityGroups: six}, n, "shop", ""},
		{"a subnet of a VPC that is not known yet", podnic.Policy{Subnet: "lost"}, unknown, "shop", ""},
		{"six groups", podnic.Policy{SecurityGroups: six}, e, "shop", "spec.securityGroups: has 6 groups, expected 5 at most in VPC e of provider ec2"},
		{"no subnet of it", podnic.Policy{Subnet: "lost"}, n, "shop", `spec.subnet: VPC n has no subnet "lost"`},
		{"one of two subnets", podnic.Policy{Subnet: "twice"}, n, "shop", `spec.subnet: VPC n has 2 subnets named "twice", expected an ID such as subnet-2`},
		{"another namespace", podnic.Policy{}, n, "bank", "spec.vpc: VPC n is not for namespace bank (spec.allowedNamespaces of the VPC)"},
	} {
		err := podnic.CheckPolicy(tt.policy, podnic.Namespace{Name: tt.namespace}, &tt.vpc).Err()
		if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}
