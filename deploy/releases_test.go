package deploy_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness"
)

var update = flag.Bool("update", false, "rewrite testdata/releases.txt")

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// releases are the releases whose objects testdata/releases.txt lists: all fields of node mode, and for every other
// release the differences from the one with which it is compared.
var releases = []struct{ name, than, mode, values, kubernetes string }{
	{name: "node", mode: deploy.NodeMode},
	{name: "operator", than: "node", mode: deploy.OperatorMode},
	{name: "pool", than: "operator", mode: deploy.PoolMode},
	{name: "port", than: "pool", mode: deploy.PortMode},
	{name: "egress", than: "operator", mode: deploy.EgressMode},

	{name: "ports beside node mode", than: "port", mode: deploy.NodeMode, values: "ports: {enabled: true}"},
	{name: "ports beside operator mode", than: "operator", mode: deploy.OperatorMode, values: "ports: {enabled: true}"},
	{name: "ports beside pool mode", than: "pool", mode: deploy.PoolMode, values: "ports: {enabled: true}"},
	{name: "ports enabled in port mode", than: "port", mode: deploy.PortMode, values: "ports: {enabled: true}"},
	{name: "port mode without the webhook", than: "port", mode: deploy.PortMode, values: "ports: {webhook: {enabled: false}}"},
	{name: "ports without the webhook beside node mode", than: "ports beside node mode", mode: deploy.NodeMode, values: "ports: {enabled: true, webhook: {enabled: false}}"},
	{name: "ports without the webhook beside operator mode", than: "ports beside operator mode", mode: deploy.OperatorMode, values: "ports: {enabled: true, webhook: {enabled: false}}"},
	{name: "ports without the webhook beside pool mode", than: "ports beside pool mode", mode: deploy.PoolMode, values: "ports: {enabled: true, webhook: {enabled: false}}"},
	{name: "OVSDB in another folder", than: "port", mode: deploy.PortMode, values: "daemon: {settings: {ovsdb: 'unix:/run/ovs/db.sock'}}"},
	{name: "OVSDB by TCP", than: "port", mode: deploy.PortMode, values: "daemon: {settings: {ovsdb: 'tcp:127.0.0.1:6640'}}"},
	{name: "no OVSDB", than: "port", mode: deploy.PortMode, values: "daemon: {settings: {ovsdb: ''}}"},

	{name: "egress beside node mode", than: "egress", mode: deploy.NodeMode, values: "egress: {enabled: true}"},
	{name: "egress beside operator mode", than: "operator", mode: deploy.OperatorMode, values: "egress: {enabled: true}"},
	{name: "egress beside pool mode", than: "pool", mode: deploy.PoolMode, values: "egress: {enabled: true, port: 5556, image: {repository: registry.example.com/berth-egress, tag: v1}}"},
	{name: "egress beside port mode", than: "port", mode: deploy.PortMode, values: "egress: {enabled: true}"},

	{name: "migration to node mode", than: "node", mode: deploy.NodeMode, values: "migration: {from: amazon-vpc-cni}"},

	{name: "network policies beside node mode", than: "node", mode: deploy.NodeMode, values: "networkPolicies: {enabled: true}"},
	{name: "network policies beside operator mode", than: "operator", mode: deploy.OperatorMode, values: "networkPolicies: {enabled: true}"},
	{name: "network policies beside pool mode", than: "pool", mode: deploy.PoolMode, values: "networkPolicies: {enabled: true}"},
	{name: "network policies beside port mode", than: "port", mode: deploy.PortMode, values: "networkPolicies: {enabled: true}"},

	{name: "templates in node mode", than: "node", mode: deploy.NodeMode, values: "nodeNetworkTemplates: {enabled: true}"},
	{name: "templates without events in node mode", than: "node", mode: deploy.NodeMode, values: "{nodeNetworkTemplates: {enabled: true}, daemon: {settings: {pod-events: never}}}"},
	{name: "templates in operator mode", than: "operator", mode: deploy.OperatorMode, values: "nodeNetworkTemplates: {enabled: true}"},
	{name: "node mode without events", than: "node", mode: deploy.NodeMode, values: "daemon: {settings: {pod-events: never}}"},
	{name: "node mode on an old Kubernetes", than: "node", mode: deploy.NodeMode, kubernetes: "v1.31.4"},
	{name: "node mode with events where they can be", than: "node", mode: deploy.NodeMode, values: "daemon: {settings: {pod-events: auto}}"},
	{name: "node mode with events on Kubernetes 1.32", than: "node", mode: deploy.NodeMode, values: "daemon: {settings: {pod-events: always}}", kubernetes: "v1.32.0"},
	{name: "pool mode without events", than: "pool", mode: deploy.PoolMode, values: "daemon: {settings: {pod-events: never}}"},

	{name: "kinds that go with the release", than: "pool", mode: deploy.PoolMode, values: "crds: {keep: false}"},
	{name: "no kinds", than: "pool", mode: deploy.PoolMode, values: "crds: {install: false}"},
	{name: "no roles", than: "operator", mode: deploy.OperatorMode, values: "rbac: {create: false}"},
	{name: "no policies", than: "operator", mode: deploy.OperatorMode, values: "admissionPolicies: {create: false}"},
	{name: "no disruption budget", than: "operator", mode: deploy.OperatorMode, values: "operator: {podDisruptionBudget: {create: false}}"},
	{name: "no service accounts", than: "operator", mode: deploy.OperatorMode, values: "{daemon: {serviceAccount: {create: false}}, operator: {serviceAccount: {create: false}}}"},

	{name: "the API server's own address", than: "pool", mode: deploy.PoolMode, values: "apiServer: {host: 'fd00::1', port: 6443}"},
	{name: "update strategies without parameters", than: "pool", mode: deploy.PoolMode, values: "{daemon: {updateStrategy: {type: OnDelete}}, operator: {updateStrategy: {type: Recreate}}}"},
	{name: "another repository", than: "node", mode: deploy.NodeMode, values: "daemon: {image: {repository: 'a.example:5000/b/node'}}"},
	{name: "a tag", than: "node", mode: deploy.NodeMode, values: "daemon: {image: {tag: v1.2.3}}"},
	{name: "a digest", than: "node", mode: deploy.NodeMode, values: "daemon: {image: {tag: v1.2.3, digest: '" + digest + "'}}"},
	{name: "a registry with a password", than: "node", mode: deploy.NodeMode, values: "{daemon: {image: {pullPolicy: Always}}, imagePullSecrets: [{name: a}]}"},
	{name: "records in another folder", than: "pool", mode: deploy.PoolMode, values: "daemon: {settings: {state-dir: /run/other}}"},
	{name: "records in a folder beside the socket", than: "pool", mode: deploy.PoolMode, values: "daemon: {settings: {state-dir: /run/berth/state}}"},
	{name: "the socket in another folder", than: "pool", mode: deploy.PoolMode, values: "daemon: {settings: {socket: /run/other/a.sock}}"},
	{name: "privileged", than: "node", mode: deploy.NodeMode, values: "daemon: {privileged: true}"},
	{name: "no CRI socket and no metrics", than: "node", mode: deploy.NodeMode, values: "daemon: {settings: {cri-socket: null, metrics-address: ''}}"},
	{name: "the allowed list", than: "operator", mode: deploy.OperatorMode, values: `
daemon:
  settings: {security-groups: [sg-1, sg-2], subnet-tags: {for: pods}, first-interface-index: 0, delete-on-termination: false, trunk-eni: true, warm-prefix-target: 100}
allowed: {securityGroups: [sg-3], subnetIDs: ["*"], settings: [usePrimaryAddress=true, firstInterfaceIndex=0]}`},
	{name: "other paths, addresses and pod values", than: "pool", mode: deploy.PoolMode, values: `
metrics: {onNodeAddress: true}
daemon:
  settings:
    state-dir: /run/other
    socket: /run/other/berthd.sock
    cri-socket: unix:///run/crio/crio.sock
    cni-bin-dir: /usr/lib/cni
    cni-conf-dir: /etc/kubernetes/cni
    introspection-address: 127.0.0.1:7777
  extraEnv: [{name: BERTH_LOG_LEVEL, value: debug}]
  podLabels: {a: b}
  podAnnotations: {c: d}
  affinity: {nodeAffinity: {}}
  nodeSelector: {kubernetes.io/os: null, berth: "yes"}
operator:
  replicas: 3
  settings: {health-address: "127.0.0.1:7778"}`},
}

// Every release renders the objects of testdata/releases.txt, which fit the programs and each other. After a change of
// the chart, review the difference and run the test with -update.
func TestReleases(t *testing.T) {
	const file = "testdata/releases.txt"
	want := map[string]string{}
	for _, section := range strings.Split(string(readFile(t, file)), "== ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		want[name] = text
	}
	described := map[string][]string{}
	var all bytes.Buffer
	for _, r := range releases {
		release := values(t, r.mode, r.values)
		release.Kubernetes = r.kubernetes
		objects, err := deploy.Render(release)
		harness.OK(t, err)
		// Other lines have what this variable repeats (recordsWhatItInstalls).
		described[r.name] = slices.DeleteFunc(describe(objects), func(line string) bool { return strings.Contains(line, "env["+config.InstalledEnv+"]") })
		title := r.name
		if r.than != "" {
			title += ", compared with " + r.than
		}
		got := differences(described[r.than], described[r.name])
		fmt.Fprintf(&all, "== %s\n%s", title, got)
		t.Run(r.name, func(t *testing.T) {
			if d := cmp.Diff(want[title], got); d != "" && !*update {
				t.Errorf("objects differ from %s (-want +got):\n%s", file, d)
			}
			fitTogether(t, objects)
			pod := podOf(t, objects, "daemon")
			fitsTheDaemon(t, pod, onlyContainer(t, pod))
			recordsWhatItInstalls(t, objects, pod)
			if len(objects.Of("Deployment")) > 0 {
				fitsTheOperator(t, onlyContainer(t, podOf(t, objects, "operator")), load(t, onlyContainer(t, pod)))
			}
		})
	}
	if *update {
		harness.OK(t, os.WriteFile(file, all.Bytes(), 0o644))
	}
}

// differences are the lines that only one of two lists has, in order.
func differences(than, of []string) string {
	var text strings.Builder
	all := slices.Concat(than, of)
	slices.Sort(all)
	for _, line := range slices.Compact(all) {
		switch was, is := slices.Contains(than, line), slices.Contains(of, line); {
		case was && !is:
			text.WriteString("- " + line + "\n")
		case is && !was:
			text.WriteString("+ " + line + "\n")
		}
	}
	return text.String()
}

// shorter are prefixes of fields that most lines would repeat.
var shorter = strings.NewReplacer(
	"spec.template.spec.containers[berthd].", "container ", "spec.template.spec.containers[berth-operator].", "container ", "spec.template.spec.", "pod ", "].value =", "] =",
)

// describe lists the fields of objects, one on each line. It omits the parts that other tests check: CRDs, expressions of
// policies, and labels of all objects.
func describe(objects deploy.Objects) (lines []string) {
	for _, o := range objects {
		id := o.GetKind() + " " + o.GetName()
		if ns := o.GetNamespace(); ns != "" && ns != "kube-system" {
			id += " of " + ns
		}
		fields, before := o.DeepCopy().Object, len(lines)
		for _, field := range []string{"apiVersion", "kind", "roleRef", "subjects", "rules"} {
			delete(fields, field)
		}
		metadata := fields["metadata"].(map[string]any)
		delete(metadata, "name")
		delete(metadata, "namespace")
		if o.GetKind() == "CustomResourceDefinition" {
			delete(fields, "spec")
		}
		for _, r := range listOf(o, "rules") {
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s: may %v %v of %q %v", id, r["verbs"], r["resources"], r["apiGroups"], r["resourceNames"]), " <nil>"))
		}
		for _, subject := range listOf(o, "subjects") {
			role := o.Object["roleRef"].(map[string]any)
			lines = append(lines, fmt.Sprintf("%s: binds %v %v to %v/%v", id, role["kind"], role["name"], subject["namespace"], subject["name"]))
		}
		flatten("", fields, func(field, value string) {
			if !leftOut.MatchString(field) {
				lines = append(lines, id+": "+shorter.Replace(field+" = "+value))
			}
		})
		if len(lines) == before {
			lines = append(lines, id)
		}
	}
	return lines
}

// listOf is a list of objects in a field of an object.
func listOf(o *unstructured.Unstructured, field string) (out []map[string]any) {
	list, _ := o.Object[field].([]any)
	for _, e := range list {
		out = append(out, e.(map[string]any))
	}
	return out
}

// leftOut are fields that are the same in every object, and those of policies and webhooks that other
// tests check.
var leftOut = regexp.MustCompile(`controller-gen|app\.kubernetes\.io/|helm\.sh/chart|policyName|matchConstraints|\b(expression|message|messageExpression|reason)$`)

// flatten calls add for every field with its path. Elements of lists are identified by their names.
func flatten(path string, value any, add func(path, value string)) {
	list, _ := value.([]any)
	switch fields, ok := value.(map[string]any); {
	case len(fields) > 0:
		for key, field := range fields {
			flatten(strings.TrimPrefix(path+"."+key, "."), field, add)
		}
	case ok:
		add(path, "{}")
	case len(list) > 0 && reflect.TypeOf(list[0]).Kind() == reflect.Map:
		for i, e := range list {
			key, rest := fmt.Sprint(i), maps.Clone(e.(map[string]any))
			if name, ok := rest["name"].(string); ok {
				key = name
				delete(rest, "name")
			}
			if mounted, ok := rest["mountPath"].(string); ok {
				key = mounted + " from " + key
				delete(rest, "mountPath")
			}
			flatten(path+"["+key+"]", rest, add)
		}
	default:
		add(path, fmt.Sprint(value))
	}
}

// thereOnce asserts that no two objects have the same name.
func thereOnce(t *testing.T, objects deploy.Objects) map[string]bool {
	t.Helper()
	seen := map[string]bool{}
	for _, o := range objects {
		id := strings.Join([]string{o.GetKind(), o.GetNamespace(), o.GetName()}, " ")
		if seen[id] {
			t.Errorf("object %s is rendered twice", id)
		}
		seen[id] = true
	}
	return seen
}

// fitTogether asserts that objects have unique names and Berth's labels, that bindings are between accounts and roles of
// the release, and that policies do not reject the first object of a kind.
func fitTogether(t *testing.T, objects deploy.Objects) {
	t.Helper()
	seen := thereOnce(t, objects)
	for _, o := range objects {
		if o.GetLabels()["app.kubernetes.io/part-of"] != "berth" {
			t.Errorf("labels of %s %s = %v, want those of Berth", o.GetKind(), o.GetName(), o.GetLabels())
		}
	}
	for _, o := range objects.Of("ClusterRoleBinding", "RoleBinding") {
		var b rbacv1.ClusterRoleBinding // with the fields of both
		harness.OK(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b))
		role := strings.Join([]string{b.RoleRef.Kind, o.GetNamespace(), b.RoleRef.Name}, " ")
		if b.RoleRef.Kind == "ClusterRole" {
			role = "ClusterRole  " + b.RoleRef.Name
		}
		if len(b.Subjects) != 1 || b.Subjects[0].Kind != "ServiceAccount" || b.Subjects[0].Namespace != "kube-system" || !seen[role] {
			t.Errorf("binding %s binds %s to %+v, want a role and an account of the release", o.GetName(), role, b.Subjects)
		}
	}
	for _, o := range objects.Of("ClusterRole", "Role") {
		var r rbacv1.ClusterRole
		harness.OK(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &r))
		if len(r.Rules) == 0 {
			t.Errorf("role %s allows nothing", o.GetName())
		}
		for _, rule := range r.Rules {
			if slices.Contains(slices.Concat(rule.Verbs, rule.Resources, rule.APIGroups), "*") {
				t.Errorf("role %s has a wildcard rule: %v", o.GetName(), rule)
			}
		}
	}
	for _, o := range objects.Of("ValidatingAdmissionPolicy") {
		p := one[admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, o.GetName())
		// A policy "is invalid if spec.paramKind refers to a non-existent Kind" (API reference), as it is for up to
		// 30 s after a kind is installed. With Fail the first pool would be rejected; the operator checks it too.
		if k := p.Spec.ParamKind; k != nil && strings.HasPrefix(k.APIVersion, "berth.dev/") && *p.Spec.FailurePolicy != admissionregistrationv1.Ignore {
			t.Errorf("policy %s depends on a CRD of the chart: failurePolicy = %s, want Ignore", p.Name, *p.Spec.FailurePolicy)
		}
	}
}

// recordsWhatItInstalls checks that programs find no drift as the chart renders them, and the ConfigMap in its record.
func recordsWhatItInstalls(t *testing.T, objects deploy.Objects, pod corev1.PodSpec) {
	t.Helper()
	if d := load(t, onlyContainer(t, pod)).Drift; d.Installed == nil || len(d.Changes) > 0 {
		t.Errorf("drift of berthd as installed = %+v, want none", d)
	}
	if len(objects.Of("Deployment")) == 0 {
		return
	}
	d := loadBy(t, config.NewOperatorLoader, onlyContainer(t, podOf(t, objects, "operator"))).Drift
	if d.Installed == nil || len(d.Changes) > 0 {
		t.Errorf("drift of berth-operator as installed = %+v, want none", d)
		return
	}
	allowed, err := deploy.Get[corev1.ConfigMap](objects, "ConfigMap", "berthd-allowed")
	if err != nil {
		allowed.Data = nil
	}
	if !maps.Equal(d.Installed.Allowed, allowed.Data) {
		t.Errorf("recorded data of berthd-allowed = %v, want %v", d.Installed.Allowed, allowed.Data)
	}
}

// fitsTheDaemon checks a daemon's pod against its program: berthd knows all its settings, and all paths that it uses are
// mounted.
func fitsTheDaemon(t *testing.T, pod corev1.PodSpec, c corev1.Container) {
	t.Helper()
	cfg := load(t, c)
	if len(cfg.Unknown) > 0 || cfg.NodeName != "node-1" {
		t.Errorf("settings unknown to berthd = %v, node = %s, want none and node-1", cfg.Unknown, cfg.NodeName)
	}
	var reference bytes.Buffer
	harness.OK(t, config.WriteReference(&reference))
	used := regexp.MustCompile(`\$\((\w+)\)`)
	known := map[string]bool{}
	for _, e := range c.Env {
		if !strings.Contains(reference.String(), "`"+e.Name+"`") && !strings.HasPrefix(e.Name, "KUBERNETES_SERVICE_") && e.Name != "HOST_IP" && e.Name != config.InstalledEnv {
			t.Errorf("berthd reads no variable %s", e.Name)
		}
		if m := used.FindStringSubmatch(e.Value); m != nil && !known[m[1]] {
			t.Errorf("variable %s uses %s, which no earlier variable sets", e.Name, m[1])
		}
		known[e.Name] = true
	}
	mountsWhatBerthdUses(t, pod, c, cfg)
	checkProbes(t, c, cfg.IntrospectionAddr)
	for _, p := range c.Ports {
		if p.ContainerPort != p.HostPort || !strings.HasSuffix(cfg.MetricsAddr, fmt.Sprint(":", p.HostPort)) {
			t.Errorf("port = %+v, metrics address = %s, want the same port", p, cfg.MetricsAddr)
		}
	}
	if float64(*pod.TerminationGracePeriodSeconds) <= cfg.DrainTimeout.Seconds() {
		t.Errorf("termination grace period = %d s, want more than the drain timeout %v", *pod.TerminationGracePeriodSeconds, cfg.DrainTimeout)
	}
}

// mountsWhatBerthdUses asserts that every path that berthd uses is mounted once, from the same path on the node.
func mountsWhatBerthdUses(t *testing.T, pod corev1.PodSpec, c corev1.Container, cfg config.Config) {
	t.Helper()
	hostPaths := map[string]string{}
	tokens := map[string]string{} // the path in the volume, by volume
	for _, v := range pod.Volumes {
		if v.Projected != nil {
			tokens[v.Name] = v.Projected.Sources[0].ServiceAccountToken.Path
			continue
		}
		hostPaths[v.Name] = v.HostPath.Path
	}
	propagation := map[string]*corev1.MountPropagationMode{}
	for _, m := range c.VolumeMounts {
		if _, twice := propagation[m.MountPath]; twice {
			t.Errorf("two volumes are mounted at %s", m.MountPath)
		}
		propagation[m.MountPath] = m.MountPropagation
		if token, is := tokens[m.Name]; is {
			if at := path.Join(m.MountPath, token); at != cfg.NetworkPolicyToken {
				t.Errorf("a token is mounted at %s, and berthd reads %s", at, cfg.NetworkPolicyToken)
			}
			continue
		}
		sysctls := hostPaths[m.Name] == "/proc/sys/net" && m.MountPath == cfg.SysctlDir+"/net" // where runtimes allow this mount
		if host := hostPaths[m.Name]; host != m.MountPath && "/var"+host != m.MountPath && !sysctls {
			t.Errorf("%s of the node is mounted at %s", host, m.MountPath)
		}
	}
	used := []string{cfg.StateDir, path.Dir(cfg.Socket), cfg.CNIBinDir, cfg.CNIConfDir}
	if cfg.NetworkPolicies {
		used = append(used, cfg.NetworkPolicyDir, path.Dir(cfg.NetworkPolicyToken))
	}
	if cfg.CRISocket != "" {
		used = append(used, path.Dir(strings.TrimPrefix(cfg.CRISocket, "unix://")))
	}
	if socket, local := strings.CutPrefix(cfg.OVSDB, "unix:"); local && cfg.HasPorts() {
		used = append(used, path.Dir(socket))
	}
	for _, dir := range used {
		if _, ok := propagation[dir]; !ok {
			t.Errorf("%s is not mounted", dir)
		}
	}
	// TestNamespacesReachADaemonInAContainer shows the effect of another propagation.
	for _, dir := range []string{"/run/netns", "/var/run/netns"} {
		if p := propagation[dir]; p == nil || *p != corev1.MountPropagationHostToContainer {
			t.Errorf("mount propagation of %s = %v, want HostToContainer", dir, p)
		}
	}
}

// fitsTheOperator checks an operator's container against its program and the daemons of the release.
func fitsTheOperator(t *testing.T, c corev1.Container, daemon config.Config) {
	t.Helper()
	cfg := loadBy(t, config.NewOperatorLoader, c)
	if len(cfg.Unknown) > 0 {
		t.Errorf("settings unknown to berth-operator = %v", cfg.Unknown)
	}
	checkProbes(t, c, cfg.HealthAddr)
	if daemon.IPAM == config.IPAMENIOperator && cfg.ClusterName != daemon.ClusterName {
		t.Errorf("cluster name of the operator = %q, of the daemons = %q", cfg.ClusterName, daemon.ClusterName)
	}
	if cfg.Egress != daemon.Egress || cfg.EgressPort != daemon.EgressPort {
		t.Errorf("egress of the operator = %v with port %d, of the daemons = %v with port %d", cfg.Egress, cfg.EgressPort, daemon.Egress, daemon.EgressPort)
	}
	if cfg.NetworkPolicies != daemon.NetworkPolicies || cfg.NetworkPolicies && cfg.LeaseNamespace != daemon.NetworkPolicyNamespace {
		t.Errorf("the operator has network policies %v in namespace %s, the daemons %v in %s", cfg.NetworkPolicies, cfg.LeaseNamespace, daemon.NetworkPolicies, daemon.NetworkPolicyNamespace)
	}
	if !slices.Contains([]string{config.IPAMENI, config.IPAMNone}, daemon.IPAM) && !slices.Contains(cfg.IPAM, daemon.IPAM) || daemon.HasPorts() != slices.Contains(cfg.IPAM, config.IPAMPort) {
		t.Errorf("ipam of the operator = %v, of the daemons = %s with ports = %v", cfg.IPAM, daemon.IPAM, daemon.HasPorts())
	}
	if daemon.HasPorts() && cfg.FirstIsPort != (daemon.IPAM == config.IPAMPort) {
		t.Errorf("first interface is a port for the operator = %v, ipam of the daemons = %s", cfg.FirstIsPort, daemon.IPAM)
	}
	for _, p := range c.Ports {
		if p.ContainerPort != p.HostPort || p.Name == "metrics" && !strings.HasSuffix(cfg.MetricsAddr, fmt.Sprint(":", p.HostPort)) || p.Name == "webhook" && cfg.WebhookAddr != fmt.Sprint(":", p.HostPort) ||
			p.Name == "policies" && !strings.HasSuffix(cfg.NetworkPolicyAddr, fmt.Sprint("]:", p.HostPort)) {
			t.Errorf("port = %+v, metrics address = %s, webhook address = %s, network policies at %s", p, cfg.MetricsAddr, cfg.WebhookAddr, cfg.NetworkPolicyAddr)
		}
	}
}
