package deploy_test

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/test/harness"
)

// vpc returns a VPC for some namespaces.
func vpc(name string, namespaces ...string) *v1alpha1.VPC {
	v := &v1alpha1.VPC{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.VPCSpec{Provider: v1alpha1.ProviderNeutron, Network: "net", Endpoint: "http://127.0.0.1:9696", Project: "project"},
	}
	if len(namespaces) > 0 {
		v.Spec.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: namespaces}
	}
	return v
}

// nicPolicy returns a NICPolicy for all pods of a namespace.
func nicPolicy(namespace string) *v1alpha1.NICPolicy {
	return &v1alpha1.NICPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"},
		Spec:       v1alpha1.NICPolicySpec{PodSelector: &v1alpha1.LabelSelector{}, VPC: "vpc-1"},
	}
}

// podNIC returns a PodNIC as the operator creates it for a pod or, if pod is empty, as a user
// creates it.
func podNIC(name, pod string) *v1alpha1.PodNIC {
	n := &v1alpha1.PodNIC{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1alpha1.PodNICSpec{VPC: "vpc-1"},
	}
	if pod != "" {
		n.Spec.Pod, n.Spec.Interface = &v1alpha1.PodReference{Name: pod, UID: "uid-of-" + pod}, "eth0"
		n.Labels = map[string]string{v1alpha1.LabelPodUID: n.Spec.Pod.UID}
		n.Finalizers = []string{v1alpha1.FinalizerPort}
		n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(n.Spec.Pod.UID)}}
	}
	return n
}

// annotated returns an unscheduled pod in the namespace default, with annotations as alternating
// keys and values.
func annotated(name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

// applyPortPolicies installs only the policies of ports, and waits until each is in effect.
func applyPortPolicies(t *testing.T) {
	t.Helper()
	harness.KubeClean(t)
	installPortPolicies(t)
}

func installPortPolicies(t *testing.T) {
	t.Helper()
	applyPoliciesOf(t, deploy.PortMode)
	admin, daemon, operator := harness.KubeClient(t), account(t, "berthd", ""), account(t, "berth-operator", "")
	probe, nic := vpc("probe", "another"), podNIC("probe", "")
	harness.Eventually(t, limit, "a first VPC", func() error { return admin.Create(t.Context(), probe) })
	harness.Eventually(t, limit, "a first PodNIC", func() error { return admin.Create(t.Context(), nic) })
	untilRefused(t, map[string]func() error{
		"namespaces": func() error {
			return admin.Create(t.Context(), annotated("probe", v1alpha1.AnnotationVPC, "probe"), client.DryRunAll)
		},
		"pods": func() error {
			return admin.Create(t.Context(), annotated("probe", v1alpha1.AnnotationNICs, "[]"), client.DryRunAll)
		},
		"persons'":   func() error { return admin.Create(t.Context(), podNIC("probe-2", "pod"), client.DryRunAll) },
		"operator's": func() error { return operator.Create(t.Context(), podNIC("probe-2", ""), client.DryRunAll) },
		"daemon's":   func() error { return daemon.Delete(t.Context(), nic, client.DryRunAll) },
	})
	harness.OK(t, admin.Delete(t.Context(), probe))
	harness.OK(t, admin.Delete(t.Context(), nic))
}

// bound reports, as the operator, that a NIC is bound to a node.
func bound(t *testing.T, n *v1alpha1.PodNIC, node string) {
	t.Helper()
	harness.OK(t, changeStatus(t, account(t, "berth-operator", ""), n, func(n *v1alpha1.PodNIC) {
		n.Status = v1alpha1.PodNICStatus{
			Phase: v1alpha1.PhaseBound, DefaultRoute: true, Routes: []v1alpha1.PortRoute{{Destination: "10.9.0.0/16", Gateway: "10.0.0.1"}}, Pod: &v1alpha1.PodReference{Name: "a", UID: "1"}, Interface: "eth0", NodeName: node, PortID: "port-1",
			Made: true, Host: node, MAC: "02:00:00:00:00:01", MTU: 1442, Addresses: []v1alpha1.PortAddress{{CIDR: "10.0.0.5/24"}},
			Plug:       &v1alpha1.PortPlug{Type: v1alpha1.PlugOVS, Bridge: "br-int"},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionBound, Status: "True", Reason: "Bound", LastTransitionTime: metav1.Now()}},
		}
	}))
}

func plugged(n *v1alpha1.PodNIC) {
	n.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: "port-1", ContainerID: "c", Since: metav1.Now()}
}

func TestDaemonPlugsItsOwnNICs(t *testing.T) {
	applyPortPolicies(t)
	admin, daemon := harness.KubeClient(t), account(t, "berthd", "node-1")
	own, other, nobodys := podNIC("own", ""), podNIC("other", ""), podNIC("nobodys", "")
	for _, n := range []*v1alpha1.PodNIC{own, other, nobodys} {
		harness.OK(t, admin.Create(t.Context(), n))
	}
	bound(t, own, "node-1")
	bound(t, other, "node-2")

	t.Run("its own", func(t *testing.T) {
		harness.OK(t, changeStatus(t, daemon, own, plugged))
		harness.OK(t, changeStatus(t, daemon, own, func(n *v1alpha1.PodNIC) { n.Status.Node.State = v1alpha1.NodeUnplugged }))
	})
	t.Run("not another's", func(t *testing.T) {
		forbidden(t, changeStatus(t, daemon, other, plugged), "berthd of node node-1 may write the status of that node's PodNICs only, and status.nodeName is node-2")
		forbidden(t, changeStatus(t, daemon, nobodys, plugged), "and status.nodeName is not set")
	})
	t.Run("not by naming itself", func(t *testing.T) {
		forbidden(t, changeStatus(t, daemon, other, func(n *v1alpha1.PodNIC) { n.Status.NodeName = "node-1"; plugged(n) }), "status.nodeName is node-2")
	})
	t.Run("not without a node", func(t *testing.T) {
		forbidden(t, changeStatus(t, account(t, "berthd", ""), own, plugged), "this token names no node")
	})
	t.Run("nothing else of the status", func(t *testing.T) {
		for i, f := range reflect.VisibleFields(reflect.TypeFor[v1alpha1.PodNICStatus]()) {
			if f.Name == "Node" {
				continue
			}
			err := changeStatus(t, daemon, own, func(n *v1alpha1.PodNIC) {
				value := reflect.ValueOf(&n.Status).Elem().Field(i)
				if value.IsZero() {
					t.Errorf("%s is not set", f.Name)
				}
				value.SetZero()
			})
			forbidden(t, err, "berthd may write status.node only")
		}
	})
	t.Run("no PodNIC or VPC", func(t *testing.T) {
		const why = "berthd may write the status of PodNICs only"
		forbidden(t, daemon.Create(t.Context(), podNIC("new", "")), why)
		forbidden(t, daemon.Create(t.Context(), podNIC("new", "a")), why)
		forbidden(t, change(t, daemon, own, func(n *v1alpha1.PodNIC) { n.Spec.SecurityGroups = []string{"open"} }), why)
		forbidden(t, daemon.Delete(t.Context(), own), why)
		forbidden(t, daemon.DeleteAllOf(t.Context(), &v1alpha1.PodNIC{}, client.InNamespace("default")), why)
		forbidden(t, daemon.Create(t.Context(), vpc("mine", "*")), why)
	})
}

// Fields that only Berth's programs may write.
func TestOnlyOperatorWritesNICStatus(t *testing.T) {
	applyPortPolicies(t)
	admin, operator, other := harness.KubeClient(t), account(t, "berth-operator", ""), account(t, "another", "node-1")
	users, made := podNIC("users", ""), podNIC("made", "a")
	for _, as := range []client.Client{admin, other} {
		forbidden(t, as.Create(t.Context(), made.DeepCopy()), "spec.pod: is set by berth-operator only; leave it out, and name the PodNIC in the annotation berth.dev/nics")
		labelled := podNIC("labelled", "")
		labelled.Labels = map[string]string{v1alpha1.LabelPodUID: "1"}
		forbidden(t, as.Create(t.Context(), labelled), "metadata.labels[berth.dev/pod-uid]: is set by berth-operator only")
	}
	harness.OK(t, operator.Create(t.Context(), made))
	harness.OK(t, other.Create(t.Context(), users))
	bound(t, users, "node-1")
	for _, as := range []client.Client{admin, other} {
		for _, how := range []func(*v1alpha1.PodNIC){
			func(n *v1alpha1.PodNIC) { n.Status.NodeName = "node-2" },
			func(n *v1alpha1.PodNIC) { n.Status.PortID = "of-another" },
			plugged,
		} {
			forbidden(t, changeStatus(t, as, users, how), "the status of a PodNIC is written by berth-operator, and status.node by berthd of its node, not by ")
		}
		forbidden(t, change(t, as, made, func(n *v1alpha1.PodNIC) { n.Labels[v1alpha1.LabelPodUID] = "2" }), "metadata.labels[berth.dev/pod-uid]")
		forbidden(t, change(t, as, made, func(n *v1alpha1.PodNIC) { n.Labels = nil }), "metadata.labels[berth.dev/pod-uid]")
	}
	harness.OK(t, change(t, other, users, func(n *v1alpha1.PodNIC) {
		n.Spec.SecurityGroups, n.Labels = []string{"web"}, map[string]string{"app": "db"}
	}))
	harness.OK(t, other.Delete(t.Context(), made))
	harness.OK(t, change(t, admin, made, func(n *v1alpha1.PodNIC) { n.Finalizers = nil }))
}

func TestOperatorMakesNICsOfPods(t *testing.T) {
	applyPortPolicies(t)
	admin, operator := harness.KubeClient(t), account(t, "berth-operator", "node-1")
	theirs, users, made := vpc("vpc-1", "default"), podNIC("users", ""), podNIC("made", "a")
	theirs.Labels, theirs.Finalizers = map[string]string{"a": "b"}, []string{"example.com/mine"}
	users.Finalizers = []string{"example.com/mine"}
	harness.OK(t, admin.Create(t.Context(), theirs))
	harness.OK(t, admin.Create(t.Context(), users))
	harness.OK(t, operator.Create(t.Context(), made))
	t.Cleanup(func() {
		for _, o := range []client.Object{theirs, users, made} {
			harness.OK(t, patchAs(admin, o, `{"metadata":{"finalizers":null}}`))
		}
	})

	t.Run("status and finalizers", func(t *testing.T) {
		bound(t, users, "node-1")
		harness.OK(t, changeStatus(t, operator, theirs, func(v *v1alpha1.VPC) { v.Status.NetworkID = "id" }))
		harness.OK(t, change(t, operator, theirs, func(v *v1alpha1.VPC) { v.Finalizers = append(v.Finalizers, v1alpha1.FinalizerVPC) }))
		harness.OK(t, change(t, operator, users, func(n *v1alpha1.PodNIC) { n.Finalizers = append(n.Finalizers, v1alpha1.FinalizerPort) }))
		harness.OK(t, change(t, operator, users, func(n *v1alpha1.PodNIC) { n.Finalizers = []string{"example.com/mine"} }))
	})
	t.Run("only for a pod", func(t *testing.T) {
		for what, how := range map[string]func(*v1alpha1.PodNIC){
			"no pod":           func(n *v1alpha1.PodNIC) { n.Spec.Pod = nil },
			"another's owner":  func(n *v1alpha1.PodNIC) { n.OwnerReferences[0].UID = "another" },
			"a node's":         func(n *v1alpha1.PodNIC) { n.OwnerReferences[0].Kind = "Node" },
			"a finalizer":      func(n *v1alpha1.PodNIC) { n.Finalizers = []string{"a/b"} },
			"a label":          func(n *v1alpha1.PodNIC) { n.Labels["app"] = "db" },
			"an annotation":    func(n *v1alpha1.PodNIC) { n.Annotations = map[string]string{"a": "b"} },
			"two kinds of own": func(n *v1alpha1.PodNIC) { n.OwnerReferences = append(n.OwnerReferences, owner("Node", "node-1")) },
		} {
			n := podNIC("new", "b")
			how(n)
			if err := operator.Create(t.Context(), n); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "berth-operator may create a PodNIC for a pod only") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	t.Run("no change of what is asked for", func(t *testing.T) {
		groups := func(n *v1alpha1.PodNIC) { n.Spec.SecurityGroups = []string{"open"} }
		forbidden(t, change(t, operator, users, groups), "may not change the spec of an existing PodNIC")
		forbidden(t, change(t, operator, made, groups), "may not change the spec of an existing PodNIC")
		const why = "may write the status and finalizers of a VPC only"
		forbidden(t, change(t, operator, theirs, func(v *v1alpha1.VPC) { v.Spec.AllowedNamespaces.Names = []string{"*"} }), why)
		forbidden(t, operator.Create(t.Context(), vpc("mine", "*")), why)
		forbidden(t, operator.Delete(t.Context(), theirs), why)
	})
	t.Run("nothing of others' in metadata", func(t *testing.T) {
		const why = "may not change finalizers of others, owner references, labels or annotations"
		for _, o := range []client.Object{theirs, users, made} {
			for _, body := range []string{
				`{"metadata":{"finalizers":["a/b"]}}`, `{"metadata":{"labels":{"a":"c"}}}`, `{"metadata":{"annotations":{"a":"c"}}}`,
				`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"gone","uid":"gone"}]}}`,
			} {
				forbidden(t, patch(t, operator, o, body), why)
			}
		}
	})
	t.Run("not what a node says", func(t *testing.T) {
		const why = "may clear status.node of a PodNIC, but only the daemon may write it"
		forbidden(t, changeStatus(t, operator, users, plugged), why)
		harness.OK(t, changeStatus(t, account(t, "berthd", "node-1"), users, plugged))
		forbidden(t, changeStatus(t, operator, users, func(n *v1alpha1.PodNIC) { n.Status.Node.State = v1alpha1.NodeUnplugged }), why)
		harness.OK(t, changeStatus(t, operator, users, func(n *v1alpha1.PodNIC) { n.Status.Phase = v1alpha1.PhaseActive }))
		harness.OK(t, changeStatus(t, operator, users, func(n *v1alpha1.PodNIC) { n.Status.NodeName, n.Status.Node = "node-2", nil }))
	})
	t.Run("takes its own away, and no user's", func(t *testing.T) {
		forbidden(t, operator.Delete(t.Context(), users), "may delete only PodNICs that it created for a pod")
		harness.OK(t, operator.Delete(t.Context(), made))
	})
}

// A pod may have NICs in a VPC for its namespace, with either annotation.
func TestVPCsAreForTheirNamespaces(t *testing.T) {
	applyPortPolicies(t)
	c := harness.KubeClient(t)
	all, some, none, selected := vpc("all", "*"), vpc("some", "elsewhere", "default"), vpc("none"), vpc("selected", "elsewhere")
	selected.Spec.AllowedNamespaces.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	others := vpc("others", "elsewhere")
	for _, v := range []*v1alpha1.VPC{all, some, none, selected, others} {
		harness.OK(t, c.Create(t.Context(), v))
	}
	seenVPC(t, others)
	for name, allowed := range map[string]bool{"all": true, "some": true, "none": false, "selected": true, "others": false, "unknown": true} {
		want := ": VPC " + name + " is not for namespace default (spec.allowedNamespaces of the VPC)"
		nic := podNIC("of-"+name, "")
		nic.Spec.VPC = name
		for field, err := range map[string]error{
			"metadata.annotations[berth.dev/vpc]": c.Create(t.Context(), annotated("a", v1alpha1.AnnotationVPC, name), client.DryRunAll),
			"spec.vpc":                            c.Create(t.Context(), nic, client.DryRunAll),
		} {
			if allowed {
				harness.OK(t, err)
			} else {
				forbidden(t, err, field+want)
			}
		}
	}
	t.Run("that its namespace names", func(t *testing.T) {
		inNamespace(t, "others", func(namespace string) {
			in := func(p *corev1.Pod) *corev1.Pod { p.Namespace = namespace; return p }
			const want = "metadata.annotations[berth.dev/vpc]: VPC others is not for namespace "
			forbidden(t, c.Create(t.Context(), in(annotated("a")), client.DryRunAll), want+namespace)
			forbidden(t, c.Create(t.Context(), in(annotated("a", v1alpha1.AnnotationNICs, "[]")), client.DryRunAll), want+namespace)
			harness.OK(t, c.Create(t.Context(), in(annotated("a", v1alpha1.AnnotationVPC, "all")), client.DryRunAll))
			harness.OK(t, c.Create(t.Context(), in(annotated("a", v1alpha1.AnnotationVPC, "")), client.DryRunAll))
			hosts := in(annotated("a"))
			hosts.Spec.HostNetwork = true
			harness.OK(t, c.Create(t.Context(), hosts, client.DryRunAll))
		})
	})
}

// seenVPC waits until policies apply a VPC that is not for the namespace default.
func seenVPC(t *testing.T, v *v1alpha1.VPC) {
	t.Helper()
	harness.Eventually(t, limit, "policies go by VPC "+v.Name, func() error {
		return byPolicy(harness.KubeClient(t).Create(t.Context(), annotated("probe", v1alpha1.AnnotationVPC, v.Name), client.DryRunAll))
	})
}

// inNamespace runs do in a namespace whose pods use the VPC by default, once pods can be created
// there.
func inNamespace(t *testing.T, vpc string, do func(namespace string)) {
	t.Helper()
	c := harness.KubeClient(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "in-vpc-", Annotations: map[string]string{v1alpha1.AnnotationVPC: vpc}}}
	harness.OK(t, c.Create(t.Context(), ns))
	harness.Eventually(t, limit, "pods can be made", func() error {
		p := annotated("probe", v1alpha1.AnnotationVPC, "")
		p.Namespace = ns.Name
		return c.Create(t.Context(), p, client.DryRunAll)
	})
	do(ns.Name)
	harness.OK(t, c.Delete(t.Context(), ns))
}

// The messages of the policy are those of internal/nicrequest, which the webhook, the controller
// and the daemon use.
func TestPodsThatCannotHaveNICs(t *testing.T) {
	applyPortPolicies(t)
	c := harness.KubeClient(t)
	hosts := annotated("hosts", v1alpha1.AnnotationVPC, "vpc-1")
	hosts.Spec.HostNetwork = true
	hostsNICs := annotated("hosts", v1alpha1.AnnotationNICs, "[]")
	hostsNICs.Spec.HostNetwork = true
	quiet := annotated("quiet", v1alpha1.AnnotationVPC, "")
	quiet.Spec.HostNetwork = true
	long := strings.Repeat("#", nicrequest.MaxLength)
	for what, pod := range map[string]*corev1.Pod{
		"NICs without a VPC":       annotated("a", v1alpha1.AnnotationNICs, "[]"),
		"NICs with an empty VPC":   annotated("a", v1alpha1.AnnotationNICs, "[]", v1alpha1.AnnotationVPC, ""),
		"the node's network":       hosts,
		"the node's network, NICs": hostsNICs,
		"no name of a VPC":         annotated("a", v1alpha1.AnnotationVPC, "VPC 1"),
		"a name that is too long":  annotated("a", v1alpha1.AnnotationVPC, strings.Repeat("a", 64)),
		"a long list":              annotated("a", v1alpha1.AnnotationVPC, "vpc-1", v1alpha1.AnnotationNICs, long+"#"),
		"a list of many bytes":     annotated("a", v1alpha1.AnnotationVPC, "vpc-1", v1alpha1.AnnotationNICs, "#"+strings.Repeat("ü", nicrequest.MaxLength/2)),
		"a VPC":                    annotated("a", v1alpha1.AnnotationVPC, "vpc-1"),
		"a VPC and NICs":           annotated("a", v1alpha1.AnnotationVPC, "vpc-1", v1alpha1.AnnotationNICs, "[{subnet: a}]"),
		"the longest list":         annotated("a", v1alpha1.AnnotationVPC, strings.Repeat("a", 63), v1alpha1.AnnotationNICs, long),
		"no VPC, in so many words": annotated("a", v1alpha1.AnnotationVPC, ""),
		"the node's, without NICs": quiet,
		"other annotations":        annotated("a", "example.com/nics", "[]"),
	} {
		said := nicrequest.Pod{Annotations: pod.Annotations, HostNetwork: pod.Spec.HostNetwork}
		_, want := said.VPC()
		if want == nil && pod.Annotations[v1alpha1.AnnotationVPC] != "" {
			_, want = nicrequest.Parse(pod.Annotations[v1alpha1.AnnotationNICs])
		}
		err := c.Create(t.Context(), pod, client.DryRunAll)
		if want == nil {
			harness.OK(t, err)
			continue
		}
		// The policy does not repeat an invalid name.
		detail := want[0].Detail
		if i := strings.Index(detail, "expected the name"); i >= 0 {
			detail = detail[i:]
		}
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want[0].Field+": "+detail) {
			t.Errorf("%s: got %v\nwant %v", what, err, want[0])
		}
	}
	t.Run("with a namespace's VPC", func(t *testing.T) {
		inNamespace(t, "vpc-1", func(namespace string) {
			p := annotated("a", v1alpha1.AnnotationNICs, "[]")
			p.Namespace = namespace
			harness.OK(t, c.Create(t.Context(), p, client.DryRunAll))
			p.Annotations[v1alpha1.AnnotationVPC] = ""
			if err := c.Create(t.Context(), p, client.DryRunAll); !apierrors.IsInvalid(err) {
				t.Errorf("a list of NICs, and no VPC in so many words: %v", err)
			}
		})
	})
}

func TestVPCOfAPodStays(t *testing.T) {
	applyPortPolicies(t)
	c := harness.KubeClient(t)
	p, without := annotated("a", v1alpha1.AnnotationVPC, "vpc-1"), annotated("without")
	harness.OK(t, c.Create(t.Context(), p))
	harness.OK(t, c.Create(t.Context(), without))
	harness.OK(t, change(t, c, p, func(p *corev1.Pod) { p.Annotations["a"] = "b" }))
	harness.OK(t, change(t, c, p, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNICs] = "[{}, {subnet: a}]" }))
	for what, how := range map[string]func(*corev1.Pod){
		"another": func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationVPC] = "vpc-2" },
		"none": func(p *corev1.Pod) {
			delete(p.Annotations, v1alpha1.AnnotationVPC)
			delete(p.Annotations, v1alpha1.AnnotationNICs)
		},
	} {
		err := change(t, c, p, how)
		want := nicrequest.CheckVPCChange("vpc-1", p.Annotations[v1alpha1.AnnotationVPC]).Err().Error()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v\nwant %s", what, err, want)
		}
	}
	if err := change(t, c, without, func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationVPC: "vpc-1"} }); !apierrors.IsInvalid(err) {
		t.Errorf("a first VPC of a running pod: %v", err)
	}
}
