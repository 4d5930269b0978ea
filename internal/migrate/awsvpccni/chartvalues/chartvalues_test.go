package chartvalues

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness/check"
)

func TestValues(t *testing.T) {
	got, remarks := Values(map[string]string{
		"WARM_ENI_TARGET": "2", "WARM_IP_TARGET": "5", "ENABLE_PREFIX_DELEGATION": "true", "IP_COOLDOWN_PERIOD": "45", "MAX_ENI": "-1",
		"AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": "192.168.0.0/16", "AWS_VPC_ENI_MTU": "9001", "ENABLE_IPv6": "false", "CLUSTER_NAME": "shop",
		"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "true", "ENI_CONFIG_LABEL_DEF": "zone", "ENABLE_POD_ENI": "true", "ADDITIONAL_ENI_TAGS": "{}",
		"AWS_VPC_K8S_CNI_CONNMARK": "0x80", "SOMETHING_NEW": "1", "AWS_VPC_K8S_CNI_EXTERNALSNAT": "", "ENABLE_SUBNET_DISCOVERY": "true",
	})
	check.Equal(t, got, map[string]any{
		"mode": "operator", "clusterName": "shop", "ports": map[string]any{"enabled": true}, "nodeNetworkTemplates": map[string]any{"enabled": true},
		"daemon": map[string]any{"settings": map[string]any{
			"adopt-enis": "amazon-vpc-cni", "cni-network": "aws-cni", "warm-eni-target": 2, "warm-ip-target": 5, "enable-prefix-delegation": true,
			"cooling-period": "45s", "exclude-snat-cidrs": "192.168.0.0/16", "mtu": 9001, "trunk-eni": true,
		}},
	}, "values")
	var about []string
	for _, r := range remarks {
		name, _, _ := strings.Cut(r, "=")
		about = append(about, name)
	}
	check.Equal(t, about, []string{"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG", "ENABLE_POD_ENI", "ENABLE_SUBNET_DISCOVERY", "ENI_CONFIG_LABEL_DEF", "SOMETHING_NEW"}, "remarks")
}

// Each setting of the table is one of berthd, which accepts the values, as does the chart.
func TestValuesAreSettings(t *testing.T) {
	env := map[string]string{"ENABLE_IPv6": "true", "ENABLE_POD_ENI": "true", "MAX_ENI": "3", "IP_COOLDOWN_PERIOD": "30", "AWS_VPC_K8S_CNI_LOGLEVEL": "DEBUG", "POD_SECURITY_GROUP_ENFORCING_MODE": "standard"}
	for name, s := range settings {
		switch {
		case s.flag == "":
		case strings.HasPrefix(name, "ENABLE_"), strings.HasSuffix(name, "EXTERNALSNAT"):
			env[name] = "true"
		case strings.HasSuffix(name, "CIDRS"):
			env[name] = "10.1.0.0/16"
		default:
			env[name] = "1280"
		}
	}
	env["WARM_ENI_TARGET"], env["WARM_PREFIX_TARGET"] = "1", "1"
	env["CLUSTER_NAME"] = "shop"
	chart, _ := Values(env)
	if _, err := deploy.Render(deploy.Release{Values: chart}); err != nil {
		t.Errorf("the chart: %v", err)
	}
	flags := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	loader := config.NewLoader(flags)
	set := chart["daemon"].(map[string]any)["settings"].(map[string]any)
	var args []string
	for name, v := range set {
		args = append(args, fmt.Sprintf("--%s=%v", name, v))
	}
	slices.Sort(args)
	if err := flags.Parse(append(args, "--ipam=eni-operator", "--vpc-ports")); err != nil {
		t.Fatal(err)
	}
	if _, err := loader.Load(nil); err != nil {
		t.Errorf("berthd with %v: %v", args, err)
	}
}
