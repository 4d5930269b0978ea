package nodeaddress

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

// cached is a reader that returns the same objects for every node and pod.
type cached struct {
	client.Reader
	network *v1alpha1.NodeNetwork
	blocks  []v1alpha1.AddressBlock
	nics    []v1alpha1.PodNIC
}

func (c cached) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if c.network == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, "")
	}
	c.network.DeepCopyInto(o.(*v1alpha1.NodeNetwork))
	return nil
}

func (c cached) List(_ context.Context, l client.ObjectList, _ ...client.ListOption) error {
	switch l := l.(type) {
	case *v1alpha1.AddressBlockList:
		l.Items = c.blocks
	case *v1alpha1.PodNICList:
		l.Items = c.nics
	}
	return nil
}

func TestMay(t *testing.T) {
	network := &v1alpha1.NodeNetwork{}
	network.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{"10.0.0.1": {}, "10.0.1.16/28": {}, "2001:db8:0:1::/80": {}}
	nic := v1alpha1.PodNIC{}
	nic.Status.Addresses = []v1alpha1.PortAddress{{CIDR: "192.168.0.7/24"}}
	all := cached{network: network, blocks: []v1alpha1.AddressBlock{{IPv4: "10.2.0.0/26", IPv6: "fd00::/122"}}, nics: []v1alpha1.PodNIC{nic}}
	empty := cached{network: &v1alpha1.NodeNetwork{}}
	every := Sources{ENIs: true, Pools: true, Ports: true}
	for name, tt := range map[string]struct {
		has     cached
		sources Sources
		address string
		want    bool
	}{
		"single address":                 {all, every, "10.0.0.1", true},
		"IPv4 prefix":                    {all, every, "10.0.1.31", true},
		"IPv6 prefix":                    {all, every, "2001:db8:0:1::9", true},
		"IPv4 block":                     {all, every, "10.2.0.63", true},
		"IPv6 block":                     {all, every, "fd00::3f", true},
		"PodNIC":                         {all, every, "192.168.0.7", true},
		"neighbor of a PodNIC's address": {all, every, "192.168.0.8", false},
		"external IPv4 address":          {all, every, "203.0.113.9", false},
		"external IPv6 address":          {all, every, "2001:db8:0:2::9", false},
		"node without addresses":         {empty, every, "10.0.0.1", false},
		"node of another source":         {cached{}, every, "203.0.113.9", true},
		"no sources cached":              {all, Sources{}, "203.0.113.9", true},
		"only blocks cached":             {all, Sources{Pools: true}, "10.0.0.1", false},
	} {
		tt.sources.Cache = tt.has
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
		if got, err := tt.sources.May(t.Context(), p, netip.MustParseAddr(tt.address)); err != nil || got != tt.want {
			t.Errorf("%s: May() = %v, %v, want %v", name, got, err, tt.want)
		}
	}
}
