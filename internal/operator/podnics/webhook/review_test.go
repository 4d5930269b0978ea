package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/test/harness"
)

// has is an API server with some VPCs and nothing else.
type has struct {
	client.Reader
	vpcs []v1alpha1.VPC
}

func (has) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (h has) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1alpha1.VPCList).Items = h.vpcs
	return nil
}

func (away) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("connection refused")
}

// knows are policies as they are known, and as the API server has them.
type knows struct {
	cached, live []nicrequest.Policy
	err          error
}

func (k knows) Of(_ context.Context, _ string, live bool) ([]nicrequest.Policy, error) {
	if live {
		return k.live, k.err
	}
	return k.cached, k.err
}

// A pod of a namespace with policies passes with its policy's NIC, or with none that selects it,
// and never without an answer. What is known trails what the API server has.
func TestChooserGoesByWhatIsTrueNow(t *testing.T) {
	scheme := runtime.NewScheme()
	harness.OK(t, clientgoscheme.AddToScheme(scheme))
	everybody := &v1alpha1.VPCNamespaces{Names: []string{"*"}}
	there := has{vpcs: []v1alpha1.VPC{{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1alpha1.VPCSpec{Provider: v1alpha1.ProviderNeutron, AllowedNamespaces: everybody}}}}
	all := []nicrequest.Policy{{Kind: nicrequest.KindNICPolicy, Name: "p", Pods: labels.Everything(), VPC: "v"}}
	byAccount := []nicrequest.Policy{{Kind: nicrequest.KindNICPolicy, Name: "p", Accounts: labels.Everything(), VPC: "v"}}
	for _, tt := range []struct {
		name         string
		policies     knows
		cached, live client.Reader
		allowed      bool
		says         string
	}{
		{"selected", knows{cached: all}, there, away{}, true, "NICPolicy/p"},
		{"selected by one that was just made", knows{live: all}, there, away{}, true, "NICPolicy/p"},
		{"in a VPC that was just made", knows{cached: all}, has{}, there, true, "NICPolicy/p"},
		{"of an account that is not there", knows{cached: byAccount}, there, there, true, "NICPolicy/p"},
		{"selected by none", knows{}, away{}, away{}, true, ""},
		{"in no VPC", knows{cached: all}, has{}, has{}, false, "there is no VPC v"},
		{"policies unknown", knows{err: errors.New("not read yet")}, there, there, false, "find the NICPolicy of the pod: not read yet"},
		{"accounts unknown", knows{cached: byAccount}, there, away{}, false, "connection refused"},
		{"VPCs unknown", knows{cached: all}, away{}, away{}, false, "connection refused"},
	} {
		r := reviewer{
			decoder: admission.NewDecoder(scheme), cached: tt.cached, live: tt.live, policies: tt.policies,
			first: nicrequest.First{Name: "eth0", IsPort: true}, clock: clock.Real{}, metrics: NewMetrics(),
		}
		a := r.counted(ofPolicies, r.applyPolicy)(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Namespace: "default", Object: runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"c"}]}}`)},
		}})
		if a.Allowed != tt.allowed {
			t.Errorf("%s: allowed %v: %+v", tt.name, a.Allowed, a.Result)
			continue
		}
		said := ""
		if !a.Allowed {
			said = a.Result.Message
		}
		for _, p := range a.Patches {
			said += " " + p.Json()
		}
		if !strings.Contains(said, tt.says) || tt.allowed && !strings.Contains(said, v1alpha1.AnnotationNICPolicy) {
			t.Errorf("%s: %s, want %q", tt.name, said, tt.says)
		}
	}
	a, _ := reviewer{decoder: admission.NewDecoder(scheme)}.applyPolicy(t.Context(), admission.Request{
		AdmissionRequest: admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: []byte(`{"spec":"x"}`)}},
	})
	if a.Allowed {
		t.Error("what is no pod passes")
	}
}

// away is an API server that does not answer.
type away struct{ client.Reader }

func (away) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("connection refused")
}

// Pods that cannot be looked at are let pass, as they were made: the API server takes an answer
// that is an error for a refusal, whatever the failure policy.
func TestWhatCannotBeLookedAtPasses(t *testing.T) {
	scheme := runtime.NewScheme()
	harness.OK(t, clientgoscheme.AddToScheme(scheme))
	r := reviewer{admission.NewDecoder(scheme), away{}, away{}, nil, nicrequest.First{Name: "eth0"}, clock.Real{}, NewMetrics()}
	for name, h := range map[string]admission.Handler{
		"validate": admission.HandlerFunc(r.validate),
		"branches": r.counted(ofBranches, r.askForBranches),
	} {
		for what, pod := range map[string]string{
			"without the API server": `{"metadata":{"annotations":{"berth.dev/vpc":"e"}},"spec":{"containers":[{"name":"c"}]}}`,
			"of another form":        `{"spec":{"containers":"c"}}`,
		} {
			q := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: admissionv1.Create, Namespace: "default", Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
				Object: runtime.RawExtension{Raw: []byte(pod)},
			}}
			if a := h.Handle(t.Context(), q); !a.Allowed || len(a.Patches) != 0 || len(a.Warnings) != 1 {
				t.Errorf("%s, a pod %s: %+v", name, what, a)
			}
		}
	}
}

func TestBranchesOf(t *testing.T) {
	vpc := func(provider v1alpha1.VPCProvider) *v1alpha1.VPC {
		return &v1alpha1.VPC{Spec: v1alpha1.VPCSpec{Provider: provider}}
	}
	for name, tt := range map[string]struct {
		vpc  *v1alpha1.VPC
		nics string
		want int
	}{
		"the default one":         {vpc(v1alpha1.ProviderEC2), "", 1},
		"an empty list":           {vpc(v1alpha1.ProviderEC2), "[]", 1},
		"two":                     {vpc(v1alpha1.ProviderEC2), "[{}, {name: backup, subnet: subnet-2}]", 2},
		"in lines":                {vpc(v1alpha1.ProviderEC2), "- {}\n- name: backup\n- nic: db-0\n", 3},
		"a PodNIC that is there":  {vpc(v1alpha1.ProviderEC2), "[{nic: db-0}]", 1},
		"a port that is there":    {vpc(v1alpha1.ProviderEC2), "[{portID: eni-0123456789abcdef0}]", 1},
		"the first interface":     {vpc(v1alpha1.ProviderEC2), "[{name: eth0}, {}]", 2},
		"the first as a device":   {vpc(v1alpha1.ProviderEC2), "[{name: eth0, binding: tap}]", 0},
		"what cannot be read":     {vpc(v1alpha1.ProviderEC2), "- [", 0},
		"what contradicts itself": {vpc(v1alpha1.ProviderEC2), "[{name: eth1}, {name: eth1}]", 0},
		"of Neutron":              {vpc(v1alpha1.ProviderNeutron), "[{}, {}]", 0},
		"of no VPC":               {nil, "[{}]", 0},
	} {
		p := nicrequest.Pod{Annotations: map[string]string{v1alpha1.AnnotationNICs: tt.nics}}
		if got := branchesOf(p, tt.vpc, nicrequest.First{Name: "eth0", MayBePort: true}); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

func TestAsks(t *testing.T) {
	list := func(name corev1.ResourceName, text string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(text)}
	}
	of := func(l corev1.ResourceList) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: l}}
	}
	sidecar := func(c corev1.Container) corev1.Container {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		return c
	}
	cpu, one, two := of(list(corev1.ResourceCPU, "1")), of(list(v1alpha1.ResourceBranches, "1")), of(list(v1alpha1.ResourceBranches, "2"))
	for name, tt := range map[string]struct {
		spec corev1.PodSpec
		want int64
		// first is for how many the first container is to ask if the pod will have four.
		first int64
	}{
		"for nothing":          {corev1.PodSpec{Containers: []corev1.Container{{}}}, 0, 4},
		"for others":           {corev1.PodSpec{InitContainers: []corev1.Container{cpu}, Containers: []corev1.Container{cpu}}, 0, 4},
		"for none":             {corev1.PodSpec{Containers: []corev1.Container{of(list(v1alpha1.ResourceBranches, "0"))}}, 0, 4},
		"the first":            {corev1.PodSpec{Containers: []corev1.Container{one, cpu}}, 1, 4},
		"two":                  {corev1.PodSpec{Containers: []corev1.Container{one, cpu, two}}, 3, 2},
		"an init container":    {corev1.PodSpec{InitContainers: []corev1.Container{two, one}, Containers: []corev1.Container{one}}, 2, 4},
		"by limits alone":      {corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: list(v1alpha1.ResourceBranches, "1")}}}}, 1, 4},
		"a sidecar":            {corev1.PodSpec{InitContainers: []corev1.Container{sidecar(one)}, Containers: []corev1.Container{one, one}}, 3, 2},
		"init after a sidecar": {corev1.PodSpec{InitContainers: []corev1.Container{sidecar(one), two}, Containers: []corev1.Container{{}}}, 3, 3},
		"init before one":      {corev1.PodSpec{InitContainers: []corev1.Container{two, sidecar(one)}, Containers: []corev1.Container{{}}}, 2, 3},
		"for as many":          {corev1.PodSpec{InitContainers: []corev1.Container{sidecar(two)}, Containers: []corev1.Container{one, one}}, 4, 0},
		"nobody in particular": {corev1.PodSpec{}, 0, 4},
	} {
		p := &corev1.Pod{Spec: tt.spec}
		if got, _ := asks(p); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
		if got := lacks(p, 4); got != tt.first {
			t.Errorf("%s: the first container is to ask for %d, want %d", name, got, tt.first)
		}
	}
}

// Only the first container is changed, and what is not known of pods here stays.
func TestRequest(t *testing.T) {
	const asked = `{"requests":{"berth.dev/branch-interfaces":"2"},"limits":{"berth.dev/branch-interfaces":"2"}}`
	for in, want := range map[string]string{
		`{"spec":{"containers":[{"name":"a"},{"name":"b"}],"new":9007199254740993}}`: `{"spec":{"containers":[{"name":"a","resources":` + asked + `},{"name":"b"}],"new":9007199254740993}}`,
		`{"spec":{"containers":[{"name":"a","resources":{},"new":{"x":[1]}}]}}`:      `{"spec":{"containers":[{"name":"a","resources":` + asked + `,"new":{"x":[1]}}]}}`,
		`{"spec":{"containers":[{"resources":{"claims":[{"name":"x"}],"requests":{"cpu":"1"}}}]}}`: `{"spec":{"containers":[{"resources":{"claims":[{"name":"x"}],` +
			`"requests":{"cpu":"1","berth.dev/branch-interfaces":"2"},"limits":{"berth.dev/branch-interfaces":"2"}}}]}}`,
	} {
		got, err := edited([]byte(in), request(2))
		if err != nil || !sameJSON(t, string(got), want) {
			t.Errorf("%s\ngot  %s, %v\nwant %s", in, got, err, want)
		}
	}
	for _, in := range []string{`{`, `{}`, `{"spec":{"containers":[]}}`, `{"spec":{"containers":["a"]}}`, `{"spec":{"containers":{}}}`, `{"spec":[]}`} {
		if got, err := edited([]byte(in), request(2)); err == nil {
			t.Errorf("%s: got %s, want an error", in, got)
		}
	}
}

// sameJSON compares with numbers as they are written.
func sameJSON(t *testing.T, x, y string) bool {
	t.Helper()
	var values [2]any
	for i, text := range []string{x, y} {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		harness.OK(t, d.Decode(&values[i]))
	}
	return reflect.DeepEqual(values[0], values[1])
}
