// Package config contains the settings of Berth's programs. Each program has one table of settings, from which its flags,
// environment variables, their validation and the reference page are derived.
package config

import (
	"errors"
	"os"

	"github.com/berthnet/berth/internal/node/introspect"
)

// Values of ipam.
const (
	IPAMENI         = "eni"          // node mode: berthd calls EC2 itself
	IPAMENIOperator = "eni-operator" // operator mode: the cluster's operator calls EC2
	IPAMPool        = "pool"         // address pools: the operator gives blocks to nodes
	IPAMPort        = "port"         // ports of VPCs: the operator creates them
	IPAMNone        = "none"         // another network: berth is chained after its plugins, for egress
)

// Values of Config.ForeignAddresses.
const (
	ForeignTell   = "tell"
	ForeignRemove = "remove"
)

// Values of pod-events.
const (
	PodEventsAuto   = "auto" // if the Kubernetes API is used or reachable
	PodEventsAlways = "always"
	PodEventsNever  = "never"
)

// Config contains all settings of berthd, parsed and validated, by feature.
type Config struct {
	NodeSettings
	WarmSettings
	ENISettings
	ENITimes
	PoolSettings
	PortSettings
	EgressSettings
	NetworkPolicySettings
	CloudSettings
	DatapathSettings
	ServingSettings
	WatchingSettings
	LogSettings
	InstallSettings
	Given
}

// Given is the input of a program, for display.
type Given struct {
	// Unknown are environment variables that begin with BERTH_ but are not settings.
	Unknown []string
	// Effective is every setting as given, or its default.
	Effective []introspect.Setting
	// Drift is the difference between the settings and those that the chart installed.
	Drift Drift
}

// HasPorts reports whether pods may have NICs that are ports of VPCs.
func (c *Config) HasPorts() bool { return c.VPCPorts || c.IPAM == IPAMPort }

// finish sets defaults that depend on the machine, and finds contradictions.
func (c *Config) finish(given Given) []error {
	c.Given = given
	c.CloudSettings.finish()
	c.Namespace = ownNamespace()
	c.NetworkPolicySettings.finish(c.Namespace)
	if c.NodeName == "" {
		c.NodeName, _ = os.Hostname()
	}
	return c.contradictions()
}

// contradictions finds settings that are valid on their own but contradict each other.
func (c *Config) contradictions() []error {
	aws := c.WarmENITarget >= 0 || c.WarmIPTarget >= 0 || c.MinimumIPTarget >= 0 || c.WarmPrefixTarget >= 0
	out := wrongTogether([]contradiction{
		{aws && c.CiliumDialect(),
			"--warm-eni-target, --warm-ip-target, --minimum-ip-target and --warm-prefix-target cannot be mixed with --min-allocate, --pre-allocate, --max-above-watermark and --max-allocate: use one dialect"},
		{len(c.Subnets) > 0 && len(c.SubnetTags) > 0, "--subnets and --subnet-tags exclude each other"},
		{c.IPAM != IPAMENIOperator && c.AutoCreateNodeNetwork, "--auto-create-node-network needs --ipam=eni-operator: without it there is no NodeNetwork"},
		{c.Kubeconfig != "" && !c.asksKubernetes(), "--kubeconfig has no use with --ipam=eni and --pod-events=never: node mode uses the Kubernetes API for Events, --node-network-templates, --egress and --network-policies only"},
		{c.IPAM != IPAMENI && c.NodeNetworkTemplates, "--node-network-templates needs --ipam=eni: with --ipam=eni-operator the operator applies NodeNetworkTemplates, and elsewhere there are no ENIs"},
		{len(c.SecurityGroups) > 0 && len(c.SecurityGroupTags) > 0, "--security-groups and --security-group-tags exclude each other"},
		{c.IPAM != IPAMENI && !c.FollowSecurityGroups, "--follow-security-groups=false needs --ipam=eni: elsewhere security groups do not follow those of the primary ENI"},
		{c.IPAM != IPAMPool && c.WithdrawOnExit, "--withdraw-on-exit needs --ipam=pool"},
		{c.IPAM != IPAMPool && !c.HasPorts() && c.IgnoreUntoldAnnotations, "--ignore-untold-annotations needs --ipam=pool, --ipam=port or --vpc-ports"},
		{c.IPAM != IPAMPool && c.ExportTable != defaultExportTable, "--export-table needs --ipam=pool"},
		{c.IntrospectionAddr != "" && c.IntrospectionAddr == c.MetricsAddr, "--introspection-address and --metrics-address are both " + c.MetricsAddr},
	})
	if c.IPAM == IPAMENI {
		out = append(out, c.contradictionsOfNodeMode()...)
	}
	out = append(out, c.contradictionsOfPorts()...)
	out = append(out, c.contradictionsOfEgress()...)
	if c.IPAM == IPAMPool || c.IPAM == IPAMPort || c.IPAM == IPAMNone {
		out = append(out, c.withoutMeaningWithoutENIs()...)
	}
	return out
}

// asksKubernetes reports whether the daemon uses the Kubernetes API.
func (c *Config) asksKubernetes() bool {
	return c.IPAM != IPAMENI || c.PodEvents != PodEventsNever || c.Egress || c.NetworkPolicies || c.NodeNetworkTemplates
}

// contradiction is a condition that must not hold, and the error if it does.
type contradiction struct {
	holds bool
	text  string
}

func wrongTogether(all []contradiction) (out []error) {
	for _, c := range all {
		if c.holds {
			out = append(out, errors.New(c.text))
		}
	}
	return out
}
