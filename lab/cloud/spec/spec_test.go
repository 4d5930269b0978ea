package spec

import (
	"strings"
	"testing"
	"time"
)

const good = `
vpcs:
- name: lab
  cidrs: [10.0.0.0/16]
  ipv6: [2600:1f14:abc:de00::/56]
  subnets:
  - {name: a, zone: lab-1a, cidr: 10.0.0.0/24, ipv6: "2600:1f14:abc:de00::/64", tags: {kubernetes.io/role/cni: "1"}}
  securityGroups:
  - name: default
    ingress: [{protocol: tcp, fromPort: 80, toPort: 80, groups: [default]}]
instances:
- {name: n1, type: c5.large, subnet: a, role: node, interfaces: [{deviceIndex: 1, type: efa}]}
roles: [{name: node, actions: ["ec2:Describe*"]}]
delays: {attach: 2s, link: 2500ms}
consistency: {describe: 1s}
imds: {delay: 3s, v1: false}
rateLimits: {AttachNetworkInterface: {bucket: 10, refill: 0.5}}
latencies: {"*": 20ms}
faults: [{action: Assign*, kind: error, code: InternalError, probability: 0.1}]
`

func TestParse(t *testing.T) {
	s, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if s.VPCs[0].Subnets[0].IPv6.Bits() != 64 || s.Delays.Link.D() != 2500*time.Millisecond || *s.IMDS.V1 || s.RateLimits["AttachNetworkInterface"].Refill != 0.5 ||
		s.Latencies["*"].D() != 20*time.Millisecond || s.Region != "lab-1" || s.AccessKeys[0].ID != DefaultAccessKey().ID || s.Faults[0].Probability != 0.1 {
		t.Errorf("Parse() = %+v, want the values of the YAML and defaults", s)
	}
}

// Each mistake is reported with the path of its field.
func TestSpecErrorsNameTheField(t *testing.T) {
	for _, tc := range []struct{ old, new, want string }{
		{"zone: lab-1a", "zome: lab-1a", "vpcs[0].subnets[0].zome: unknown field; supported are assignIPv6, cidr,"},
		{"cidr: 10.0.0.0/24", "cidr: 10.0.0.0", "vpcs[0].subnets[0].cidr: netip.ParsePrefix"},
		{"cidr: 10.0.0.0/24", "cidr: 10.0.0.1/24", "vpcs[0].subnets[0].cidr: 10.0.0.1/24; expected an IPv4 network"},
		{"cidr: 10.0.0.0/24", "cidr: 10.1.0.0/24", "vpcs[0].subnets[0].cidr: 10.1.0.0/24 is not in the VPC's cidrs"},
		{`ipv6: "2600:1f14:abc:de00::/64"`, "assignIPv6: true", "vpcs[0].subnets[0].assignIPv6: true; expected a subnet with ipv6"},
		{"cidr: 10.0.0.0/24", "cidr: 10.0.0.0/24, ipv6Native: true", "vpcs[0].subnets[0].ipv6Native: true; expected a subnet without cidr and public"},
		{`cidr: 10.0.0.0/24, ipv6: "2600:1f14:abc:de00::/64"`, "ipv6Native: true", "vpcs[0].subnets[0].ipv6: expected a /64 of the VPC's ipv6, with ipv6Native"},
		{"cidr: 10.0.0.0/24, ", "", "vpcs[0].subnets[0].cidr: invalid Prefix; expected an IPv4 network"},
		{"ipv6: [2600:1f14:abc:de00::/56]", "egressOnlyIPv6: true", "vpcs[0].egressOnlyIPv6: true; expected a VPC with ipv6"},
		{"cidrs: [10.0.0.0/16]", "cidrs: 10.0.0.0/16", "vpcs[0].cidrs: expected a list, got text"},
		{"cidrs: [10.0.0.0/16]", "cidrs: [10.0.0.0/8]", "vpcs[0].cidrs[0]: 10.0.0.0/8; expected"},
		{"groups: [default]", "groups: [web]", `vpcs[0].securityGroups[0].ingress[0].groups: no security group "web"`},
		{"protocol: tcp", "protocol: ''", "vpcs[0].securityGroups[0].ingress[0].protocol: expected"},
		{"fromPort: 80", "fromPort: http", `vpcs[0].securityGroups[0].ingress[0].fromPort: expected int, got "http"`},
		{"type: c5.large", "type: c5.lorge", `instances[0].type: unknown instance type "c5.lorge"`},
		{"subnet: a", "subnet: z", `instances[0].subnet: no subnet "z"`},
		{"role: node", "role: admin", `instances[0].role: no role "admin"`},
		{"deviceIndex: 1", "deviceIndex: 0", "instances[0].interfaces[0].deviceIndex: 0; expected at least 1"},
		{"type: efa", "type: afe", "instances[0].interfaces[0].type: \"afe\"; expected"},
		{"type: efa", "type: branch", "instances[0].interfaces[0].type: \"branch\"; expected"},
		{"type: c5.large, subnet: a, role: node, interfaces: [{deviceIndex: 1, type: efa}]", "type: t3.large, subnet: a, interfaces: [{deviceIndex: 1, type: trunk}]",
			"instances[0].interfaces[0].type: trunk; expected an instance type with trunks, which t3.large is not"},
		{"attach: 2s", "attach: 2", "delays.attach: expected text, got a number"},
		{"attach: 2s", "attach: soon", "delays.attach: time: invalid duration"},
		{"bucket: 10", "bucket: 0", "rateLimits.AttachNetworkInterface: bucket 0"},
		{"kind: error", "kind: oops", "faults[0].kind: \"oops\"; expected"},
		{"code: InternalError", "status: 500", "faults[0].code: expected the error code"},
		{"probability: 0.1", "probability: 2", "faults[0].probability: 2; expected 0 to 1"},
		{"v1: false", "v1: no way", "imds.v1: expected bool"},
		{`actions: ["ec2:Describe*"]`, `actions: ["ec2:DescribeVpcs", "Describe*"]`, `roles[0].actions[1]: "Describe*"; expected an EC2 action or a pattern such as "ec2:Describe*", or "*"`},
		{`actions: ["ec2:Describe*"]`, `actions: ["EC2:Describe*", "s3:GetObject"]`, `roles[0].actions[1]: "s3:GetObject"; expected an EC2 action`},
		{`actions: ["ec2:Describe*"]`, `actions: ["ec2:"]`, `roles[0].actions[0]: "ec2:"; expected an EC2 action`},
		{"roles:", `accessKeys: [{id: a, secret: b, actions: ["AttachNetworkInterface"]}]` + "\nroles:", `accessKeys[0].actions[0]: "AttachNetworkInterface"; expected an EC2 action`},
		{"roles:", "seed: 1\nseed: 2\nroles:", `"seed" already set`},
		{"roles:", "account: \"12\"\nroles:", `account: "12"; expected 12 digits`},
		{"roles:", "throttle: often\nroles:", `throttle: "often"; expected documented or none`},
	} {
		_, err := Parse([]byte(strings.Replace(good, tc.old, tc.new, 1)))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Parse() with %q = %v, want error containing %q", tc.new, err, tc.want)
		}
	}
	if _, err := Parse(nil); err == nil || !strings.Contains(err.Error(), "vpcs: expected at least one") {
		t.Errorf("Parse(empty) = %v, want error about vpcs", err)
	}
}

func TestDefaultIsValid(t *testing.T) {
	if _, err := Default().Complete(); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("vpcs: [{name: x, subnets: [{}]}]\ninstances: [{interfaces: [null]}]"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = Parse(b) })
}
