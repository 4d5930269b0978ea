package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// keystone returns the spec of a VPC with credentials and further fields.
func keystone(more string) string {
	return "{provider: neutron, network: blue, endpoint: 'https://keystone.example:5000/v3', credentials: {type: password, secretName: neutron}" + more + "}"
}

// open returns the spec of a VPC whose provider needs no credentials.
func open(endpoint, more string) string {
	return "{provider: neutron, network: blue, project: p1, endpoint: '" + endpoint + "'" + more + "}"
}

// ofEC2 returns the spec of a VPC of provider ec2 with further fields.
func ofEC2(more ...string) string {
	return "{" + strings.Join(append([]string{"provider: ec2", "network: vpc-0a1b2c3d4e5f67890"}, more...), ", ") + "}"
}

const (
	endpointText = "endpoint must be an http:// or https:// URL without user, query and fragment"
	groupsOfVPC  = "spec.defaultSecurityGroups"
)

var badVPCs = []refusal{
	{"no spec", "null", "spec", "Required value"},
	{"no provider", "{network: blue, endpoint: 'https://a.example', project: p}", "spec.provider", "Required value"},
	{"no network", "{provider: alcor, endpoint: 'https://a.example', project: p}", "spec.network", "Required value"},
	{"an empty network", "{provider: alcor, network: '', endpoint: 'https://a.example', project: p}", "spec.network", "should be at least 1 chars long"},
	{"no endpoint", "{provider: alcor, network: blue, project: p}", "spec.endpoint", "endpoint must be set for all providers except ec2"},
	{"another provider", "{provider: nova, network: blue, endpoint: 'https://a.example', project: p}", "spec.provider", `supported values: "neutron", "alcor", "ec2"`},
	{"an endpoint without a scheme", open("keystone.example", ""), "spec.endpoint", endpointText},
	{"a path as the endpoint", open("/v3", ""), "spec.endpoint", endpointText},
	{"another scheme", open("file:///etc/passwd", ""), "spec.endpoint", endpointText},
	{"an endpoint without a host", open("https:///v3", ""), "spec.endpoint", endpointText},
	{"a password in the URL", open("https://admin:secret@keystone.example", ""), "spec.endpoint", endpointText},
	{"a query in the URL", open("https://keystone.example/?a=b", ""), "spec.endpoint", endpointText},
	{"credentials without TLS", strings.Replace(keystone(""), "https:", "http:", 1), "spec.endpoint", "endpoint must begin with https:// if credentials are set"},
	{"credentials with provider alcor", strings.Replace(keystone(""), "neutron", "alcor", 1), "spec.credentials", "credentials are supported by provider neutron only"},
	{"credentials without a Secret", strings.Replace(keystone(""), ", secretName: neutron", "", 1), "spec.credentials.secretName", "Required value"},
	{"credentials of an unknown type", strings.Replace(keystone(""), "password", "token", 1), "spec.credentials.type", `supported values: "password", "applicationCredential"`},
	{"neither a project nor credentials", "{provider: neutron, network: blue, endpoint: 'http://neutron.example:9696'}", "spec.project", "project must be set if there are no credentials"},
	{"a project that is a path", "{provider: neutron, network: blue, project: ../admin, endpoint: 'http://neutron.example'}", "spec.project", "should match"},
	{"alcor settings with provider neutron", keystone(", alcor: {netnsPrefix: vpc-ns-}"), "spec.alcor", "alcor requires provider alcor"},
	{"a netns prefix with a path", "{provider: alcor, network: blue, project: p, endpoint: 'http://a.example', alcor: {netnsPrefix: '../vpc'}}", "spec.alcor.netnsPrefix", "should match"},
	{"a CA bundle without certificates", keystone(", tls: {caBundle: /etc/ca.pem}"), "spec.tls.caBundle", "caBundle must have PEM certificates"},
	{"an endpoint with provider ec2", ofEC2("endpoint: 'https://a.example'"), "spec.endpoint", "endpoint must be set for all providers except ec2"},
	{"an EC2 network that is not a VPC ID", strings.Replace(ofEC2(), "vpc-0a1b2c3d4e5f67890", "blue", 1), "spec.network", "network must be a VPC ID such as vpc-0a1b2c3d4e5f67890"},
	{"a project with provider ec2", ofEC2("project: p"), "spec.provider", "provider ec2 does not support project, region, tls, hostLabel and defaultSubnets"},
	{"a region with provider ec2", ofEC2("region: eu-central-1"), "spec.provider", "provider ec2 does not support project"},
	{"a host label with provider ec2", ofEC2("hostLabel: a/b"), "spec.provider", "provider ec2 does not support project"},
	{"default subnets with provider ec2", ofEC2("defaultSubnets: [subnet-0a1b2c3d]"), "spec.provider", "provider ec2 does not support project"},
	{"credentials with provider ec2", ofEC2("credentials: {type: password, secretName: s}"), "spec.credentials", "credentials are supported by provider neutron only"},
	{"six default groups with provider ec2", ofEC2("defaultSecurityGroups: [a, b, c, d, e, f]"), "spec.defaultSecurityGroups", "defaultSecurityGroups must have at most 5 entries for provider ec2"},
	{"an EC2 subnet that is not an ID", ofEC2("ec2: {subnets: [pods]}"), "spec.ec2.subnets", "subnets must be IDs, such as subnet-0a1b2c3d4e5f67890"},
	{"an empty list of EC2 subnets", ofEC2("ec2: {subnets: []}"), "spec.ec2.subnets", "should have at least 1 items"},
	{"an unknown ipFamilies", ofEC2("ec2: {ipFamilies: both}"), "spec.ec2.ipFamilies", `supported values: "ipv4", "ipv6", "dual"`},
	{"ec2 settings with provider neutron", keystone(", ec2: {subnets: [subnet-0a1b2c3d]}"), "spec.ec2", "ec2 requires provider ec2"},
	{"three default subnets", keystone(", defaultSubnets: [a, b, c]"), "spec.defaultSubnets", "must have at most 2 items"},
	{"a default subnet twice", keystone(", defaultSubnets: [a, a]"), "spec.defaultSubnets[1]", "Duplicate value"},
	{"an empty list of default subnets", keystone(", defaultSubnets: []"), "spec.defaultSubnets", "should have at least 1 items"},
	{"a group twice", keystone(", defaultSecurityGroups: [a, b, a]"), groupsOfVPC + "[2]", "Duplicate value"},
	{"maxNICsPerPod of 0", keystone(", maxNICsPerPod: 0"), "spec.maxNICsPerPod", "maxNICsPerPod must be between 1 and 32"},
	{"maxNICsPerPod above the maximum", keystone(", maxNICsPerPod: 33"), "spec.maxNICsPerPod", "maxNICsPerPod must be between 1 and 32"},
	{"maxNICsPerNode of 0", keystone(", maxNICsPerNode: 0"), "spec.maxNICsPerNode", "maxNICsPerNode must be between 1 and 65536"},
	{"maxNICsPerNamespace of 0", keystone(", maxNICsPerNamespace: 0"), "spec.maxNICsPerNamespace", "maxNICsPerNamespace must be between 1 and 65536"},
	{"limits without namespaces", keystone(", namespaceLimits: [{maxNICs: 1}]"), "spec.namespaceLimits[0].namespaces", "Required value"},
	{"limits with empty namespaces", keystone(", namespaceLimits: [{namespaces: {}}]"), "spec.namespaceLimits[0].namespaces", "names, selector or both must be set"},
	{"maxNICs below 0", keystone(", namespaceLimits: [{namespaces: {names: [a]}, maxNICs: -1}]"), "spec.namespaceLimits[0].maxNICs", "maxNICs must be between 0 and 65536"},
	{"limits with an empty list of security groups", keystone(", namespaceLimits: [{namespaces: {names: [a]}, securityGroups: []}]"), "spec.namespaceLimits[0].securityGroups", "should have at least 1 items"},
	{"empty allowedNamespaces", keystone(", allowedNamespaces: {}"), "spec.allowedNamespaces", "names, selector or both must be set"},
	{"a pattern for namespaces", keystone(", allowedNamespaces: {names: ['team-*']}"), "spec.allowedNamespaces.names", "names must be namespace names, or *"},
	{"an invalid host label", keystone(", hostLabel: 'a b'"), "spec.hostLabel", "hostLabel must be a label key"},
	{"a MAC address as portMAC", keystone(", portMAC: 'fa:16:3e:00:00:01'"), "spec.portMAC", `supported values: "Derived", "Provider"`},
}

func TestBadVPCIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, badVPCs, func(t *testing.T, spec string) error { return c.Create(t.Context(), newVPC(t, "blue", spec)) })
	for _, name := range []string{strings.Repeat("a", 64), "a.b"} {
		refused(t, c.Create(t.Context(), newVPC(t, name, keystone(""))), "metadata", "metadata.name must be at most 63")
	}
}

func TestGoodVPCs(t *testing.T) {
	accepts(t, clean(t), "VPC", map[string]string{
		"keystone":         keystone(""),
		"application":      strings.Replace(keystone(", region: RegionOne"), "password", "applicationCredential", 1),
		"vpc-1a2b3c4d":     open("http://127.0.0.1:9696", ""), // as the VPC and NIC design of Arktos names one
		"ipv6":             open("https://[fd00::1]:9696/v2.0", ", defaultSubnets: [four, six]"),
		"alcor":            "{provider: alcor, network: 9192a4d4-ffff-4ece-b3f0-8d36e3d88038, project: 3dda2801-d675-4688-a63f-dcda8d327f50, endpoint: 'http://alcor.example:9009', alcor: {netnsPrefix: vpc-ns-}}",
		"insecure":         strings.Replace(keystone(", tls: {insecure: true}"), "https:", "http:", 1),
		"everybody":        keystone(", allowedNamespaces: {names: ['*']}"),
		"selected":         keystone(", allowedNamespaces: {names: [team-a], selector: {matchLabels: {net: blue}}}, hostLabel: node-restriction.kubernetes.io/host, maxNICsPerPod: 32, portMAC: Provider"),
		"limits":           keystone(", namespaceLimits: [{namespaces: {names: [a], selector: {}}, securityGroups: [g, '*'], subnets: [s], maxNICs: 0}, {namespaces: {names: ['*']}}], maxNICsPerNamespace: 65536"),
		"ec2":              ofEC2(),
		"ec2-more":         ofEC2("ec2: {subnets: [subnet-0a1b2c3d4e5f67890, subnet-0a1b2c3d]}", "defaultSecurityGroups: [sg-1, sg-2, sg-3, sg-4, sg-5]", "maxNICsPerNode: 9"),
		"ec2-ipv6":         ofEC2("ec2: {ipFamilies: ipv6}"),
		"with-certificate": keystone(`, tls: {caBundle: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", serverName: keystone}`),
	})
}

func TestVPCDefaults(t *testing.T) {
	c := clean(t)
	harness.OK(t, c.Create(t.Context(), newVPC(t, "blue", "{provider: alcor, network: net, project: p, endpoint: 'http://a.example', alcor: {}}")))
	v := &v1alpha1.VPC{}
	harness.OK(t, c.Get(t.Context(), types.NamespacedName{Name: "blue"}, v))
	four, many := int32(4), int32(v1alpha1.DefaultMaxNICsPerNamespace)
	want := v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderAlcor, Network: "net", Project: "p", Endpoint: "http://a.example",
		MaxNICsPerPod: &four, MaxNICsPerNamespace: &many, PortMAC: v1alpha1.PortMACDerived, Alcor: &v1alpha1.AlcorSpec{NetnsPrefix: "vpc-ns"},
	}
	if d := cmp.Diff(want, v.Spec); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Changes that would orphan ports are rejected; credentials and limits can change.
func TestVPCChanges(t *testing.T) {
	c := clean(t)
	v := newVPC(t, "blue", keystone(", project: p1"))
	harness.OK(t, c.Create(t.Context(), v))
	respec := func(t *testing.T, spec string) error { return change(t, c, v, "{spec: "+spec+"}") }
	refuses(t, []refusal{
		{"another provider", "{provider: alcor, credentials: null}", "spec.provider", "provider cannot be changed: it owns the ports"},
		{"another network", "{network: red}", "spec.network", "network cannot be changed: it contains the ports"},
		{"another project", "{project: p2}", "spec.project", "project cannot be changed: it contains the ports"},
		{"project removed", "{project: null}", "spec.project", "project cannot be changed: it contains the ports"},
	}, respec)
	for _, spec := range []string{
		"{credentials: {type: applicationCredential, secretName: other}}",
		"{endpoint: 'https://other.example', maxNICsPerPod: 8, allowedNamespaces: {names: [team-a]}}",
		"{allowedNamespaces: null, defaultSubnets: [a]}",
	} {
		harness.OK(t, respec(t, spec))
	}
}

// Ports keep their families: a VPC can gain a family for new ports, but cannot lose one.
func TestVPCChangesFamilies(t *testing.T) {
	c := clean(t)
	const message = "ec2.ipFamilies can only be changed from ipv4 to dual"
	for name, tt := range map[string]struct {
		from      string
		bad, good []string
	}{
		"none": {ofEC2(), []string{"{ec2: {ipFamilies: ipv6}}"}, []string{"{ec2: {ipFamilies: ipv4}}", "{ec2: null}", "{ec2: {ipFamilies: dual}}", "{ec2: {warmBranches: 2}}"}},
		"four": {ofEC2("ec2: {ipFamilies: ipv4}"), []string{"{ec2: {ipFamilies: ipv6}}"}, []string{"{ec2: null}"}},
		"six":  {ofEC2("ec2: {ipFamilies: ipv6}"), []string{"{ec2: {ipFamilies: ipv4}}", "{ec2: {ipFamilies: dual}}", "{ec2: {ipFamilies: null}}", "{ec2: null}"}, []string{"{ec2: {warmBranches: 2}}"}},
		"dual": {ofEC2("ec2: {ipFamilies: dual}"), []string{"{ec2: {ipFamilies: ipv4}}", "{ec2: {ipFamilies: ipv6}}", "{ec2: null}"}, []string{"{ec2: {warmBranches: 2}}"}},
	} {
		v := newVPC(t, name, tt.from)
		harness.OK(t, c.Create(t.Context(), v))
		for _, spec := range tt.bad {
			refused(t, change(t, c, v, "{spec: "+spec+"}"), "spec.ec2", message)
		}
		for _, spec := range tt.good {
			harness.OK(t, change(t, c, v, "{spec: "+spec+"}"))
		}
	}
}
