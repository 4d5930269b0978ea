package v1alpha1_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

// clean returns a client of an API server without Berth's objects.
func clean(t *testing.T) client.Client {
	t.Helper()
	harness.KubeClean(t)
	return harness.KubeClient(t)
}

// ofKind returns an object from YAML: the fields next to metadata.
func ofKind(t *testing.T, kind, name, fields string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	text := fmt.Sprintf("{apiVersion: berth.dev/v1alpha1, kind: %s, metadata: {name: %q}, %s}", kind, name, fields)
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

func nodeNetwork(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return ofKind(t, "NodeNetwork", name, "spec: "+spec)
}

func newPool(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return ofKind(t, "AddressPool", name, "spec: "+spec)
}

// with returns the spec of a node with further fields.
func with(more string) string {
	return "{instanceID: i-0123456789abcdef0, instanceType: m5.large" + more + "}"
}

// create creates a NodeNetwork and returns it as stored.
func create(t *testing.T, c client.Client, name, more string) *v1alpha1.NodeNetwork {
	t.Helper()
	harness.OK(t, c.Create(t.Context(), nodeNetwork(t, name, with(more))))
	return read(t, c, name)
}

func read(t *testing.T, c client.Client, name string) *v1alpha1.NodeNetwork {
	t.Helper()
	n := &v1alpha1.NodeNetwork{}
	harness.OK(t, c.Get(t.Context(), types.NamespacedName{Name: name}, n))
	return n
}

// change patches an existing object with fields in YAML.
func change(t *testing.T, c client.Client, o client.Object, fields string) error {
	t.Helper()
	return c.Patch(t.Context(), o.DeepCopyObject().(client.Object), merge(t, fields))
}

// changeStatus patches the status of an object.
func changeStatus(t *testing.T, c client.Client, o client.Object, status string) error {
	t.Helper()
	return c.Status().Patch(t.Context(), o.DeepCopyObject().(client.Object), merge(t, "{status: "+status+"}"))
}

func merge(t *testing.T, fields string) client.Patch {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(fields))
	harness.OK(t, err)
	return client.RawPatch(types.MergePatchType, data)
}

// refusal is a case that the API server rejects because of one field.
type refusal struct {
	name string // name of the case
	text string // the object in YAML
	at   string // the field
	why  string // part of the message
}

// refuses checks that each case is rejected.
func refuses(t *testing.T, cases []refusal, write func(t *testing.T, text string) error) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) { refused(t, write(t, tc.text), tc.at, tc.why) })
	}
}

// refused checks that the error names the field and contains the message.
func refused(t *testing.T, err error, at, why string) {
	t.Helper()
	if !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want it to be refused as invalid", err)
	}
	if text := strings.Replace(err.Error(), ": [", ": ", 1); !strings.Contains(text, " "+at+": ") || !strings.Contains(text, why) {
		t.Errorf("got %v\nwant one that names %s and says %q", err, at, why)
	}
}
