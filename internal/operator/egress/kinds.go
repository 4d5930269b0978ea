package egress

import (
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Egresses are all, as package clients reads them too.
var Egresses = &watched.Kind{
	Object: &v1alpha1.Egress{}, List: func() client.ObjectList { return &v1alpha1.EgressList{} },
	Cache: cache.ByObject{Transform: cache.TransformStripManagedFields()},
}
