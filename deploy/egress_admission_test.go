package deploy_test

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/test/harness"
)

// egress returns an Egress in the namespace default as a user creates it.
func egress(name string) *v1alpha1.Egress {
	return &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.EgressSpec{Destinations: []string{"0.0.0.0/0"}}}
}

// withTemplate returns an Egress whose template has a partial PodSpec.
func withTemplate(name, spec string) *v1alpha1.Egress {
	e := egress(name)
	e.Spec.Template = &v1alpha1.EgressPodTemplate{Spec: &runtime.RawExtension{Raw: []byte(spec)}}
	return e
}

// selecting returns an Egress that selects pods by their namespaces.
func selecting(name string, namespaces *v1alpha1.LabelSelector) *v1alpha1.Egress {
	e := egress(name)
	e.Spec.Clients = &v1alpha1.EgressClientSelector{NamespaceSelector: namespaces}
	return e
}

// egressClient returns an EgressClient as the operator creates it for a pod on node-1 in the
// namespace default.
func egressClient(pod string) *v1alpha1.EgressClient {
	return &v1alpha1.EgressClient{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: pod,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("uid-of-" + pod)}},
		},
		Spec: v1alpha1.EgressClientSpec{PodUID: "uid-of-" + pod, NodeName: "node-1", Egresses: []v1alpha1.EgressReference{{Namespace: "default", Name: "nat", UID: "1"}}},
	}
}

// egressSlice returns an EgressClientSlice as the operator creates it for an Egress in the
// namespace default.
func egressSlice(name, of string) *v1alpha1.EgressClientSlice {
	return &v1alpha1.EgressClientSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{v1alpha1.LabelEgress: of},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "berth.dev/v1alpha1", Kind: "Egress", Name: of, UID: "1"}},
		},
		Clients: []v1alpha1.ServedClient{{UID: "1", Addresses: []string{"10.0.0.1"}}},
	}
}

// egressRelease is a release with Egresses.
var egressRelease = deploy.Release{Values: map[string]any{"mode": deploy.NodeMode, "clusterName": "test", "egress": map[string]any{"enabled": true}}}

// applyEgressPolicies installs only the policies of Egresses, and waits until each is in effect.
func applyEgressPolicies(t *testing.T) {
	t.Helper()
	harness.KubeClean(t)
	applyPoliciesOfRelease(t, egressRelease)
	daemon, operator, other := account(t, "berthd", ""), account(t, "berth-operator", ""), account(t, "another", "")
	untilRefused(t, map[string]func() error{
		"daemon's":   func() error { return daemon.Create(t.Context(), egressClient("probe"), client.DryRunAll) },
		"operator's": func() error { return operator.Create(t.Context(), egress("probe"), client.DryRunAll) },
		"others'":    func() error { return other.Create(t.Context(), egressClient("probe"), client.DryRunAll) },
		"accounts": func() error {
			return operator.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"}}, client.DryRunAll)
		},
		"pods of others": func() error {
			return operator.Create(t.Context(), workloads("default", "probe", map[string]string{"app": "web"})["Deployment"], client.DryRunAll)
		},
		"templates": func() error {
			return other.Create(t.Context(), withTemplate("probe", `{"hostPID":true}`), client.DryRunAll)
		},
		"selectors": func() error {
			return other.Create(t.Context(), selecting("probe", &v1alpha1.LabelSelector{}), client.DryRunAll)
		},
		"impostors": func() error {
			return other.Create(t.Context(), plainPod("default", "probe", map[string]string{v1alpha1.LabelEgress: "a"}), client.DryRunAll)
		},
		"Services": func() error {
			return other.Create(t.Context(), ownedBy("berth.dev/v1alpha1", "Egress", &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53}}},
			}), client.DryRunAll)
		},
	})
}

func setUp(o *v1alpha1.EgressClient) {
	o.Status.Node = &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: "c", Addresses: []string{"10.0.0.1"}, Egresses: o.Spec.Egresses}
}

func conditioned(o *v1alpha1.EgressClient) {
	o.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "SetUp", LastTransitionTime: metav1.Now()}}
}

func TestDaemonSetsUpItsOwnEgressClients(t *testing.T) {
	applyEgressPolicies(t)
	operator, daemon, other := account(t, "berth-operator", ""), account(t, "berthd", "node-1"), account(t, "berthd", "node-2")
	o, slice, user := egressClient("web"), egressSlice("nat-1", "nat"), egress("nat")
	harness.OK(t, operator.Create(t.Context(), o))
	harness.OK(t, operator.Create(t.Context(), slice))
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), user))

	t.Run("may write the status of its own clients", func(t *testing.T) {
		harness.OK(t, changeStatus(t, daemon, o, setUp))
		harness.OK(t, changeStatus(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Status.Node.State = v1alpha1.EgressClientGone }))
		harness.OK(t, changeStatus(t, operator, o, conditioned))
		harness.OK(t, changeStatus(t, daemon, o, setUp))
	})
	t.Run("may not write clients of other nodes", func(t *testing.T) {
		forbidden(t, changeStatus(t, other, o, setUpElsewhere), "berthd of node node-2 may write the status of that node's EgressClients only, and spec.nodeName is node-1")
		forbidden(t, changeStatus(t, account(t, "berthd", ""), o, setUpElsewhere), "this token names no node")
	})
	t.Run("may not write other parts of the status", func(t *testing.T) {
		forbidden(t, changeStatus(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Status.Conditions[0].Status = "False" }), "berthd may write status.node only")
		forbidden(t, changeStatus(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Status.Conditions = nil }), "berthd may write status.node only")
	})
	t.Run("may not create, change or delete objects", func(t *testing.T) {
		const why = "berthd may write the status of EgressClients only"
		forbidden(t, daemon.Create(t.Context(), egressClient("mine")), why)
		forbidden(t, daemon.Create(t.Context(), egressSlice("mine", "nat")), why)
		forbidden(t, daemon.Create(t.Context(), egress("mine")), why)
		forbidden(t, change(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Spec.Egresses = nil }), why)
		forbidden(t, change(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Labels = map[string]string{"a": "b"} }), why)
		forbidden(t, change(t, daemon, slice, func(s *v1alpha1.EgressClientSlice) { s.Clients[0].Addresses = []string{"10.0.0.2"} }), why)
		forbidden(t, change(t, daemon, user, func(e *v1alpha1.Egress) { e.Spec.Destinations = []string{"::/0"} }), why)
		forbidden(t, changeStatus(t, daemon, user, func(e *v1alpha1.Egress) { e.Status.Gateways = nil; e.Status.Clients = 3 }), why)
		for _, object := range []client.Object{o, slice, user} {
			forbidden(t, daemon.Delete(t.Context(), object), why)
		}
	})
}

func setUpElsewhere(o *v1alpha1.EgressClient) {
	setUp(o)
	o.Status.Node.Addresses = []string{"10.0.0.9"}
}

// Only Berth's programs may define the clients of an Egress and its gateways: not an administrator, a user with all
// other rights, or a gateway.
func TestOnlyOperatorWritesEgressClients(t *testing.T) {
	applyEgressPolicies(t)
	operator := account(t, "berth-operator", "")
	o, slice, user := egressClient("web"), egressSlice("nat-1", "nat"), egress("nat")
	harness.OK(t, operator.Create(t.Context(), o))
	harness.OK(t, operator.Create(t.Context(), slice))
	harness.OK(t, account(t, "another", "node-1").Create(t.Context(), user))
	for _, as := range []client.Client{harness.KubeClient(t), account(t, "another", "node-1")} {
		const made, written = "EgressClients and EgressClientSlices may be created by berth-operator only, not by ", "EgressClients and EgressClientSlices are written by berth-operator"
		forbidden(t, as.Create(t.Context(), egressClient("mine")), made)
		forbidden(t, as.Create(t.Context(), egressSlice("mine", "nat")), made)
		forbidden(t, change(t, as, o, func(o *v1alpha1.EgressClient) { o.Spec.Egresses = nil }), written)
		forbidden(t, change(t, as, o, func(o *v1alpha1.EgressClient) { o.Labels = map[string]string{"a": "b"} }), written)
		forbidden(t, changeStatus(t, as, o, setUp), written)
		forbidden(t, changeStatus(t, as, o, conditioned), written)
		forbidden(t, change(t, as, slice, func(s *v1alpha1.EgressClientSlice) { s.Clients = nil }), written)
		forbidden(t, change(t, as, slice, func(s *v1alpha1.EgressClientSlice) { s.Labels[v1alpha1.LabelEgress] = "mine" }), written)
		forbidden(t, changeStatus(t, as, user, func(e *v1alpha1.Egress) {
			e.Status.Gateways = []v1alpha1.EgressGateway{{Name: "mine", UID: "1", Addresses: []string{"10.0.0.1"}}}
		}), "the status of an Egress is written by berth-operator")
		harness.OK(t, change(t, as, user, func(e *v1alpha1.Egress) { e.Spec.Destinations = []string{"::/0"} }))
		harness.OK(t, change(t, as, o, func(o *v1alpha1.EgressClient) { o.OwnerReferences = nil })) // as the garbage collector does
		harness.OK(t, as.Delete(t.Context(), o))
		o = egressClient("web")
		harness.OK(t, operator.Create(t.Context(), o))
	}
}

func TestOperatorWritesEgressClients(t *testing.T) {
	applyEgressPolicies(t)
	operator := account(t, "berth-operator", "node-1")
	o, slice, user := egressClient("web"), egressSlice("nat-1", "nat"), egress("nat")
	harness.OK(t, operator.Create(t.Context(), o))
	harness.OK(t, operator.Create(t.Context(), slice))
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), user))

	t.Run("may write its own fields", func(t *testing.T) {
		harness.OK(t, change(t, operator, o, func(o *v1alpha1.EgressClient) { o.Spec.Egresses = nil }))
		harness.OK(t, changeStatus(t, operator, o, conditioned))
		harness.OK(t, change(t, operator, slice, func(s *v1alpha1.EgressClientSlice) { s.Clients = nil }))
		harness.OK(t, changeStatus(t, operator, user, func(e *v1alpha1.Egress) { e.Status.Clients = 3 }))
	})
	t.Run("may not write a node's report", func(t *testing.T) {
		const why = "berth-operator may not write status.node of an EgressClient"
		forbidden(t, changeStatus(t, operator, o, setUp), why)
		harness.OK(t, changeStatus(t, account(t, "berthd", "node-1"), o, setUp))
		forbidden(t, changeStatus(t, operator, o, func(o *v1alpha1.EgressClient) { o.Status.Node = nil }), why)
		harness.OK(t, changeStatus(t, operator, o, func(o *v1alpha1.EgressClient) { o.Status.Conditions[0].Reason = "Other" }))
	})
	t.Run("may not write users' fields", func(t *testing.T) {
		const why = "berth-operator may write the status of an Egress only"
		forbidden(t, operator.Create(t.Context(), egress("mine")), why)
		forbidden(t, change(t, operator, user, func(e *v1alpha1.Egress) { e.Spec.Destinations = []string{"::/0"} }), why)
		forbidden(t, change(t, operator, user, func(e *v1alpha1.Egress) { e.Labels = map[string]string{"a": "b"} }), why)
		forbidden(t, operator.Delete(t.Context(), user), why)
	})
	t.Run("may create objects for pods and Egresses only", func(t *testing.T) {
		for what, made := range map[string]client.Object{
			"without owner":           edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.OwnerReferences = nil }),
			"name of another pod":     edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.OwnerReferences[0].Name = "a" }),
			"owned by a node":         edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.OwnerReferences[0].Kind = "Node" }),
			"a finalizer":             edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.Finalizers = []string{"a/b"} }),
			"a label":                 edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.Labels = map[string]string{"a": "b"} }),
			"an annotation":           edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.Annotations = map[string]string{"a": "b"} }),
			"slice without owner":     edited(egressSlice("b", "nat"), func(s *v1alpha1.EgressClientSlice) { s.OwnerReferences = nil }),
			"slice of another Egress": edited(egressSlice("b", "nat"), func(s *v1alpha1.EgressClientSlice) { s.Labels[v1alpha1.LabelEgress] = "other" }),
			"slice owned by a pod":    edited(egressSlice("b", "nat"), func(s *v1alpha1.EgressClientSlice) { s.OwnerReferences[0].Kind = "Pod" }),
		} {
			if err := operator.Create(t.Context(), made); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "berth-operator may create an EgressClient only for the pod of the same name") {
				t.Errorf("Create() %s: error = %v, want it forbidden", what, err)
			}
		}
	})
	t.Run("may not change metadata", func(t *testing.T) {
		for _, object := range []client.Object{o, slice} {
			for _, body := range []string{
				`{"metadata":{"finalizers":["a/b"]}}`, `{"metadata":{"labels":{"a":"c"}}}`, `{"metadata":{"annotations":{"a":"c"}}}`, `{"metadata":{"ownerReferences":null}}`,
			} {
				forbidden(t, patch(t, operator, object, body), "may not change finalizers, owner references, labels or annotations")
			}
		}
	})
	t.Run("may delete objects", func(t *testing.T) {
		harness.OK(t, operator.Delete(t.Context(), o))
		harness.OK(t, operator.Delete(t.Context(), slice))
	})
}

// edited returns an object with a change.
func edited[O client.Object](o O, how func(O)) O {
	how(o)
	return o
}

// gatewaysOf returns the objects of an Egress as the operator applies them, by kind.
func gatewaysOf(t *testing.T, e *v1alpha1.Egress) map[string]*unstructured.Unstructured {
	t.Helper()
	chart, err := deploy.Render(egressRelease)
	harness.OK(t, err)
	settings := loadBy(t, config.NewOperatorLoader, onlyContainer(t, podOf(t, chart, "operator")))
	objects, problem := gatewayplan.Objects(e, gatewayplan.Settings{Image: settings.EgressImage, Port: uint16(settings.EgressPort)})
	if problem != nil {
		t.Fatal(problem)
	}
	out := map[string]*unstructured.Unstructured{}
	for kind, o := range objects {
		out[kind.Kind] = o
	}
	return out
}

// set returns a change that sets one field to a JSON value. Numbers in the path are indexes.
func set(t *testing.T, path, value string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		t.Helper()
		var is any
		harness.OK(t, json.Unmarshal([]byte(value), &is))
		fields := strings.Split(path, ".")
		var at any = o.Object
		for _, f := range fields[:len(fields)-1] {
			switch of := at.(type) {
			case map[string]any:
				if of[f] == nil {
					of[f] = map[string]any{}
				}
				at = of[f]
			case []any:
				i, err := strconv.Atoi(f)
				harness.OK(t, err)
				at = of[i]
			}
		}
		at.(map[string]any)[fields[len(fields)-1]] = is
	}
}

// The operator's token may create the objects of gateways, and no other objects of these kinds.
func TestOperatorCreatesGatewaysOnly(t *testing.T) {
	applyEgressPolicies(t)
	operator := account(t, "berth-operator", "node-1")
	least := intstr.FromInt32(1)
	e := withTemplate("nat", `{"priorityClassName":"a","containers":[{"name":"log","image":"log:1"}],"volumes":[{"name":"tmp","emptyDir":{}}]}`)
	e.Spec.PodDisruptionBudget = &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &least}
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), e))
	made := gatewaysOf(t, e)
	for kind, o := range made {
		t.Cleanup(func() { _ = harness.KubeClient(t).Delete(context.WithoutCancel(t.Context()), o.DeepCopy()) })
		if err := apply(t, operator, o); err != nil {
			t.Errorf("apply %s: %v", kind, err)
		}
	}
	const added = "spec.template.spec."
	e.UID, e.Spec = "uid", egress("other").Spec
	for i, tt := range []struct {
		kind, path, value string
	}{
		{"Role", "rules.0.resources", `["secrets"]`},
		{"Role", "rules.0.verbs", `["get", "list", "watch", "delete"]`},
		{"Role", "rules.0.resourceNames", `[]`},
		{"Role", "rules.0.apiGroups", `["*"]`},
		{"RoleBinding", "subjects", `[{"kind":"ServiceAccount","name":"default","namespace":"default"}]`},
		{"RoleBinding", "subjects", `[{"kind":"Group","name":"system:authenticated","apiGroup":"rbac.authorization.k8s.io"}]`},
		{"RoleBinding", "subjects.0.namespace", `"kube-system"`},
		{"RoleBinding", "roleRef", `{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"other"}`},
		{"ServiceAccount", "automountServiceAccountToken", `true`},
		{"ServiceAccount", "imagePullSecrets", `[{"name":"a"}]`},
		{"ServiceAccount", "metadata.labels", `{}`},
		{"ServiceAccount", "metadata.annotations", `{"eks.amazonaws.com/role-arn":"arn"}`},
		{"ServiceAccount", "metadata.finalizers", `["a/b"]`},
		{"ServiceAccount", "metadata.ownerReferences", `[]`},
		{"ServiceAccount", "metadata.ownerReferences.0.kind", `"Pod"`},
		{"ServiceAccount", "metadata.ownerReferences.0.name", `"another"`},
		{"ServiceAccount", "metadata.ownerReferences.0.controller", `false`},
		{"Service", "spec.selector", `{"app":"web"}`},
		{"Service", "spec.type", `"LoadBalancer"`},
		{"Service", "spec.externalIPs", `["192.0.2.1"]`},
		{"Service", "spec.ports.0.protocol", `"TCP"`},
		{"Service", "spec.ports.0.port", `53`},
		{"Deployment", added + "serviceAccountName", `"default"`},
		{"Deployment", added + "automountServiceAccountToken", `true`},
		{"Deployment", added + "hostNetwork", `true`},
		{"Deployment", added + "hostPID", `true`},
		{"Deployment", added + "hostIPC", `true`},
		{"Deployment", added + "shareProcessNamespace", `true`},
		{"Deployment", added + "nodeName", `"node-1"`},
		{"Deployment", added + "volumes", `[{"name":"berth-egress-token","emptyDir":{}},{"name":"a","hostPath":{"path":"/"}}]`},
		{"Deployment", added + "volumes", `[{"name":"berth-egress-token","emptyDir":{}},{"name":"a","secret":{"secretName":"a"}}]`},
		{"Deployment", added + "volumes", `[{"name":"berth-egress-token","emptyDir":{}},{"name":"a","projected":{"sources":[{"serviceAccountToken":{"path":"a"}}]}}]`},
		{"Deployment", added + "containers.0.image", `"other:1"`},
		{"Deployment", added + "containers.0.command", `["sh"]`},
		{"Deployment", added + "containers.0.args", `["a"]`},
		{"Deployment", added + "containers.0.lifecycle", `{"postStart":{"exec":{"command":["a"]}}}`},
		{"Deployment", added + "containers.0.startupProbe", `{"exec":{"command":["a"]}}`},
		{"Deployment", added + "containers.0.volumeMounts", `[{"name":"berth-egress-token","mountPath":"/berth-egress"}]`},
		{"Deployment", added + "containers.0.envFrom", `[{"secretRef":{"name":"a"}}]`},
		{"Deployment", added + "containers.0.env", `[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a","key":"a"}}}]`},
		{"Deployment", added + "containers.0.securityContext.capabilities", `{"add":["NET_ADMIN","SYS_ADMIN"]}`},
		{"Deployment", added + "containers.0.securityContext", `{"privileged":true,"capabilities":{"add":["NET_ADMIN"]}}`},
		{"Deployment", added + "initContainers", `[{"name":"a","image":"a","securityContext":{"privileged":true}}]`},
		{"Deployment", added + "initContainers", `[{"name":"a","image":"a","securityContext":{"capabilities":{"add":["NET_ADMIN"]}}}]`},
		{"Deployment", added + "initContainers", `[{"name":"a","image":"a","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a","key":"a"}}}]}]`},
		{"Deployment", added + "initContainers", `[{"name":"a","image":"a","envFrom":[{"secretRef":{"name":"a"}}]}]`},
		{"Deployment", added + "initContainers", `[{"name":"a","image":"a","volumeMounts":[{"name":"berth-egress-token","mountPath":"/a"}]}]`},
		{"Deployment", "spec.selector.matchLabels", `{"app.kubernetes.io/name":"berth-egress"}`},
	} {
		e.Name = "other-" + strconv.Itoa(i)
		o := gatewaysOf(t, e)[tt.kind]
		set(t, tt.path, tt.value)(o)
		if err := apply(t, operator, o); err == nil || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "berth-operator") {
			t.Errorf("%s with %s %s: error = %v, want it forbidden by a policy", tt.kind, tt.path, tt.value, err)
		}
	}
}

// A template cannot request settings that gateways must not have: the write is rejected with a message that names the
// field.
func TestEgressTemplates(t *testing.T) {
	applyEgressPolicies(t)
	user := account(t, "another", "node-1")
	const path = "spec.template.spec."
	for spec, why := range map[string]string{
		`{"hostNetwork":true}`:            path + "hostNetwork: gateways have a network, processes and IPC of their own",
		`{"hostPID":true,"hostIPC":true}`: path + "hostPID: gateways have",
		`{"shareProcessNamespace":true}`:  path + "shareProcessNamespace: gateways have",
		`{"nodeName":"node-1"}`:           path + "nodeName: ",
		`{"volumes":[{"name":"tmp","emptyDir":{}},{"name":"a","hostPath":{"path":"/"}}]}`:                                      path + "volumes: a: gateways have volumes of",
		`{"volumes":[{"name":"a","secret":{"secretName":"a"}}]}`:                                                               path + "volumes: a: gateways have volumes of",
		`{"volumes":[{"name":"a","projected":{"sources":[{"configMap":{"name":"a"}},{"serviceAccountToken":{"path":"a"}}]}}]}`: path + "volumes: a: gateways have volumes of",
		`{"containers":[{"name":"log","securityContext":{"privileged":true}}]}`:                                                path + "containers: log is privileged",
		`{"initContainers":[{"name":"log","securityContext":{"capabilities":{"add":["NET_BIND_SERVICE","NET_ADMIN"]}}}]}`:      path + "containers: log is privileged or adds another capability",
		`{"containers":[{"name":"log","envFrom":[{"secretRef":{"name":"a"}}]}]}`:                                               path + "containers: log has variables of a Secret",
		`{"containers":[{"name":"egress","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a","key":"a"}}}]}]}`:          path + "containers: egress has variables of a Secret",
		`{"initContainers":[{"name":"a","volumeMounts":[{"name":"berth-egress-token","mountPath":"/a"}]}]}`:                    path + "containers: a has variables of a Secret or the token",
		`{"containers":[{"name":"egress","lifecycle":{"postStart":{}}}]}`:                                                      path + "containers: the container egress runs the program of Berth alone: leave out lifecycle",
		`{"containers":[{"name":"egress","volumeMounts":[{"name":"a","mountPath":"/berth-egress","subPath":"a"}]}]}`:           path + "containers: the container egress runs the program of Berth alone: leave out volumeMounts",
		`{"containers":[{"name":"egress","env":[{"name":"A","valueFrom":{"configMapKeyRef":{"name":"a","key":"a"}}}]}]}`:       path + "containers: the container egress runs the program of Berth alone: leave out variables",
		`{"volumes":[{"name":"a","ephemeral":{}}]}`:                                                                            path + "volumes: a: gateways have volumes of",
	} {
		if err := user.Create(t.Context(), withTemplate("bad", spec)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("template %s: error = %v\nwant it invalid because %s", spec, err, why)
		}
	}
	// Values of a wrong type are reported in the operator's condition, by path.
	for _, spec := range []string{
		`{}`, `{"hostNetwork":false,"nodeSelector":{"a":"b"},"containers":[{"name":"egress","resources":{"limits":{"cpu":"1"}}},{"name":"log","image":"log:1","env":[{"name":"A","value":"b"}]}]}`,
		`{"hostNetwork":"yes","volumes":"a","containers":{"a":"b"},"initContainers":["a",1]}`,
		`{"volumes":[1,{"projected":1},{"projected":{"sources":1}}],"containers":[{"name":1,"securityContext":1,"envFrom":1,"env":1,"volumeMounts":1},{"securityContext":{"capabilities":1}}]}`,
		`{"containers":[{"securityContext":{"capabilities":{"add":1}},"envFrom":[1],"env":[1,{"valueFrom":1}],"volumeMounts":[1]}]}`,
		`{"volumes":[{"name":"a","emptyDir":{},"hostPath":null,"projected":[]}],"containers":[{"name":"egress","envFrom":[],"lifecycle":null,"startupProbe":{},"env":[{"name":"A","valueFrom":{"fieldRef":{}}}]}]}`,
		`{"containers":[{"name":"a","securityContext":[],"env":{},"envFrom":null},{"name":"b","securityContext":{"capabilities":["NET_ADMIN"]},"env":[{"valueFrom":[]}]},{"name":"c","securityContext":null}]}`,
	} {
		if err := user.Create(t.Context(), withTemplate("good", spec), client.DryRunAll); err != nil {
			t.Errorf("template %s: %v", spec, err)
		}
	}
	good := egress("good")
	harness.OK(t, user.Create(t.Context(), good))
	if err := patch(t, user, good, `{"spec":{"template":{"spec":{"hostIPC":true}}}}`); !apierrors.IsInvalid(err) {
		t.Errorf("error = %v, want it invalid", err)
	}
	harness.OK(t, patch(t, user, good, `{"spec":{"replicas":3}}`))
}

// The operator cannot take over objects of other owners, and users' additions to an Egress's Deployment do not block
// the operator.
func TestOperatorKeepsObjectsOfOtherOwners(t *testing.T) {
	applyEgressPolicies(t)
	operator, admin := account(t, "berth-operator", "node-1"), harness.KubeClient(t)
	e := egress("nat")
	harness.OK(t, admin.Create(t.Context(), e))
	made := gatewaysOf(t, e)
	account := made["ServiceAccount"].DeepCopy()
	account.SetOwnerReferences(nil)
	harness.OK(t, admin.Create(t.Context(), account))
	t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), account) })
	forbidden(t, apply(t, operator, made["ServiceAccount"]), "berth-operator may not take over objects that no Egress owns")

	d := made["Deployment"]
	harness.OK(t, apply(t, operator, d))
	t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), d.DeepCopy()) })
	harness.OK(t, patch(t, admin, d, `{"metadata":{"annotations":{"a":"b"}}}`))
	mine := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/template/spec/volumes/-","value":{"name":"mine","secret":{"secretName":"mine"}}}]`))
	harness.OK(t, admin.Patch(t.Context(), d.DeepCopy(), mine))
	set(t, "spec.replicas", "3")(d)
	harness.OK(t, apply(t, operator, d))
}

// Only the operator and Kubernetes' controllers may create pods with the label of gateways, or
// objects that create such pods: neither a tenant with the role edit nor an administrator, with any
// kind.
func TestOnlyOperatorCreatesGatewayPods(t *testing.T) {
	applyEgressPolicies(t)
	const namespace = "team-g"
	tenant, admin := user(t, "edit", namespace), harness.KubeClient(t)
	as := func(name string) client.Client {
		t.Helper()
		cfg, err := harness.ControlPlane.ConfigFor(name, "system:masters")
		harness.OK(t, err)
		return harness.KubeClientFor(t, cfg)
	}
	replicaSets, collector := as("system:serviceaccount:kube-system:replicaset-controller"), as("system:serviceaccount:kube-system:generic-garbage-collector")
	gateway := map[string]string{v1alpha1.LabelEgress: "nat", "app": "web"}
	const why = "only the Deployment of an Egress may create pods"
	harness.Eventually(t, limit, "the role is in effect", func() error { return tenant.Create(t.Context(), plainPod(namespace, "web", nil)) })
	harness.OK(t, replicaSets.Create(t.Context(), ownedBy("apps/v1", "ReplicaSet", plainPod(namespace, "gateway", gateway))))
	harness.OK(t, as("system:serviceaccount:kube-system:deployment-controller").Create(t.Context(), ownedBy("apps/v1", "Deployment", workloads(namespace, "gateway", gateway)["ReplicaSet"])))
	for kind, o := range workloads(namespace, "web", map[string]string{"app": "web"}) {
		if err := tenant.Create(t.Context(), o); client.IgnoreAlreadyExists(err) != nil {
			t.Errorf("create %s: %v", kind, err)
		}
	}

	for name, c := range map[string]client.Client{"a tenant": tenant, "an administrator": admin, "another controller": as("system:serviceaccount:kube-system:job-controller")} {
		for _, of := range []string{"nat", ""} {
			for kind, o := range workloads(namespace, "posing", map[string]string{v1alpha1.LabelEgress: of, "app": "web"}) {
				if err := c.Create(t.Context(), o); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
					t.Errorf("%s creates a %s with label %q: error = %v, want it forbidden", name, kind, of, err)
				}
			}
		}
		for kind, o := range workloads(namespace, "web", nil) { // existing objects
			for _, label := range []string{`{"metadata":{"labels":{"egress.berth.dev/name":"nat"}}}`, `{"metadata":{"labels":{"egress.berth.dev/name":""}}}`} {
				change := `{"spec":{"template":` + label + `}}`
				switch kind {
				case "Job":
					continue // a Job's template is immutable
				case "Pod":
					change = label
				case "CronJob":
					change = `{"spec":{"jobTemplate":` + change + `}}`
				}
				if err := patch(t, c, o, change); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
					t.Errorf("%s changes a %s with label %s: error = %v, want it forbidden", name, kind, label, err)
				}
			}
		}
		pod := plainPod(namespace, "gateway", nil)
		forbidden(t, patch(t, c, pod, `{"metadata":{"labels":{"egress.berth.dev/name":"other"}}}`), why)
		forbidden(t, patch(t, c, pod, `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"a","uid":"b","controller":true}]}}`), why)
		harness.OK(t, patch(t, c, pod, `{"metadata":{"annotations":{"a":"b"}}}`))
		harness.OK(t, patch(t, c, workloads(namespace, "gateway", nil)["ReplicaSet"], `{"spec":{"replicas":2}}`))
	}
	// Writes to pods that a kubelet and a scheduler need.
	web := plainPod(namespace, "web", nil)
	forbidden(t, patch(t, admin, web, `{"metadata":{"labels":{"egress.berth.dev/name":"nat"}}}`, "status"), why)
	for _, of := range []string{"nat", ""} {
		forbidden(t, admin.SubResource("binding").Create(t.Context(), web, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelEgress: of}}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"},
		}), why)
	}
	// Controllers of other kinds may use the same account as that of ReplicaSets.
	forbidden(t, as("system:kube-controller-manager").Create(t.Context(), ownedBy("batch/v1", "Job", plainPod(namespace, "posing", gateway))), why)
	harness.OK(t, as("system:kube-controller-manager").Create(t.Context(), ownedBy("apps/v1", "ReplicaSet", plainPod(namespace, "second", gateway))))
	harness.OK(t, patch(t, collector, plainPod(namespace, "gateway", nil), `{"metadata":{"ownerReferences":null}}`))
	forbidden(t, patch(t, collector, web, `{"metadata":{"labels":{"egress.berth.dev/name":"nat"}}}`), why)
	harness.OK(t, patch(t, tenant, plainPod(namespace, "gateway", nil), `{"metadata":{"labels":{"egress.berth.dev/name":null}}}`)) // to debug a gateway that is out of service
}

// A tenant with the role edit cannot change the selector of an Egress's Service or write its
// endpoints.
func TestServicesOfEgressesSelectGateways(t *testing.T) {
	applyEgressPolicies(t)
	const namespace = "team-g"
	tenant, admin, operator := user(t, "edit", namespace), harness.KubeClient(t), account(t, "berth-operator", "node-1")
	e := egress("nat")
	e.Namespace = namespace
	harness.OK(t, admin.Create(t.Context(), e))
	s := gatewaysOf(t, e)["Service"]
	harness.OK(t, apply(t, operator, s))
	harness.Eventually(t, limit, "the role is in effect", func() error { return patch(t, tenant, s, `{"metadata":{"annotations":{"a":"b"}}}`) })

	const why, whose = "spec.selector: the Service of an Egress must select its gateways", "metadata.ownerReferences: only berth-operator may set or remove the Egress that owns a Service"
	forbidden(t, patch(t, tenant, s, `{"spec":{"selector":{"egress.berth.dev/name":null,"app":"web"}}}`), why)
	forbidden(t, patch(t, tenant, s, `{"spec":{"selector":{"app":"web"}}}`), why)
	forbidden(t, patch(t, tenant, s, `{"metadata":{"ownerReferences":null},"spec":{"selector":{"egress.berth.dev/name":null,"app":"web"}}}`), whose)
	mine := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "mine"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 5555, Protocol: corev1.ProtocolUDP}},
	}}
	harness.OK(t, tenant.Create(t.Context(), mine))
	mine.Name, mine.ResourceVersion, mine.Spec.ClusterIP, mine.Spec.ClusterIPs, mine.OwnerReferences = "posing", "", "", nil, s.GetOwnerReferences()
	forbidden(t, tenant.Create(t.Context(), mine), why)
	mine.Spec.Selector = map[string]string{v1alpha1.LabelEgress: mine.Name}
	forbidden(t, tenant.Create(t.Context(), mine), whose)
	denied(t, tenant.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "posing", Labels: map[string]string{discoveryv1.LabelServiceName: "nat"}}, AddressType: discoveryv1.AddressTypeIPv4,
	}), "endpointslices")
	denied(t, tenant.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Endpoints", "metadata": map[string]any{"namespace": namespace, "name": "nat"},
	}}), "endpoints")
}

func plainPod(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

// workloads returns one labelled object of each built-in kind that creates pods, and a pod.
func workloads(namespace, name string, labels map[string]string) map[string]client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: plainPod("", "", nil).Spec}
	forever := *template.DeepCopy()
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	job := batchv1.JobSpec{Template: template}
	return map[string]client.Object{
		"Pod":                   plainPod(namespace, name, labels),
		"ReplicationController": &corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Selector: selector.MatchLabels, Template: &forever}},
		"Deployment":            &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: forever}},
		"ReplicaSet":            &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: forever}},
		"StatefulSet":           &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: forever}},
		"DaemonSet":             &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: forever}},
		"Job":                   &batchv1.Job{ObjectMeta: meta, Spec: job},
		"CronJob":               &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: job}}},
	}
}

// ownedBy sets an object's controller to one of the given kind.
func ownedBy(api, kind string, o client.Object) client.Object {
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: api, Kind: kind, Name: "nat", UID: "uid", Controller: new(true)}})
	return o
}

// Only gateways may have the annotation that enables packet forwarding in a pod's network
// namespace.
func TestOnlyGatewaysForward(t *testing.T) {
	applyEgressPolicies(t)
	admin := harness.KubeClient(t)
	forward := map[string]string{v1alpha1.AnnotationEgressGateway: "true"}
	const why, body = "only gateways of an Egress may have it", `{"metadata":{"annotations":{"berth.dev/egress-gateway":"true"}}}`
	cfg, err := harness.ControlPlane.ConfigFor("system:serviceaccount:kube-system:replicaset-controller", "system:masters")
	harness.OK(t, err)
	gateway, plain := plainPod("default", "forwards", map[string]string{v1alpha1.LabelEgress: "nat"}), plainPod("default", "forwards-not", nil)
	gateway.Annotations = forward
	ownedBy("apps/v1", "ReplicaSet", gateway)
	harness.OK(t, harness.KubeClientFor(t, cfg).Create(t.Context(), gateway))
	harness.OK(t, admin.Create(t.Context(), plain))
	forbidden(t, admin.Create(t.Context(), edited(plainPod("default", "forwards-too", nil), func(p *corev1.Pod) { p.Annotations = forward })), why)
	forbidden(t, patch(t, admin, plain, body), why)
	forbidden(t, patch(t, admin, plain, body, "status"), why)
	ofNone := gateway.DeepCopy()
	ofNone.Name, ofNone.ResourceVersion, ofNone.UID, ofNone.Labels = "forwards-for-none", "", "", map[string]string{v1alpha1.LabelEgress: ""}
	forbidden(t, harness.KubeClientFor(t, cfg).Create(t.Context(), ofNone), why)
	forbidden(t, admin.SubResource("binding").Create(t.Context(), plain, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Annotations: forward}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"},
	}), why)
	harness.OK(t, patch(t, admin, gateway, `{"metadata":{"labels":{"egress.berth.dev/name":null}}}`)) // to debug a gateway that is out of service
	harness.OK(t, patch(t, admin, gateway, `{"metadata":{"annotations":{"a":"b"}}}`))
}
