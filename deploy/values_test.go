package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness"
)

// values returns a release of a mode with values from a YAML text.
func values(t *testing.T, mode, text string) deploy.Release {
	t.Helper()
	r := deploy.InMode(mode, "test")
	more := map[string]any{}
	harness.OK(t, yaml.Unmarshal([]byte(text), &more))
	maps.Copy(r.Values, more)
	return r
}

// rendered returns the objects of a release with values from a YAML text.
func rendered(t *testing.T, mode, text string) deploy.Objects {
	t.Helper()
	objects, err := deploy.Render(values(t, mode, text))
	harness.OK(t, err)
	return objects
}

// Invalid values are rejected before anything is installed, with an error that names the value.
func TestInvalidValuesAreRejected(t *testing.T) {
	for _, tt := range []struct{ values, want string }{
		{"mode: enii", "at '/mode': value must be one of 'node', 'operator', 'pool', 'port'"},
		{"ports: {enabled: 'yes'}", "at '/ports/enabled': got string, want boolean"},
		{"ports: true", "at '/ports': got boolean, want object"},
		{"operator: {settings: {first-interface-is-port: true}}", "at '/operator/settings': additional properties 'first-interface-is-port' not allowed"},
		{"daemon: {settings: {vpc-ports: true}}", "at '/daemon/settings': additional properties 'vpc-ports' not allowed"},
		{"daemon: {settings: {egress: true}}", "at '/daemon/settings': additional properties 'egress' not allowed"},
		{"{mode: port, clusterName: ''}", "clusterName is empty: name the cluster; clusters whose ports"},
		{"{mode: pool, ports: {enabled: true}, clusterName: ''}", "clusterName is empty: name the cluster; clusters whose ports"},
		{"{mode: egress, ports: {enabled: true}}", "ports.enabled is of no use in mode egress"},
		{"clustername: a", "additional properties 'clustername' not allowed"},
		{"clusterName: ''", "clusterName is empty: name the cluster"},
		{"{monitoring: {podMonitor: {enabled: true}}, daemon: {settings: {metrics-address: '127.0.0.1:9100'}}}",
			"daemon.settings.metrics-address is 127.0.0.1:9100, where no PodMonitor reaches it"},
		{"{monitoring: {podMonitor: {enabled: true}}, daemon: {settings: {metrics-address: ''}}}", "daemon.settings.metrics-address is empty"},
		{"clusterName: 5", "at '/clusterName': got number, want string"},
		{"clusterName: my cluster", "at '/clusterName': 'my cluster' does not match pattern"},
		{"apiServer: {host: 'https://10.0.0.1'}", "at '/apiServer/host'"},
		{"apiServer: {port: 70000}", "at '/apiServer/port': maximum: got 70,000, want 65,535"},
		{"apiServer: {address: 10.0.0.1}", "at '/apiServer': additional properties 'address' not allowed"},
		{"imagePullSecrets: [registry]", "at '/imagePullSecrets/0': got string, want object"},
		{"commonLabels: {a: 1}", "at '/commonLabels/a': got number, want string"},
		{"commonLabels: {'a b': c}", "at '/commonLabels': additional properties 'a b' not allowed"},
		{"metrics: {onNodeAddress: 'yes'}", "at '/metrics/onNodeAddress': got string, want boolean"},
		{"daemon: {image: {tag: 1.2}}", "at '/daemon/image/tag': got number, want string"},
		{"daemon: {image: {tag: 'a b'}}", "at '/daemon/image/tag'"},
		{"daemon: {image: {digest: 'sha256:ab'}}", "at '/daemon/image/digest'"},
		{"daemon: {image: {pullPolicy: always}}", "at '/daemon/image/pullPolicy': value must be one of"},
		{"daemon: {image: {repository: ''}}", "at '/daemon/image/repository'"},
		{"daemon: {settings: {warm-ip-targett: 5}}", "at '/daemon/settings': additional properties 'warm-ip-targett' not allowed"},
		{"daemon: {settings: {BERTH_WARM_IP_TARGET: 5}}", "at '/daemon/settings': additional properties 'BERTH_WARM_IP_TARGET' not allowed"},
		{"daemon: {settings: {warm-ip-target: five}}", "at '/daemon/settings/warm-ip-target': got string, want integer"},
		{"daemon: {settings: {warm-ip-target: -1}}", "at '/daemon/settings/warm-ip-target': minimum: got -1, want 0"},
		{"daemon: {settings: {export-table: 0}}", "at '/daemon/settings/export-table': minimum: got 0, want 1"},
		{"daemon: {settings: {external-snat: 'yes'}}", "at '/daemon/settings/external-snat': got string, want boolean"},
		{"daemon: {settings: {warm-wait: soon}}", "at '/daemon/settings/warm-wait': 'soon' does not match pattern"},
		{"daemon: {settings: {ip-families: both}}", "at '/daemon/settings/ip-families': value must be one of 'ipv4', 'ipv6', 'dual'"},
		{"daemon: {settings: {log-level: loud}}", "at '/daemon/settings/log-level': value must be one of"},
		{"daemon: {settings: {state-dir: berth}}", "at '/daemon/settings/state-dir': 'berth' does not match pattern"},
		{"daemon: {settings: {subnets: ['a,b']}}", "at '/daemon/settings/subnets/0'"},
		{"daemon: {settings: {subnet-tags: {a: 'b,c'}}}", "at '/daemon/settings/subnet-tags/a'"},
		{"daemon: {settings: {introspection-address: ''}}", "at '/daemon/settings/introspection-address': minLength: got 0, want 1"},
		{"daemon: {settings: {ipam: pool}}", "at '/daemon/settings': additional properties 'ipam' not allowed"},
		{"daemon: {settings: {cluster-name: a}}", "at '/daemon/settings': additional properties 'cluster-name' not allowed"},
		{"daemon: {extraEnv: {A: b}}", "at '/daemon/extraEnv': got object, want array"},
		{"daemon: {extraEnv: [{name: 'a b', value: c}]}", "at '/daemon/extraEnv/0/name'"},
		{"daemon: {extraEnv: [{name: a, value: 1}]}", "at '/daemon/extraEnv/0/value': got number, want string"},
		{"daemon: {extraEnv: [{name: a, valueFrom: {fieldPath: a}}]}", "at '/daemon/extraEnv/0/valueFrom': additional properties 'fieldPath' not allowed"},
		{"daemon: {serviceAccount: {name: Berthd}}", "at '/daemon/serviceAccount/name'"},
		{"daemon: {serviceAccount: {annotations: {a: 1}}}", "at '/daemon/serviceAccount/annotations/a': got number, want string"},
		{"daemon: {priorityClassName: High}", "at '/daemon/priorityClassName'"},
		{"daemon: {updateStrategy: {type: Recreate}}", "at '/daemon/updateStrategy/type': value must be one of 'RollingUpdate', 'OnDelete'"},
		{"daemon: {updateStrategy: {rollingUpdate: {maxUnavailable: all}}}", "at '/daemon/updateStrategy/rollingUpdate/maxUnavailable'"},
		{"daemon: {tolerations: [{effect: Never}]}", "at '/daemon/tolerations/0/effect'"},
		{"daemon: {nodeSelector: {a: true}}", "at '/daemon/nodeSelector/a': got boolean, want string"},
		{"daemon: {affinity: {nodeaffinity: {}}}", "at '/daemon/affinity': additional properties 'nodeaffinity' not allowed"},
		{"daemon: {podLabels: {app.kubernetes.io/name: other}}", "at '/daemon/podLabels/app.kubernetes.io~1name'"},
		{"daemon: {resources: {limits: {memory: 1GB}}}", "at '/daemon/resources/limits/memory': '1GB' does not match pattern"},
		{"daemon: {resources: {limit: {memory: 1Gi}}}", "at '/daemon/resources': additional properties 'limit' not allowed"},
		{"daemon: {livenessProbe: {periodSeconds: 0}}", "at '/daemon/livenessProbe/periodSeconds': minimum: got 0, want 1"},
		{"daemon: {livenessProbe: {httpGet: {}}}", "at '/daemon/livenessProbe': additional properties 'httpGet' not allowed"},
		{"daemon: {replicas: 2}", "at '/daemon': additional properties 'replicas' not allowed"},
		{"operator: {replicas: two}", "at '/operator/replicas': got string, want integer"},
		{"operator: {settings: {shrink-delay: true}}", "at '/operator/settings/shrink-delay': got boolean, want "},
		{"operator: {settings: {leader-election-namespace: a}}", "at '/operator/settings': additional properties 'leader-election-namespace' not allowed"},
		{"operator: {settings: {health-address: ''}}", "at '/operator/settings/health-address': minLength"},
		{"operator: {updateStrategy: {type: OnDelete}}", "at '/operator/updateStrategy/type'"},
		{"operator: {podDisruptionBudget: {maxUnavailable: -1}}", "at '/operator/podDisruptionBudget/maxUnavailable'"},
		{"allowed: {securityGroups: sg-1}", "at '/allowed/securityGroups': got string, want array"},
		{"allowed: {securityGroups: [subnet-1]}", "at '/allowed/securityGroups/0'"},
		{"allowed: {subnetTags: [a]}", "at '/allowed/subnetTags/0'"},
		{"allowed: {settings: [firstInterfaceIndex=1]}", "at '/allowed/settings/0': value must be"},
		{"allowed: {addresses: many}", "at '/allowed/addresses': got string, want integer"},
		{"crds: {install: 'no'}", "at '/crds/install': got string, want boolean"},
		{"crds: false", "at '/crds': got boolean, want object"},
		{"upgrade: {skipMinorVersions: 'yes'}", "at '/upgrade/skipMinorVersions': got string, want boolean"},
		{"rbac: {enabled: false}", "at '/rbac': additional properties 'enabled' not allowed"},
		{"admissionPolicies: {create: 0}", "at '/admissionPolicies/create': got number, want boolean"},
	} {
		if _, err := deploy.Render(values(t, deploy.OperatorMode, tt.values)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("values %s: error = %v\nwant %s", tt.values, err, tt.want)
		}
	}
}

// Every object of the schema rejects unknown fields.
func TestSchemaRejectsUnknownFields(t *testing.T) {
	var schema any
	harness.OK(t, json.Unmarshal(readFile(t, "chart/values.schema.json"), &schema))
	var look func(path string, at any)
	look = func(path string, at any) {
		switch v := at.(type) {
		case []any:
			for i, e := range v {
				look(fmt.Sprintf("%s/%d", path, i), e)
			}
		case map[string]any:
			if _, object := v["properties"].(map[string]any); object && v["type"] == "object" && v["additionalProperties"] == nil {
				t.Errorf("schema of %s accepts unknown fields", path)
			}
			for key, e := range v {
				look(path+"/"+key, e)
			}
		}
	}
	look("", schema)
}

// sample returns a valid value of a setting, and the text that its program receives.
func sample(s config.Setting) (value any, text string) {
	form := s.Form()
	switch form.Kind {
	case config.Boolean:
		return true, "true"
	case config.Integer:
		return form.High, fmt.Sprint(form.High)
	case config.Duration:
		return "90s", "90s"
	case config.Word:
		return form.Words[0], form.Words[0]
	case config.Path:
		return "/some/path", "/some/path"
	case config.List:
		return []any{"a", "b"}, "a,b"
	case config.Pairs:
		return map[string]any{"b": "2", "a": "1"}, "a=1,b=2"
	}
	return "some-text:1", "some-text:1"
}

// Every setting of the programs is a value of the chart, except those derived from other values, and reaches the program
// in its environment variable.
func TestEverySettingIsAChartValue(t *testing.T) {
	for program, tt := range map[string]struct {
		settings  []config.Setting
		container corev1.Container
		except    map[string]bool
	}{
		"daemon": {
			settings: config.Settings(), container: onlyContainer(t, podOf(t, render(t, deploy.OperatorMode), "daemon")),
			except: map[string]bool{"node-name": true, "cluster-name": true, "ipam": true, "vpc-ports": true, "egress": true, "egress-port": true, "node-network-templates": true, "network-policies": true, "network-policy-namespace": true, "kubeconfig": true, "sysctl-dir": true},
		},
		"operator": {
			settings: config.OperatorSettings(), container: onlyContainer(t, podOf(t, render(t, deploy.OperatorMode), "operator")),
			except: map[string]bool{
				"cluster-name": true, "ipam": true, "egress": true, "egress-image": true, "egress-port": true,
				"first-interface-is-port": true, "kubeconfig": true, "leader-election-namespace": true,
				"network-policies": true, "network-policy-daemons": true,
			},
		},
	} {
		all, want := map[string]any{}, map[string]string{}
		for _, s := range tt.settings {
			value, text := sample(s)
			if tt.except[s.Flag] {
				r := deploy.InMode(deploy.OperatorMode, "test")
				r.Values[program] = map[string]any{"settings": map[string]any{s.Flag: text}}
				if _, err := deploy.Render(r); err == nil {
					t.Errorf("value %s.settings.%s was accepted, want an error", program, s.Flag)
				}
				continue
			}
			all[s.Flag], want[s.Env[0]] = value, text
		}
		r := deploy.InMode(deploy.OperatorMode, "test")
		r.Values[program] = map[string]any{"settings": all}
		objects, err := deploy.Render(r)
		harness.OK(t, err)
		got := map[string]string{}
		for _, e := range onlyContainer(t, podOf(t, objects, program)).Env {
			got[e.Name] = e.Value
		}
		for name, text := range want {
			if got[name] != text {
				t.Errorf("%s: variable %s = %q, want %q", program, name, got[name], text)
			}
		}
	}
}

// podOf returns the pod spec of the daemon or the operator.
func podOf(t *testing.T, o deploy.Objects, program string) corev1.PodSpec {
	t.Helper()
	if program == "operator" {
		return one[appsv1.Deployment](t, o, "berth-operator").Spec.Template.Spec
	}
	return one[appsv1.DaemonSet](t, o, "berthd").Spec.Template.Spec
}

// The annotation by which a pod gets an IAM role reaches the service account of the program that calls EC2.
func TestServiceAccountsHaveAnnotations(t *testing.T) {
	const key, arn = "eks.amazonaws.com/role-arn", "arn:aws:iam::123456789012:role/berth"
	for mode, want := range map[string]struct{ value, account string }{
		deploy.NodeMode:     {"daemon", "berthd"},
		deploy.OperatorMode: {"operator", "berth-operator"},
	} {
		objects := rendered(t, mode, fmt.Sprintf("%s: {serviceAccount: {annotations: {%s: %q}}}", want.value, key, arn))
		for _, o := range objects.Of("ServiceAccount") {
			annotated := o.GetName() == want.account
			if got := o.GetAnnotations()[key]; annotated != (got == arn) {
				t.Errorf("mode %s: annotation of service account %s = %q", mode, o.GetName(), got)
			}
		}
	}
}

// Of variables that refer to others only the names are recorded: Kubernetes replaces references inside the record too,
// and any text may take their place. The node's address is text that cannot end the JSON.
func TestRecordOfReferences(t *testing.T) {
	objects := rendered(t, deploy.OperatorMode, `{metrics: {onNodeAddress: true}, allowed: {subnetTags: ["a=$(B)"]}, daemon: {extraEnv: [
		{name: SECRET, valueFrom: {secretKeyRef: {name: proxy, key: password}}}, {name: HTTPS_PROXY, value: "http://user:$(SECRET)@proxy"}, {name: PLAIN, value: "a$b"}]}}`)
	record := func(program string) (text string, installed config.Installed) {
		for _, e := range onlyContainer(t, podOf(t, objects, program)).Env {
			if e.Name == config.InstalledEnv {
				text = e.Value
			}
		}
		harness.OK(t, json.Unmarshal([]byte(text), &installed))
		return text, installed
	}
	text, installed := record("berthd")
	if value, ok := installed.Env["HTTPS_PROXY"]; !ok || value != nil || strings.Contains(text, "$(SECRET)") {
		t.Errorf("record %s, want HTTPS_PROXY without a value", text)
	}
	if plain, address := installed.Env["PLAIN"], installed.Env["BERTH_METRICS_ADDRESS"]; plain == nil || *plain != "a$b" || address == nil || !strings.Contains(*address, "$(HOST_IP)") {
		t.Errorf("record %s, want the value of PLAIN, and the metrics address with the node's address", text)
	}
	if text, installed := record("operator"); installed.Allowed["subnetTags"] != "a=$$(B)" {
		t.Errorf("record %s, want allowed subnet tags in which Kubernetes replaces nothing", text)
	}
}
