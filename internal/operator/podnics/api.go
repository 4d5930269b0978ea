package podnics

import (
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// The kinds of Berth's own that are kept in memory for VPC ports.
var (
	VPCs = &watched.Kind{
		Object: &v1alpha1.VPC{}, List: func() client.ObjectList { return &v1alpha1.VPCList{} },
		Cache: cache.ByObject{Transform: cache.TransformStripManagedFields()},
	}
	PodNICs = &watched.Kind{
		Object: &v1alpha1.PodNIC{}, List: func() client.ObjectList { return &v1alpha1.PodNICList{} },
		Cache: cache.ByObject{Transform: watched.Trim},
	}
)
