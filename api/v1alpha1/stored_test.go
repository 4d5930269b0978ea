package v1alpha1_test

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/samples"
)

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
