package webhook

import (
	"context"
	"errors"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
)

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
	d, first, m := admission.NewDecoder(scheme), nicrequest.First{Name: "eth0"}, NewMetrics()
	for name, h := range map[string]admission.Handler{
		"judge": judge{d, away{}, away{}, first, clock.Real{}, m},
		"asker": asker{d, away{}, away{}, first, clock.Real{}, m},
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
