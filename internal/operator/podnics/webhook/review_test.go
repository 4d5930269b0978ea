package webhook

import (
	"context"
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
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
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
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
