package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/host"
)

// group is a set of specs that are run and reported together.
type group struct {
	name string
	what string
	has  func(spec) bool
}

// groups are the groups that Berth must pass. A spec belongs to the first group that matches.
var groups = []group{
	{"conformance", "`[sig-network]` `[Conformance]`", func(s spec) bool { return s.has("sig-network") && s.has("Conformance") }},
	{"policy", "`[sig-network]` `[Feature:NetworkPolicy]`", func(s spec) bool { return s.has("Feature:NetworkPolicy") }},
	{groupClusterPolicy, "conformance suite of ClusterNetworkPolicy (network-policy-api)", func(spec) bool { return false }},
	{"network", "all other `[sig-network]`", func(s spec) bool { return s.has("sig-network") }},
	{"node", "`[sig-node]` `[Conformance]`: probes, hooks and pod lifecycle", func(s spec) bool {
		return s.has("Conformance") && nodeSpecs.MatchString(s.name)
	}},
}

// nodeSpecs matches the node tests in which the node must reach its pods, or pods each other, while they start and
// end.
var nodeSpecs = regexp.MustCompile(`^\[sig-node\] (Probing container|Container Lifecycle Hook|PreStop|Pods|Pods Extended|Pods Extended \(pod generation\)|InitContainer|KubeletManagedEtcHosts|Ephemeral Containers) `)

// groupOf returns the group of a spec, or "".
func groupOf(s spec) string {
	for _, g := range groups {
		if g.has(s) {
			return g.name
		}
	}
	return ""
}

// short lists the specs of the group "short", which takes only minutes: traffic between pods, nodes, services and
// node ports, names, probes and hooks.
var short = []string{
	"[sig-network] Networking Granular Checks: Pods should function for intra-pod communication: http [Conformance]",
	"[sig-network] Networking Granular Checks: Pods should function for intra-pod communication: udp [Conformance]",
	"[sig-network] Networking Granular Checks: Pods should function for node-pod communication: http [LinuxOnly] [Conformance]",
	"[sig-network] Services should be able to create a functioning NodePort service [Conformance]",
	"[sig-network] Services should serve multiport endpoints from pods [Conformance]",
	"[sig-network] Services should allow pods to hairpin back to themselves through services",
	"[sig-network] Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]",
	"[sig-network] NoSNAT Should be able to send traffic between Pods without SNAT",
	"[sig-network] DNS should provide DNS for services [Conformance]",
	"[sig-network] HostPort validates that there is no conflict between pods with same hostPort but different hostIP and protocol [LinuxOnly] [Conformance]",
	"[sig-network] Proxy version v1 should proxy through a service and a pod [Conformance]",
	"[sig-node] Container Lifecycle Hook when create a pod with lifecycle hook should execute prestop http hook properly [NodeConformance] [Conformance]",
	"[sig-node] Pods should support remote command execution over websockets [NodeConformance] [Conformance]",
}

// isShort reports whether a spec belongs to the group "short". Kubernetes releases add tags to names, so tags are not
// compared.
func isShort(s spec) bool {
	return slices.ContainsFunc(short, func(name string) bool { return withoutTags(name) == withoutTags(s.name) })
}

var tag = regexp.MustCompile(` \[[^\]]*\]`)

func withoutTags(name string) string { return strings.TrimSpace(tag.ReplaceAllString(name, "")) }

// exclusion describes specs that are not run.
type exclusion struct {
	label string // label of the specs, or
	name  string // part of their names
	why   string
	in    func(network) bool // clusters concerned; all if nil
}

// network describes properties of a cluster's network that some specs require.
type network struct {
	families ipfamily.Set   // families of pods and Services
	ports    bool           // pods' packets pass only the VPC, not the node's network
	proxy    host.ProxyMode // mode of kube-proxy
}

func oneFamily(n network) bool   { return n.families != ipfamily.Dual }
func withPorts(n network) bool   { return n.ports }
func notIPTables(n network) bool { return n.proxy != host.IPTables }

// pastTheNode is why Services differ for pods with VPC ports.
const pastTheNode = "requires the pod's own node to translate Services, but the node does not see packets of VPC ports"

// exclusions lists the specs that are not applicable. All other specs of a group are run; a spec may still skip
// itself if the cluster does not suit it.
var exclusions = []exclusion{
	{label: "Feature:LoadBalancer", why: "requires a cloud load balancer"},
	{label: "Feature:NetworkPolicy", in: withPorts, why: "requires nodes that see their pods' packets"},
	{label: "Feature:SCTPConnectivity", why: "requires a kernel with SCTP"},
	{label: "Feature:IPv6DualStack", in: oneFamily, why: "requires dual-stack pods"},
	{label: "Feature:Networking-IPv6", why: "requires internet access over IPv6"},
	{label: "Feature:Networking-IPv4", why: "requires internet access: pings 8.8.8.8"},
	{label: "Feature:Networking-DNS", why: "requires internet access: resolves google.com"},
	{label: "Feature:Networking-Performance", why: "measures throughput with iperf2, and verifies nothing"},
	{label: "Feature:PerformanceDNS", why: "loads the DNS server with 10,000 Services"},
	{label: "Feature:LocalhostNodePorts", in: notIPTables, why: "tests node ports on loopback addresses, which kube-proxy serves in iptables mode only"},
	{label: "Feature:KubeProxyNFAcct", in: notIPTables, why: "tests a metric of kube-proxy's iptables mode"},
	{name: "should preserve source pod IP for traffic thru service cluster IP", in: withPorts, why: pastTheNode},
	{name: "with InternalTrafficPolicy set to Local", in: withPorts, why: pastTheNode},
	{name: "correctly when ExternalTrafficPolicy changes", in: withPorts, why: pastTheNode},
	{name: "in the same zone when using PreferClose", in: withPorts, why: pastTheNode},
	{name: "should let a node pull an image from a registry exposed via localhost NodePort", why: "requires images that upstream's agnhost contains and the agnhost built here does not"},
	{name: "should forward PTR records lookup to upstream nameserver", why: "requires internet access: resolves 8.8.8.8"},
	{name: "[Provider:gce", why: "requires a cloud provider and SSH to the nodes"},
	{name: "should work after restarting apiserver [Disruptive]", why: "requires SSH to the nodes"},
	{name: "should work after restarting kube-proxy [Disruptive]", why: "requires SSH to the nodes"},
}

// excluded returns why a spec is not run on a cluster, or "".
func excluded(s spec, n network) string {
	for _, e := range exclusions {
		if e.in != nil && !e.in(n) {
			continue
		}
		if e.label != "" && s.has(e.label) || e.name != "" && strings.Contains(s.name, e.name) {
			return e.why
		}
	}
	return ""
}

// choice is the selection of specs by the command line.
type choice struct {
	groups      []string // names of groups, or "short"
	focus, skip *regexp.Regexp
}

// whole reports whether the choice includes whole groups.
func (c choice) whole() bool {
	return c.focus == nil && c.skip == nil && !slices.Contains(c.groups, "short")
}

// plan divides the selected specs.
type plan struct {
	run     []spec
	exclude []result // not applicable, with the reason
}

// choose divides the selected specs into those to run on a cluster and those that are not applicable.
func choose(all []spec, c choice, n network) plan {
	var p plan
	for _, s := range all {
		name := groupOf(s)
		if !slices.Contains(c.groups, name) && (!slices.Contains(c.groups, "short") || !isShort(s)) ||
			c.focus != nil && !c.focus.MatchString(s.name) || c.skip != nil && c.skip.MatchString(s.name) {
			continue
		}
		if why := excluded(s, n); why != "" {
			p.exclude = append(p.exclude, result{Name: s.name, Group: name, Outcome: notApplicable, Why: why})
		} else {
			p.run = append(p.run, s)
		}
	}
	return p
}
