// Package chartvalues converts the settings of the Amazon VPC CNI into values of Berth's chart. It does not depend on the
// kernel, so that kubectl berth runs anywhere.
package chartvalues

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/migrate"
)

// setting describes how to convert a variable of the aws-node DaemonSet (aws/amazon-vpc-cni-k8s v1.23, README, "Configuration
// Variables").
type setting struct {
	flag string // Berth's setting with the same meaning and values; empty: value decides
	// value sets values of the chart for a variable, and returns a remark, or "".
	value func(v *values, text string) string
}

// typed returns a text as a value of the chart, which distinguishes numbers and booleans from strings.
func typed(text string) any {
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	switch strings.ToLower(text) {
	case "true":
		return true
	case "false":
		return false
	}
	return text
}

// values are values of the chart.
type values struct {
	top    map[string]any // of the chart
	daemon map[string]any // daemon.settings
}

// same is a setting with the same meaning.
func same(flag string) setting { return setting{flag: flag} }

// covered is a variable for which nothing needs to be set: Berth always behaves so, or has no use for it.
var covered = setting{value: func(*values, string) string { return "" }}

// remark is a variable without a counterpart. The remark is made unless the variable has one of these values, which mean
// what Berth does anyway.
func remark(text string, usual ...string) setting {
	return setting{value: func(_ *values, is string) string {
		if slices.Contains(append(usual, ""), strings.ToLower(is)) {
			return ""
		}
		return text
	}}
}

// onlyIf sets values if a variable is true.
func onlyIf(set func(*values) string) setting {
	return setting{value: func(v *values, text string) string {
		if on, err := strconv.ParseBool(text); err != nil || !on {
			return ""
		}
		return set(v)
	}}
}

var settings = map[string]setting{
	"WARM_ENI_TARGET":                    same("warm-eni-target"),
	"WARM_IP_TARGET":                     same("warm-ip-target"),
	"MINIMUM_IP_TARGET":                  same("minimum-ip-target"),
	"WARM_PREFIX_TARGET":                 same("warm-prefix-target"),
	"ENABLE_PREFIX_DELEGATION":           same("enable-prefix-delegation"),
	"AWS_VPC_K8S_CNI_EXTERNALSNAT":       same("external-snat"),
	"AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": same("exclude-snat-cidrs"),
	"AWS_VPC_ENI_MTU":                    same("mtu"),
	"ENABLE_V4_EGRESS":                   same("enable-v4-egress"),
	"ENABLE_V6_EGRESS":                   same("enable-v6-egress"),
	"IP_COOLDOWN_PERIOD": {value: func(v *values, text string) string {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return "it is not a number of seconds"
		}
		v.daemon["cooling-period"] = strconv.Itoa(n) + "s"
		return ""
	}},
	"MAX_ENI": {value: func(v *values, text string) string {
		if n, err := strconv.Atoi(text); err == nil && n > 0 {
			v.daemon["max-eni"] = n
		}
		return ""
	}},
	"ENABLE_IPv6":              onlyIf(func(v *values) string { v.daemon["ip-families"] = "ipv6"; return "" }),
	"CLUSTER_NAME":             {value: func(v *values, text string) string { v.top["clusterName"] = text; return "" }},
	"AWS_VPC_K8S_CNI_LOGLEVEL": {value: func(v *values, text string) string { v.daemon["log-level"] = strings.ToLower(text); return "" }},
	"ENABLE_POD_ENI": onlyIf(func(v *values) string {
		v.top["mode"], v.top["ports"], v.daemon["trunk-eni"] = "operator", map[string]any{"enabled": true}, true
		return "per-pod security groups need the operator mode; pods with branch interfaces are replaced"
	}),
	"POD_SECURITY_GROUP_ENFORCING_MODE": {value: func(v *values, text string) string {
		if text = strings.ToLower(text); text != "strict" {
			v.daemon["pod-security-group-enforcing-mode"] = text
		}
		return ""
	}},
	"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": onlyIf(func(v *values) string {
		v.top["nodeNetworkTemplates"] = map[string]any{"enabled": true}
		return "convert the ENIConfigs with `kubectl berth migrate manifests`, and apply the NodeNetworkTemplates before the first node moves"
	}),
	"ENI_CONFIG_LABEL_DEF":      remark("the selectors of the converted NodeNetworkTemplates use this label", "k8s.amazonaws.com/eniconfig"),
	"ENI_CONFIG_ANNOTATION_DEF": remark("NodeNetworkTemplates select nodes by labels only: give the nodes a label", "k8s.amazonaws.com/eniconfig"),
	"ENABLE_SUBNET_DISCOVERY": onlyIf(func(*values) string {
		return "new ENIs are made in the subnet of the primary ENI: to use others, set subnet-tags, such as kubernetes.io/role/cni=1"
	}),
	"POD_MTU":                               remark("pods have the MTU of mtu"),
	"AWS_VPC_K8S_CNI_CONNMARK":              remark("Berth's packet marks are set by mark-shift", "0x80", "128"),
	"AWS_VPC_K8S_CNI_RANDOMIZESNAT":         remark("Berth leaves the choice of source ports to the kernel", "prng"),
	"AWS_EXTERNAL_SERVICE_CIDRS":            remark("these networks are reached through the ENI of the pod; with exclude-snat-cidrs, without translation"),
	"ADDITIONAL_ENI_TAGS":                   remark("Berth's ENIs have its own tags only", "{}"),
	"ENABLE_MULTI_NIC":                      remark("pods with interfaces on several network cards are replaced, and get one interface", "false"),
	"ANNOTATE_POD_IP":                       remark("Berth does not annotate pods", "false"),
	"DISABLE_NETWORK_RESOURCE_PROVISIONING": remark("Berth manages the ENIs of the node: nothing else may", "false"),
	"NETWORK_POLICY_ENFORCING_MODE":         remark("if NetworkPolicies are enforced, set networkPolicies.enabled", "standard"),
	"CLUSTER_ENDPOINT":                      remark("set apiServer.host if Services do not work before Berth starts"),
	"INTROSPECTION_BIND_ADDRESS":            remark("Berth's is introspection-address, with the port 6666", "127.0.0.1:61679"),
	"DISABLE_INTROSPECTION":                 remark("set introspection-address to an empty value", "false"),
	"DISABLE_METRICS":                       remark("set metrics-address to an empty value", "false"),
	"AWS_VPC_CNI_NODE_PORT_SUPPORT":         remark("node ports always work with Berth", "true"),
	"AWS_VPC_K8S_CNI_CONFIGURE_RPFILTER":    covered,
	"AWS_VPC_K8S_CNI_VETHPREFIX":            covered,
	"AWS_VPC_K8S_CNI_LOG_FILE":              covered,
	"AWS_VPC_K8S_PLUGIN_LOG_FILE":           covered,
	"AWS_VPC_K8S_PLUGIN_LOG_LEVEL":          covered,
	"AWS_MANAGE_ENIS_NON_SCHEDULABLE":       covered,
	"MANAGE_UNTAGGED_ENI":                   covered,
	"DISABLE_LEAKED_ENI_CLEANUP":            covered,
	"DISABLE_TCP_EARLY_DEMUX":               covered,
	"DISABLE_POD_V6":                        covered,
	"ENABLE_BANDWIDTH_PLUGIN":               covered, // part of cni-chain by default
	"ENABLE_IPv4":                           covered,
	"ENABLE_NFTABLES":                       covered,
	"MY_NODE_NAME":                          covered,
	"MY_POD_NAME":                           covered,
	"VPC_CNI_VERSION":                       covered,
	"VPC_ID":                                covered,
	"AWS_REGION":                            covered,
	"K8S_POD_NAMESPACE":                     covered,
}

// NetworkName is the name in the CNI configuration of the Amazon VPC CNI.
const NetworkName = "aws-cni"

// Values converts the environment of the aws-node container into values of the chart, and returns a remark on each
// variable that has no counterpart or that is unknown.
func Values(env map[string]string) (chart map[string]any, remarks []string) {
	v := &values{top: map[string]any{"mode": "node"}, daemon: map[string]any{
		"adopt-enis":  migrate.AmazonVPCCNI,
		"cni-network": NetworkName, // rules of host ports are found by it
	}}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		text := strings.TrimSpace(env[name])
		s, known := settings[name]
		var about string
		switch {
		case !known:
			about = "unknown: nothing is set for it"
		case text == "":
		case s.flag != "":
			v.daemon[s.flag] = typed(text)
		default:
			about = s.value(v, text)
		}
		if about != "" {
			remarks = append(remarks, fmt.Sprintf("%s=%s: %s", name, text, about))
		}
	}
	v.top["daemon"] = map[string]any{"settings": v.daemon}
	return v.top, remarks
}
