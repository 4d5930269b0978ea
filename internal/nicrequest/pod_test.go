package nicrequest_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

func TestVPC(t *testing.T) {
	const vpcField = "metadata.annotations[berth.dev/vpc]"
	with := func(annotations ...string) nicrequest.Pod {
		p := nicrequest.Pod{Annotations: map[string]string{}}
		for i := 0; i < len(annotations); i += 2 {
			p.Annotations["berth.dev/"+annotations[i]] = annotations[i+1]
		}
		return p
	}
	in := func(p nicrequest.Pod, vpc string) nicrequest.Pod { p.NamespaceVPC = vpc; return p }
	host := func(p nicrequest.Pod) nicrequest.Pod { p.HostNetwork = true; return p }
	mirror := func(p nicrequest.Pod) nicrequest.Pod { p.Mirror = true; return p }
	for _, tc := range []struct {
		name string
		pod  nicrequest.Pod
		want string
		err  string
	}{
		{"nothing", with(), "", ""},
		{"VPC of the pod", with("vpc", "blue"), "blue", ""},
		{"VPC of the namespace", in(with("nics", "[]"), "red"), "red", ""},
		{"pod overrides namespace", in(with("vpc", "blue"), "red"), "blue", ""},
		{"empty annotation overrides namespace", in(with("vpc", ""), "red"), "", ""},
		{"host network in a namespace with a VPC", host(in(with(), "red")), "", ""},
		{"static pod in a namespace with a VPC", mirror(in(with(), "red")), "", ""},
		{"NICs without a VPC", with("nics", "[]"), "", nicsField + ": asks for NICs, but neither the pod nor its namespace names a VPC in the annotation berth.dev/vpc"},
		{"NICs with an empty VPC", in(with("vpc", "", "nics", "[]"), "red"), "", nicsField + ": asks for NICs"},
		{"invalid VPC name", with("vpc", "Blue"), "Blue", vpcField + `: is "Blue", expected the name of a VPC: at most 63 lower-case letters, digits and hyphens`},
		{"VPC name too long", with("vpc", strings.Repeat("a", 64)), strings.Repeat("a", 64), vpcField + ": is"},
		{"VPC of a host network pod", host(with("vpc", "blue")), "blue", "spec.hostNetwork: is true, but annotations ask for NICs"},
		{"NICs of a host network pod", host(in(with("nics", "[]"), "red")), "", "spec.hostNetwork: is true"},
		{"static pod with a VPC", mirror(with("vpc", "blue")), "blue", vpcField + ": a static pod cannot have NICs"},
	} {
		got, errs := tc.pod.VPC()
		err := errs.Err()
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.HasPrefix(err.Error(), tc.err) {
			t.Errorf("%s: VPC() = %q, %v\nwant %q, %s", tc.name, got, err, tc.want, tc.err)
		}
	}
}

// NICs of a running pod may be added and removed, but not changed.
func TestChange(t *testing.T) {
	const assigned = "cannot be changed while the pod has it: remove it, and add one of another name"
	nicsIn := func(text string, first nicrequest.First) []nicrequest.NIC {
		out, errs := nicrequest.Pod{Annotations: map[string]string{"berth.dev/nics": text}}.NICs(first, 0)
		if err := errs.Err(); err != nil {
			t.Fatalf("NICs() of annotation %s: error = %v, want none", text, err)
		}
		return out
	}
	nics := func(text string) []nicrequest.NIC { return nicsIn(text, ofPort) }
	for _, tc := range []struct {
		name, before, after string
		first               nicrequest.First
		want                string
	}{
		{"no change", "[{subnet: a}, {ip: 10.0.0.5}]", "[{subnet: a}, {ip: 10.0.0.5}]", ofPort, ""},
		{"another spelling", "[{subnet: a}]", "[{name: eth0, subnetName: a}]", ofPort, ""},
		{"another order", "[{}, {name: net1}]", "[{name: net1}, {}]", ofPort, ""},
		{"NIC added", "[{}]", "[{}, {subnet: b}]", ofPort, ""},
		{"NIC removed", "[{}, {subnet: b}]", "[{}]", ofPort, ""},
		{"another address", "[{ip: 10.0.0.5}]", "[{ip: 10.0.0.6}]", ofPort, "[0]: eth0 " + assigned},
		{"other groups", "[{}, {securityGroup: a}]", "[{}, {securityGroup: b}]", ofPort, "[1]: eth1 " + assigned},
		{"another port", "[{portID: " + sample + "}]", "[{}]", ofPort, "[0]: eth0 " + assigned},
		{"removal that renames later NICs", "[{}, {subnet: a}, {subnet: b}]", "[{}, {subnet: b}]", ofPort, "[1]: eth1 " + assigned},
		{"NIC added with the default route", "[{}]", "[{}, {name: net1, defaultRoute: true}]", ofPort, "[1].defaultRoute: is true of net1, which is added"},
		{"NIC with the default route removed", "[{}, {name: net1, defaultRoute: true}]", "[{}]", ofPort, ": lacks net1, which has the pod's default route"},
		{"first interface changed", "[{}, {name: net1}]", "[{name: eth0, subnet: a}, {name: net1}]", ofPort, "[0]: eth0 " + assigned},
	} {
		err := nicrequest.CheckChange(nics(tc.before), nics(tc.after), tc.first).Err()
		if (err == nil) != (tc.want == "") || err != nil && !strings.HasPrefix(err.Error(), nicsField+tc.want) {
			t.Errorf("%s: error = %v\nwant %s", tc.name, err, tc.want)
		}
	}
	for _, tc := range []struct{ name, before, after, want string }{
		{"NIC added beside a branch", "[{name: eth0}]", "[{name: eth0}, {}]", ""},
		{"branch in place of a pool address", "[{}]", "[{}, {name: eth0}]", "[1].name: eth0 is the name of the pod's first interface, which stays what it was when the pod came: recreate the pod"},
		{"pool address in place of a branch", "[{name: eth0}, {}]", "[{}]", ": lacks eth0, the pod's first interface, which cannot be removed"},
		{"branch changed", "[{name: eth0}]", "[{name: eth0, securityGroup: a}]", "[0]: eth0 " + assigned},
	} {
		err := nicrequest.CheckChange(nicsIn(tc.before, ofENI), nicsIn(tc.after, ofENI), ofENI).Err()
		if (err == nil) != (tc.want == "") || err != nil && !strings.HasPrefix(err.Error(), nicsField+tc.want) {
			t.Errorf("%s: error = %v\nwant %s", tc.name, err, tc.want)
		}
	}
	had := nicrequest.First{Name: "eth0", IsPort: true, MayBePort: true}
	if err := nicrequest.CheckChange(nil, nicsIn("[{name: eth0}]", had), had).Err(); err != nil {
		t.Errorf("CheckChange() for a recreated branch: %v", err)
	}
	if err := nicrequest.CheckChange(nics("[{}, {name: net1}]"), nil, ofPort).Err(); err == nil || !strings.Contains(err.Error(), "lacks eth0, the pod's first interface, which cannot be removed") {
		t.Errorf("CheckChange() without the first interface: %v", err)
	}
	if err := nicrequest.CheckChange(nics("[{}]"), nil, ofPool).Err(); err != nil {
		t.Errorf("CheckChange() without the additional interface: %v", err)
	}
	if errs := nicrequest.CheckVPCChange("blue", "blue"); errs != nil {
		t.Error(errs)
	}
	if err := nicrequest.CheckVPCChange("blue", "").Err(); err == nil || !strings.Contains(err.Error(), `[berth.dev/vpc]: cannot be changed, was "blue"`) {
		t.Errorf("CheckVPCChange() to no VPC: %v", err)
	}
}

// The provider of the named VPC decides whether the first interface may be a port.
func TestJudgeChecksFirstInterface(t *testing.T) {
	const noPort = "[0].name: eth0 is the name of the pod's first interface, which is no port here"
	vpc := func(p v1alpha1.VPCProvider) *v1alpha1.VPC {
		return &v1alpha1.VPC{Spec: v1alpha1.VPCSpec{Provider: p, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}}}}
	}
	for _, tc := range []struct {
		name  string
		vpc   *v1alpha1.VPC
		first nicrequest.First
		want  string
	}{
		{"VPC of EC2", vpc(v1alpha1.ProviderEC2), ofENI, ""},
		{"VPC of Neutron", vpc(v1alpha1.ProviderNeutron), ofENI, noPort},
		{"VPC of EC2 with address pools", vpc(v1alpha1.ProviderEC2), ofPool, noPort},
		{"VPC does not exist", nil, ofENI, ""},
	} {
		p := nicrequest.Pod{Annotations: map[string]string{"berth.dev/vpc": "v", "berth.dev/nics": "[{name: eth0}]"}}
		_, errs := nicrequest.Request{Pod: p, Namespace: "default", VPC: tc.vpc, First: tc.first}.Judge()
		if err := errs.Err(); (err == nil) != (tc.want == "") || err != nil && err.Error() != nicsField+tc.want {
			t.Errorf("%s: error = %v\nwant %s", tc.name, err, tc.want)
		}
	}
}

// Names of PodNICs are valid, stable and unique.
func TestObjectName(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	seen := map[string]string{}
	for _, pod := range []string{"web-0", "a", "a.b.c", strings.Repeat("a", 253), strings.Repeat("a", 199) + "." + strings.Repeat("b", 50), strings.Repeat("a.", 126) + "a"} {
		for _, uid := range []string{"u", "v"} {
			for _, nic := range []string{"eth0", "ETH0", "eth1", "net1.5", "net1-5", "net1_5", "a-", "A._-"} {
				name := nicrequest.ObjectName(pod, uid, nic)
				if !valid.MatchString(name) || len(name) > 253 {
					t.Errorf("NIC %s of pod %s: invalid name %q", nic, pod, name)
				}
				if again := nicrequest.ObjectName(pod, uid, nic); again != name {
					t.Errorf("ObjectName() returned %q, then %q", name, again)
				}
				of := fmt.Sprint(pod, uid, nic)
				if other, taken := seen[name]; taken {
					t.Errorf("%q is the name for both %s and %s", name, other, of)
				}
				seen[name] = of
			}
		}
	}
	if got := nicrequest.ObjectName("web-0", "6b1f3c9e-0000-4000-8000-000000000000", "eth0"); !strings.HasPrefix(got, "web-0-eth0-") || len(got) != len("web-0-eth0-")+8 {
		t.Errorf("ObjectName() = %q, want the pod's and the NIC's names and a hash of eight letters", got)
	}
}
