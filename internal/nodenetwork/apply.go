package nodenetwork

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

// ApplyBody returns a server-side apply of some fields of an object's spec and status, nil for none.
// The request has no other fields, so the writer owns no others. It names the resource version of o, on
// which it was decided: if anyone wrote to the object since, the API server answers with a conflict.
func ApplyBody(o *v1alpha1.NodeNetwork, spec, status any) ([]byte, error) {
	type meta struct {
		Name            string    `json:"name"`
		UID             types.UID `json:"uid"`
		ResourceVersion string    `json:"resourceVersion"`
	}
	return json.Marshal(struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        meta `json:"metadata"`
		Spec            any  `json:"spec,omitempty"`
		Status          any  `json:"status,omitempty"`
	}{
		metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork"},
		meta{o.Name, o.UID, o.ResourceVersion}, spec, status,
	})
}
