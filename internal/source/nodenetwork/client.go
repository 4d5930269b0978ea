package nodenetwork

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
)

const resource = "nodenetworks"

// apiClient makes the requests that a daemon needs, for the one object.
type apiClient struct {
	*kubeapi.Client
	name string
}

// newClient reads a kubeconfig file, or what the cluster gives to a pod.
func newClient(kubeconfig, name string) (*apiClient, error) {
	cfg, err := kubeapi.Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	return clientFor(cfg, name)
}

func clientFor(cfg *rest.Config, name string) (*apiClient, error) {
	c, err := kubeapi.New(cfg)
	if err != nil {
		return nil, err
	}
	return &apiClient{c, name}, nil
}

// lister lists and watches the one object.
func (c *apiClient) lister() kubeapi.Lister {
	return c.Objects(resource, fields.OneTermEqualSelector("metadata.name", c.name).String(),
		func() runtime.Object { return &v1alpha1.NodeNetworkList{} })
}

func (c *apiClient) get(ctx context.Context) (*v1alpha1.NodeNetwork, error) {
	out := &v1alpha1.NodeNetwork{}
	return out, c.Get(ctx, resource, c.name, out)
}

func (c *apiClient) create(ctx context.Context, o *v1alpha1.NodeNetwork) (*v1alpha1.NodeNetwork, error) {
	out := &v1alpha1.NodeNetwork{}
	return out, c.Create(ctx, resource, o, out)
}

// remove deletes exactly the object that was read, and only if nobody changed
// it since.
func (c *apiClient) remove(ctx context.Context, o *v1alpha1.NodeNetwork) error {
	return c.Delete(ctx, resource, c.name, o.UID, o.ResourceVersion)
}

// applied is the daemon's part of the object: nothing else is in the request,
// so nothing else becomes its.
type applied struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        appliedMeta   `json:"metadata"`
	Status          appliedStatus `json:"status"`
}

type appliedMeta struct {
	Name            string    `json:"name"`
	UID             types.UID `json:"uid"`
	ResourceVersion string    `json:"resourceVersion"`
}

type appliedStatus struct {
	IPAM v1alpha1.IPAMStatus `json:"ipam"`
}

// report writes the daemon's part of o's status, unless anybody wrote to the
// object since o was read: then the error is a conflict.
func (c *apiClient) report(ctx context.Context, o *v1alpha1.NodeNetwork, s v1alpha1.IPAMStatus) (*v1alpha1.NodeNetwork, error) {
	body, err := json.Marshal(applied{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork"},
		Metadata: appliedMeta{Name: c.name, UID: o.UID, ResourceVersion: o.ResourceVersion},
		Status:   appliedStatus{s},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	out := &v1alpha1.NodeNetwork{}
	return out, c.Patch(ctx, types.ApplyPatchType, resource, c.name, "status", body, out)
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
func (c *apiClient) getNode(ctx context.Context) (*node, error) {
	n := &node{}
	err := c.Node(ctx, c.name, n)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return n, nil
}
