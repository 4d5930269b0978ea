package v1alpha1_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/samples"
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
		t.Fatalf("parse %s: %v", text, err)
	}
	if slices.Contains([]string{"Egress", "EgressClient", "EgressClientSlice", "NICPolicy", "PodNIC"}, kind) {
		o.SetNamespace("default")
	}
	return o
}

// withSpec returns a function that makes objects of a kind.
func withSpec(kind string) func(t *testing.T, name, spec string) *unstructured.Unstructured {
	return func(t *testing.T, name, spec string) *unstructured.Unstructured {
		return ofKind(t, kind, name, "spec: "+spec)
	}
}

var (
	nodeNetwork = withSpec("NodeNetwork")
	newPool     = withSpec("AddressPool")
	newEgress   = withSpec("Egress")
	newNIC      = withSpec("PodNIC")
	newVPC      = withSpec("VPC")
)

// accepts checks that the API server accepts objects with these specs, by their names.
func accepts(t *testing.T, c client.Client, kind string, specs map[string]string) {
	t.Helper()
	for name, spec := range specs {
		if err := c.Create(t.Context(), ofKind(t, kind, name, "spec: "+spec)); err != nil {
			t.Errorf("Create() of valid %s %s: error = %v, want none", kind, name, err)
		}
	}
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
		t.Fatalf("error = %v, want one with reason Invalid", err)
	}
	if text := strings.Replace(err.Error(), ": [", ": ", 1); !strings.Contains(text, " "+at+": ") || !strings.Contains(text, why) {
		t.Errorf("error = %v\nwant one for field %s that contains %q", err, at, why)
	}
}

// The fields of each kind that are compared: all but metadata, from which Berth uses names only.
type (
	storedNodeNetwork struct {
		Spec   v1alpha1.NodeNetworkSpec   `json:"spec"`
		Status v1alpha1.NodeNetworkStatus `json:"status"`
	}
	storedPool struct {
		Spec   v1alpha1.AddressPoolSpec   `json:"spec"`
		Status v1alpha1.AddressPoolStatus `json:"status"`
	}
	storedBlock struct {
		PoolName, NodeName, IPv4, IPv6, RequestUID string
		Index                                      int64
		Withheld                                   []v1alpha1.WithheldAddresses
		Status                                     v1alpha1.AddressBlockStatus `json:"status"`
	}
	// The ENI settings are covered by the samples nodenetwork-*.json.
	storedTemplate struct {
		Spec struct {
			NodeSelector v1alpha1.LabelSelector `json:"nodeSelector"`
			Priority     int32                  `json:"priority"`
			OutdatedENIs string                 `json:"outdatedENIs"`
		} `json:"spec"`
	}
	storedRequest struct {
		Spec   v1alpha1.BlockRequestSpec   `json:"spec"`
		Status v1alpha1.BlockRequestStatus `json:"status"`
	}
	storedVPC struct {
		Spec   v1alpha1.VPCSpec   `json:"spec"`
		Status v1alpha1.VPCStatus `json:"status"`
	}
	storedPodNIC struct {
		Spec   v1alpha1.PodNICSpec   `json:"spec"`
		Status v1alpha1.PodNICStatus `json:"status"`
	}
	storedNICPolicy struct {
		Spec   v1alpha1.NICPolicySpec   `json:"spec"`
		Status v1alpha1.NICPolicyStatus `json:"status"`
	}
	storedEgress struct {
		Spec   v1alpha1.EgressSpec   `json:"spec"`
		Status v1alpha1.EgressStatus `json:"status"`
	}
	storedEgressClient struct {
		Spec   v1alpha1.EgressClientSpec   `json:"spec"`
		Status v1alpha1.EgressClientStatus `json:"status"`
	}
	storedEgressClientSlice struct {
		Clients []v1alpha1.ServedClient `json:"clients"`
	}
)

// TestStoredObjects checks that the current CRDs accept objects of every release without dropping
// fields, and that the current programs read and write them without loss.
func TestStoredObjects(t *testing.T) {
	c := clean(t)
	format := func(files string, what reflect.Type, into func() client.Object) samples.Format {
		return samples.Format{Files: files, Type: what, Again: func(data []byte) ([]byte, error) {
			if err := stored(t, c, data); err != nil {
				return nil, err
			}
			o := into()
			if err := json.Unmarshal(data, o); err != nil {
				return nil, err
			}
			return json.Marshal(o)
		}}
	}
	samples.Check(t,
		format("nodenetwork-*.json", reflect.TypeFor[storedNodeNetwork](), func() client.Object { return &v1alpha1.NodeNetwork{} }),
		format("nodenetworktemplate-*.json", reflect.TypeFor[storedTemplate](), func() client.Object { return &v1alpha1.NodeNetworkTemplate{} }),
		format("addresspool*.json", reflect.TypeFor[storedPool](), func() client.Object { return &v1alpha1.AddressPool{} }),
		format("addressblock*.json", reflect.TypeFor[storedBlock](), func() client.Object { return &v1alpha1.AddressBlock{} }),
		format("blockrequest*.json", reflect.TypeFor[storedRequest](), func() client.Object { return &v1alpha1.BlockRequest{} }),
		format("vpc*.json", reflect.TypeFor[storedVPC](), func() client.Object { return &v1alpha1.VPC{} }),
		format("podnic*.json", reflect.TypeFor[storedPodNIC](), func() client.Object { return &v1alpha1.PodNIC{} }),
		format("nicpolicy*.json", reflect.TypeFor[storedNICPolicy](), func() client.Object { return &v1alpha1.NICPolicy{} }),
		format("egress-*.json", reflect.TypeFor[storedEgress](), func() client.Object { return &v1alpha1.Egress{} }),
		format("egressclient.json", reflect.TypeFor[storedEgressClient](), func() client.Object { return &v1alpha1.EgressClient{} }),
		format("egressclientslice.json", reflect.TypeFor[storedEgressClientSlice](), func() client.Object { return &v1alpha1.EgressClientSlice{} }),
	)
}

// stored writes a sample to the API server as its writers did, and reports fields that the CRD
// drops.
func stored(t *testing.T, c client.Client, sample []byte) error {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(sample, &o.Object); err != nil {
		return err
	}
	made := o.DeepCopy()
	if err := c.Create(t.Context(), made, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		return err
	}
	t.Cleanup(func() {
		made.SetFinalizers(nil)
		harness.OK(t, c.Update(context.Background(), made))
		harness.OK(t, client.IgnoreNotFound(c.Delete(context.Background(), made)))
	})
	if status, has := o.Object["status"]; has {
		made.Object["status"] = status
		if err := c.Status().Update(t.Context(), made); err != nil {
			return err
		}
	}
	again, err := json.Marshal(made)
	if err != nil {
		return err
	}
	return samples.Within(sample, again)
}
