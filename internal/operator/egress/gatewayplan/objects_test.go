package gatewayplan

import (
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/api/v1alpha1"
)

var settings = Settings{Image: "berth-egress:v1", Port: 5556}

func newEgress(change func(*v1alpha1.EgressSpec)) *v1alpha1.Egress {
	e := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "nat", UID: "u"}}
	e.Spec.Destinations = []string{"0.0.0.0/0"}
	if change != nil {
		change(&e.Spec)
	}
	return e
}

func template(spec string) func(*v1alpha1.EgressSpec) {
	return func(s *v1alpha1.EgressSpec) {
		s.Template = &v1alpha1.EgressPodTemplate{Spec: &runtime.RawExtension{Raw: []byte(spec)}}
	}
}

// as converts an object to its Go type.
func as[T any](t *testing.T, all map[schema.GroupVersionKind]*unstructured.Unstructured, kind schema.GroupVersionKind) (out T) {
	t.Helper()
	o := all[kind]
	if o == nil {
		t.Fatalf("Objects() has no %s", kind.Kind)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &out, true); err != nil {
		t.Fatal(err)
	}
	return out
}

// All objects of an Egress have its name, namespace and label, and are owned by it. They contain no
// field that server-side apply would own without need.
func TestObjects(t *testing.T) {
	one := intstr.FromInt32(1)
	all, problem := Objects(newEgress(func(s *v1alpha1.EgressSpec) {
		s.PodDisruptionBudget = &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &one}
	}), settings)
	if problem != nil || len(all) != len(Kinds) {
		t.Fatalf("Objects() = %d objects, %v, want one of each kind", len(all), problem)
	}
	for kind, o := range all {
		owner := metav1.GetControllerOf(o)
		if o.GetName() != "nat" || o.GetNamespace() != "a" || o.GetLabels()[v1alpha1.LabelEgress] != "nat" || o.GroupVersionKind() != kind {
			t.Errorf("%s has wrong metadata: %+v", kind.Kind, o)
		}
		if owner == nil || owner.Kind != "Egress" || owner.UID != "u" || owner.Name != "nat" || owner.APIVersion != "berth.dev/v1alpha1" {
			t.Errorf("%s: owner = %+v, want Egress nat", kind.Kind, owner)
		}
		text, err := json.Marshal(o)
		if err != nil || strings.Contains(string(text), "null") || o.Object["status"] != nil {
			t.Errorf("%s = %s, %v, want no null fields and no status", kind.Kind, text, err)
		}
	}
	role := as[rbacv1.Role](t, all, Role)
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{"berth.dev"}, Resources: []string{"egresses"}, ResourceNames: []string{"nat"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"berth.dev"}, Resources: []string{"egressclientslices"}, Verbs: []string{"get", "list", "watch"}},
	}
	if d := cmp.Diff(want, role.Rules); d != "" {
		t.Errorf("rules of the gateways' Role (-want +got):\n%s", d)
	}
	if b := as[rbacv1.RoleBinding](t, all, RoleBinding); b.RoleRef.Name != "nat" || b.Subjects[0].Name != "nat" || b.Subjects[0].Namespace != "a" {
		t.Errorf("RoleBinding = %+v, want role nat and service account a/nat", b)
	}
	if all, _ := Objects(newEgress(nil), settings); all[Budget] != nil {
		t.Error("Objects() has a PodDisruptionBudget that the Egress does not ask for")
	}
}

// The gateway's container is as Berth needs it, whatever the template says.
func TestTemplateCannotChangeTheGateway(t *testing.T) {
	plain, problem := Objects(newEgress(nil), settings)
	if problem != nil {
		t.Fatal(problem)
	}
	want := as[appsv1.Deployment](t, plain, Deployment).Spec.Template.Spec
	if len(want.Containers) != 1 || want.Containers[0].Image != "berth-egress:v1" {
		t.Fatalf("containers = %+v, want only the gateway", want.Containers)
	}
	context := want.Containers[0].SecurityContext
	if *context.Privileged || *context.AllowPrivilegeEscalation || !*context.ReadOnlyRootFilesystem || cmp.Diff(context.Capabilities,
		&corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}) != "" {
		t.Errorf("security context = %+v, want only NET_ADMIN", context)
	}
	if *want.TerminationGracePeriodSeconds != 60 || *want.AutomountServiceAccountToken || want.ServiceAccountName != "nat" {
		t.Errorf("pod spec = %+v, want grace period 60 s and service account nat without automount", want)
	}
	for _, spec := range []string{
		`{"serviceAccountName":"admin","automountServiceAccountToken":true,"enableServiceLinks":true}`,
		`{"containers":[{"name":"egress","image":"evil:1","command":["/evil"],"args":["--evil"]}]}`,
		`{"containers":[{"name":"egress","securityContext":{"privileged":true,"capabilities":{"add":["SYS_ADMIN"]},"runAsUser":5,"procMount":"Unmasked"}}]}`,
		`{"containers":[{"name":"egress","volumeMounts":[{"name":"a","mountPath":"/berth-egress","subPath":"a"}]}]}`,
		`{"containers":[{"name":"egress","readinessProbe":{"exec":{"command":["true"]}},"livenessProbe":{"httpGet":{"path":"/","port":1}}}]}`,
		`{"containers":[{"name":"egress","env":[{"name":"BERTH_EGRESS_NAME","value":"another"}]}]}`,
		`{"containers":[{"name":"egress"}]}`, `{}`,
	} {
		all, problem := Objects(newEgress(template(spec)), settings)
		if problem != nil {
			t.Errorf("%s: unexpected problem: %v", spec, problem)
			continue
		}
		got := as[appsv1.Deployment](t, all, Deployment).Spec.Template.Spec
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("pod spec with template %s (-want +got):\n%s", spec, d)
		}
	}
}

// The allowed parts of a template are merged with what Berth needs.
func TestTemplateIsMerged(t *testing.T) {
	all, problem := Objects(newEgress(func(s *v1alpha1.EgressSpec) {
		template(`{"terminationGracePeriodSeconds":300,"priorityClassName":"high","nodeSelector":{"a":"b"},"tolerations":[{"key":"k"}],
			"securityContext":{"sysctls":[{"name":"net.ipv4.ip_forward","value":"1"}]},"volumes":[{"name":"v","emptyDir":{}}],
			"containers":[{"name":"log","image":"log:1"},{"name":"egress","resources":{"limits":{"memory":"1Gi"}},"env":[{"name":"BERTH_LOG_LEVEL","value":"debug"}]}]}`)(s)
		s.Template.Metadata.Labels = map[string]v1alpha1.EgressPodLabel{"app": "nat"}
		s.Template.Metadata.Annotations = map[string]string{"a": "b", v1alpha1.AnnotationEgressGateway: "false"}
	}), settings)
	if problem != nil {
		t.Fatal(problem)
	}
	got := as[appsv1.Deployment](t, all, Deployment).Spec.Template
	pod := got.Spec
	if *pod.TerminationGracePeriodSeconds != 300 || pod.PriorityClassName != "high" || pod.NodeSelector["a"] != "b" || len(pod.Tolerations) != 1 || len(pod.Volumes) != 2 ||
		len(pod.SecurityContext.Sysctls) != 1 || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod spec = %+v, want the template's fields", pod)
	}
	if len(pod.Containers) != 2 || pod.Containers[0].Name != "log" || pod.Containers[1].Resources.Limits.Memory().String() != "1Gi" {
		t.Fatalf("containers = %+v, want log and the gateway with its resources", pod.Containers)
	}
	env := map[string]string{}
	for _, e := range pod.Containers[1].Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil {
			env[e.Name] = e.ValueFrom.FieldRef.FieldPath
		}
	}
	if env["POD_IPS"] != "status.podIPs" || env["HOST_IPS"] != "status.hostIPs" || env["BERTH_LOG_LEVEL"] != "debug" || env["BERTH_GRACE_PERIOD"] != "300s" || env["BERTH_FOU_PORT"] != "5556" || env["BERTH_EGRESS_NAME"] != "nat" {
		t.Errorf("environment of the gateway = %v", env)
	}
	if len(pod.Containers[0].VolumeMounts) > 0 {
		t.Error("sidecar has the gateway's token mounted")
	}
	if got.Labels["app"] != "nat" || got.Labels[v1alpha1.LabelEgress] != "nat" || got.Annotations["a"] != "b" || got.Annotations[v1alpha1.AnnotationEgressGateway] != "true" {
		t.Errorf("pod metadata = %+v, want the template's labels and annotations beside Berth's", got.ObjectMeta)
	}
}

// A gateway with a grace period shorter than the end delay ends within the grace period.
func TestShortGracePeriod(t *testing.T) {
	for spec, want := range map[string]string{`{"terminationGracePeriodSeconds":5}`: "5s", `{"terminationGracePeriodSeconds":0}`: "0s", `{"terminationGracePeriodSeconds":10}`: "", `{}`: ""} {
		all, problem := Objects(newEgress(template(spec)), settings)
		if problem != nil {
			t.Fatal(problem)
		}
		got := ""
		for _, e := range as[appsv1.Deployment](t, all, Deployment).Spec.Template.Spec.Containers[0].Env {
			if e.Name == "BERTH_END_DELAY" {
				got = e.Value
			}
		}
		if got != want {
			t.Errorf("%s: BERTH_END_DELAY = %q, want %q", spec, got, want)
		}
	}
}

func TestInvalidTemplates(t *testing.T) {
	for spec, want := range map[string]string{
		`{"hostNetwork":true}`: "spec.template.spec.hostNetwork: gateways have",
		`{"hostPID":true}`:     "spec.template.spec.hostPID: ",
		`{"hostIPC":true}`:     "spec.template.spec.hostIPC: ",
		`{"nodeSelektor":{}}`:  `spec.template.spec: unknown field "nodeSelektor"`,
		`{"containers":[{"name":"egress","$patch":"delete"}]}`: `spec.template.spec: unknown field "containers[0].$patch"`,
		`{"nodeSelector":["a"]}`:                               "spec.template.spec: is not part of a PodSpec: ",
		`{"containers":{}}`:                                    "spec.template.spec: is not part of a PodSpec: ",
		`[]`:                                                   "spec.template.spec: is not part of a PodSpec: ",
		`{"hostname":"` + strings.Repeat("x", maxTemplate) + `"}`: "spec.template: is longer than 32 KiB in spec and annotations",
	} {
		all, problem := Objects(newEgress(template(spec)), settings)
		if problem == nil || problem.Reason != v1alpha1.EgressInvalidTemplate || !strings.HasPrefix(problem.Message, want) {
			t.Errorf("%s: problem = %v, want message with prefix %q", spec, problem, want)
		}
		if all[Deployment] != nil || all[Service] == nil {
			t.Errorf("%s: objects = %v, want a Service and no Deployment", spec, all)
		}
	}
}

// A template that is too large is dropped from memory and reported as such.
func TestTrim(t *testing.T) {
	large := strings.Repeat("x", maxTemplate)
	for name, tt := range map[string]struct {
		spec        string
		annotations map[string]string
		refused     bool
	}{
		"small":             {`{"hostname":"a"}`, map[string]string{"a": "b"}, false},
		"large spec":        {`{"hostname":"` + large + `"}`, nil, true},
		"large annotations": {`{}`, map[string]string{"a": large}, true},
	} {
		e := newEgress(template(tt.spec))
		e.Spec.Template.Metadata.Annotations = tt.annotations
		Trim(e)
		text, err := json.Marshal(e)
		_, problem := Objects(e, settings)
		if err != nil || (problem != nil) != tt.refused || tt.refused && (strings.Contains(string(text), "xxx") || !strings.Contains(problem.Message, "longer than 32 KiB")) {
			t.Errorf("%s: error %v, problem %v, Egress after Trim() = %.200s", name, err, problem, text)
		}
	}
}

func TestServices(t *testing.T) {
	config := &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))}}
	for name, tt := range map[string]struct {
		change func(*v1alpha1.EgressSpec)
		want   corev1.ServiceAffinity
		config *corev1.SessionAffinityConfig
	}{
		"default": {nil, corev1.ServiceAffinityClientIP, nil},
		"config":  {func(s *v1alpha1.EgressSpec) { s.SessionAffinityConfig = config }, corev1.ServiceAffinityClientIP, config},
		"none": {func(s *v1alpha1.EgressSpec) {
			s.SessionAffinity, s.SessionAffinityConfig = corev1.ServiceAffinityNone, config
		}, corev1.ServiceAffinityNone, nil},
	} {
		all, _ := Objects(newEgress(tt.change), settings)
		s := as[corev1.Service](t, all, Service).Spec
		if s.SessionAffinity != tt.want || cmp.Diff(s.SessionAffinityConfig, tt.config) != "" || *s.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack {
			t.Errorf("%s: session affinity of the Service = %+v", name, s)
		}
		if len(s.Ports) != 1 || s.Ports[0].Port != 5556 || s.Ports[0].TargetPort.IntVal != 5556 || s.Ports[0].Protocol != corev1.ProtocolUDP || s.Selector[v1alpha1.LabelEgress] != "nat" {
			t.Errorf("%s: ports and selector of the Service = %+v", name, s)
		}
	}
}

// A strategy is spelled out, so that parts of it are removed with it.
func TestStrategies(t *testing.T) {
	two, quarter := intstr.FromInt32(2), intstr.FromString("25%")
	rolling := func(surge, unavailable *intstr.IntOrString) appsv1.DeploymentStrategy {
		return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: surge, MaxUnavailable: unavailable}}
	}
	for name, tt := range map[string]struct {
		in   *appsv1.DeploymentStrategy
		want appsv1.DeploymentStrategy
	}{
		"default":  {nil, rolling(&quarter, &quarter)},
		"empty":    {&appsv1.DeploymentStrategy{}, rolling(&quarter, &quarter)},
		"partial":  {&appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &two}}, rolling(&two, &quarter)},
		"recreate": {&appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}, appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}},
	} {
		all, _ := Objects(newEgress(func(s *v1alpha1.EgressSpec) { s.Strategy = tt.in }), settings)
		if d := cmp.Diff(tt.want, as[appsv1.Deployment](t, all, Deployment).Spec.Strategy); d != "" {
			t.Errorf("%s: strategy (-want +got):\n%s", name, d)
		}
	}
}
