package addresspool

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Watches are the kinds that the cache of a manager with Setup keeps.
func Watches() []*watched.Kind {
	return []*watched.Kind{
		watched.Nodes, watched.Namespaces,
		watched.Of(&v1alpha1.AddressPool{}, &v1alpha1.AddressPoolList{}, nil),
		watched.Of(&v1alpha1.AddressBlock{}, &v1alpha1.AddressBlockList{}, nil),
		watched.Of(&v1alpha1.BlockRequest{}, &v1alpha1.BlockRequestList{}, nil),
	}
}

// The fields by which the cache finds objects.
const (
	byPool    = "pool"
	byNode    = "node"
	byRequest = "request"
)

func indexFields(ctx context.Context, ix client.FieldIndexer) error {
	return watched.Index(ctx, ix,
		watched.ByOne(byPool, func(o *v1alpha1.AddressBlock) string { return o.PoolName }),
		watched.ByOne(byNode, func(o *v1alpha1.AddressBlock) string { return o.NodeName }),
		watched.ByOne(byRequest, func(o *v1alpha1.AddressBlock) string { return string(o.RequestUID) }),
		watched.ByOne(byPool, func(o *v1alpha1.BlockRequest) string { return o.Spec.PoolName }),
		watched.ByOne(byNode, func(o *v1alpha1.BlockRequest) string { return o.Spec.NodeName }),
	)
}

// BlocksOf are the blocks of a node, read from the cache of a manager with Setup. The caller
// must not change them.
func BlocksOf(ctx context.Context, r client.Reader, node string) ([]v1alpha1.AddressBlock, error) {
	list, err := objects.List[v1alpha1.AddressBlockList](ctx, r, client.MatchingFields{byNode: node})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	return list.Items, nil
}

// requestsOf are the requests of a node, which the caller must not change.
func (a *api) requestsOf(ctx context.Context, node string) ([]v1alpha1.BlockRequest, error) {
	list, err := objects.List[v1alpha1.BlockRequestList](ctx, a.cached, client.MatchingFields{byNode: node})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	return list.Items, nil
}

// pageSize is how many blocks are read from the API server at a time.
const pageSize = 500

// allBlocks reads blocks from the API server, a page at a time. An error ends the sequence.
func (a *api) allBlocks(ctx context.Context, of ...client.ListOption) iter.Seq2[*v1alpha1.AddressBlock, error] {
	return func(yield func(*v1alpha1.AddressBlock, error) bool) {
		next := ""
		for {
			// A new list for each page: objects in a used one would keep fields that the page leaves out.
			list, err := objects.List[v1alpha1.AddressBlockList](ctx, a.live, slices.Concat(of, []client.ListOption{client.Limit(pageSize), client.Continue(next)})...)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range list.Items {
				if !yield(&list.Items[i], nil) {
					return
				}
			}
			if next = list.Continue; next == "" {
				return
			}
		}
	}
}
