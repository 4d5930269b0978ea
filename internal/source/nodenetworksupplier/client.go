package nodenetworksupplier

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
)

const resource = "nodenetworks"

// patchStatus writes the daemon's part of o's status, unless anybody wrote to the
// object since o was read: then the error is a conflict.
func (s *supplier) patchStatus(ctx context.Context, o *v1alpha1.NodeNetwork, ipam v1alpha1.IPAMStatus) (*v1alpha1.NodeNetwork, error) {
	body, err := nodenetwork.ApplyBody(o, nil, struct {
		IPAM v1alpha1.IPAMStatus `json:"ipam"`
	}{ipam})
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	out := &v1alpha1.NodeNetwork{}
	return out, s.api.Patch(ctx, types.ApplyPatchType, resource, o.Name, "status", body, out)
}

// node is what matters of a Node.
type node struct {
	Metadata struct {
		Name string    `json:"name"`
		UID  types.UID `json:"uid"`
	} `json:"metadata"`
	Spec struct {
		ProviderID string `json:"providerID"`
	} `json:"spec"`
}

// getNode returns the Node of the same name, or nil without one.
func (s *supplier) getNode(ctx context.Context) (*node, error) {
	n := &node{}
	err := s.api.Node(ctx, s.cfg.NodeName, n)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		s.heard(err)
		return nil, err
	}
	return n, nil
}
