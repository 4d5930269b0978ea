package addresspool

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Watches are the kinds that the process keeps in memory for Setup.
func Watches() []*watched.Kind {
	own := cache.ByObject{Transform: cache.TransformStripManagedFields()}
	return []*watched.Kind{
		watched.Nodes, watched.Namespaces,
		{Object: &v1alpha1.AddressPool{}, List: func() client.ObjectList { return &v1alpha1.AddressPoolList{} }, Cache: own},
		{Object: &v1alpha1.AddressBlock{}, List: func() client.ObjectList { return &v1alpha1.AddressBlockList{} }, Cache: own},
		{Object: &v1alpha1.BlockRequest{}, List: func() client.ObjectList { return &v1alpha1.BlockRequestList{} }, Cache: own},
	}
}

// The fields by which the cache finds objects.
const (
	byPool    = "pool"
	byNode    = "node"
	byRequest = "request"
)

func indexFields(ctx context.Context, ix client.FieldIndexer) error {
	for _, i := range []struct {
		object client.Object
		field  string
		value  func(client.Object) string
	}{
		{&v1alpha1.AddressBlock{}, byPool, func(o client.Object) string { return o.(*v1alpha1.AddressBlock).PoolName }},
		{&v1alpha1.AddressBlock{}, byNode, func(o client.Object) string { return o.(*v1alpha1.AddressBlock).NodeName }},
		{&v1alpha1.AddressBlock{}, byRequest, func(o client.Object) string { return string(o.(*v1alpha1.AddressBlock).RequestUID) }},
		{&v1alpha1.BlockRequest{}, byPool, func(o client.Object) string { return o.(*v1alpha1.BlockRequest).Spec.PoolName }},
		{&v1alpha1.BlockRequest{}, byNode, func(o client.Object) string { return o.(*v1alpha1.BlockRequest).Spec.NodeName }},
	} {
		if err := ix.IndexField(ctx, i.object, i.field, func(o client.Object) []string { return []string{i.value(o)} }); err != nil {
			return err
		}
	}
	return nil
}

// BlocksOf are the blocks of a node, read from the cache of a manager with Setup.
func BlocksOf(ctx context.Context, r client.Reader, node string) ([]v1alpha1.AddressBlock, error) {
	list := &v1alpha1.AddressBlockList{}
	if err := r.List(ctx, list, client.MatchingFields{byNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list blocks of node %s: %w", node, err)
	}
	return list.Items, nil
}
