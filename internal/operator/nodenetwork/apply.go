package nodenetwork

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// appliedIPAM is an IPAMSpec that is in the request also where it is empty:
// what a request does not have stays as whoever wrote it last left it.
type appliedIPAM struct {
	Available map[string]v1alpha1.AvailableAddress `json:"available"`
	Releasing []string                             `json:"releasing"`
	// Unassigning, as above.
	Unassigning []string `json:"unassigning"`
}

// appliedENI is an ENIStatus likewise.
type appliedENI struct {
	ENIs      map[string]v1alpha1.ENI `json:"enis"`
	Count     int32                   `json:"count"`
	Available int32                   `json:"available"`
	Needed    int32                   `json:"needed"`
	Limits    *v1alpha1.ENILimits     `json:"limits,omitempty"`
}

// apply writes the operator's part of an object's spec or status by server-side
// apply, unless anybody wrote to the object since base: then the error is a
// conflict. It returns the object after it, trimmed.
func (c *Controller) apply(ctx context.Context, base *v1alpha1.NodeNetwork, q request, want desiredState) (*v1alpha1.NodeNetwork, error) {
	var spec, status any
	if q == writeSpec {
		spec = struct {
			IPAM appliedIPAM `json:"ipam"`
		}{appliedIPAM(want.ipam)}
	} else {
		status = struct {
			ENI        appliedENI         `json:"eni"`
			Conditions []metav1.Condition `json:"conditions"`
		}{appliedENI(want.eni), want.conditions}
	}
	body, err := nodenetwork.ApplyBody(base, spec, status)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	got := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: base.Name}}
	patch := client.RawPatch(types.ApplyPatchType, body)
	if q == writeSpec {
		err = c.client.Patch(ctx, got, patch, client.ForceOwnership, client.FieldOwner(v1alpha1.OwnerOperator))
	} else {
		err = c.client.Status().Patch(ctx, got, patch, client.ForceOwnership, client.FieldOwner(v1alpha1.OwnerOperator))
	}
	if err != nil {
		return nil, err
	}
	trim(got)
	return got, nil
}
