package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// record is what the chart installed in TestDrift.
const record = `{"args":["--metrics-address="],"env":{"BERTH_WARM_IP_TARGET":"3","BERTH_CLUSTER_NAME":"a","BERTH_NODE_NAME":null,"HTTPS_PROXY":"http://a"}}`

func TestDrift(t *testing.T) {
	installed := []string{"BERTH_WARM_IP_TARGET=3", "BERTH_CLUSTER_NAME=a", "BERTH_NODE_NAME=n", "HTTPS_PROXY=http://a"}
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want []string
	}{
		{"as installed", nil, nil, nil},
		{"changed variable", nil, []string{"BERTH_WARM_IP_TARGET=9"}, []string{"warm-ip-target is 9, and the chart installed 3"}},
		{"removed variable", nil, []string{"BERTH_WARM_IP_TARGET="}, []string{"warm-ip-target is not set, and the chart installed 3"}},
		{"name of another program", nil, []string{"AWS_VPC_K8S_CNI_EXTERNALSNAT=true"}, []string{"external-snat is true, and the chart installed false"}},
		{"name of another program, without effect", nil, []string{"WARM_IP_TARGET=9"}, nil},
		{"argument", []string{"--warm-ip-target=9"}, nil, []string{"warm-ip-target is 9, and the chart installed 3"}},
		{"argument with the same value", []string{"--warm-ip-target=3"}, nil, nil},
		{"two changes", []string{"--log-level=debug"}, []string{"BERTH_CLUSTER_NAME=b"}, []string{"cluster-name is b, and the chart installed a", "log-level is debug, and the chart installed info"}},
		{"secret variable", nil, []string{"HTTPS_PROXY=http://user:password@b"}, []string{"environment variable HTTPS_PROXY is not what the chart installed"}},
		{"region of the webhook for roles", nil, []string{"AWS_REGION=eu-central-1", "AWS_ROLE_ARN=x"}, nil},
		{"value from elsewhere", nil, []string{"BERTH_NODE_NAME=other"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
			loader := NewLoader(flags)
			args := append([]string{"--metrics-address="}, tt.args...)
			if err := flags.Parse(args); err != nil {
				t.Fatal(err)
			}
			environ := slices.Concat(installed, tt.env, []string{InstalledEnv + "=" + record})
			cfg, err := loader.Load(environ)
			if err != nil {
				t.Fatal(err)
			}
			env := map[string]*string{}
			for _, kv := range environ {
				name, value, _ := strings.Cut(kv, "=")
				env[name] = &value
			}
			for by, d := range map[string]Drift{"Load": cfg.Drift, "DriftOf": DriftOf(Settings(), args, env)} {
				if !slices.Equal(d.Changes, tt.want) || d.Installed == nil {
					t.Errorf("%s: changes = %q, want %q", by, d.Changes, tt.want)
				}
			}
		})
	}
}

// A message names the first changes and what to do; a program that no chart installed has none.
func TestDriftMessage(t *testing.T) {
	if m := (Drift{}).Message(); m != "" {
		t.Errorf("message without changes = %q, want none", m)
	}
	m := Drift{Changes: slices.Repeat([]string{"a is 1, and the chart installed 2"}, 12)}.Message()
	if strings.Count(m, "a is 1") != 10 || !strings.Contains(m, "; and 2 more. To keep a change") {
		t.Errorf("message = %q, want 10 changes, the number of others and what to do", m)
	}
	if d := DriftOf(Settings(), []string{"--log-level=debug"}, nil); d.Installed != nil || d.Changes != nil {
		t.Errorf("without a record: %+v, want nothing", d)
	}
	broken := "{"
	if d := DriftOf(Settings(), nil, map[string]*string{InstalledEnv: &broken}); len(d.Changes) != 1 || !strings.Contains(d.Changes[0], "BERTH_INSTALLED cannot be read") {
		t.Errorf("with a damaged record: %q, want one change", d.Changes)
	}
}
