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
		want    Verdict
	}{
		"single address":                 {all, every, "10.0.0.1", Confirmed},
		"IPv4 prefix":                    {all, every, "10.0.1.31", Confirmed},
		"IPv6 prefix":                    {all, every, "2001:db8:0:1::9", Confirmed},
		"IPv4 block":                     {all, every, "10.2.0.63", Confirmed},
		"IPv6 block":                     {all, every, "fd00::3f", Confirmed},
		"PodNIC":                         {all, every, "192.168.0.7", Confirmed},
		"neighbor of a PodNIC's address": {all, every, "192.168.0.8", Impossible},
		"external IPv4 address":          {all, every, "203.0.113.9", Impossible},
		"external IPv6 address":          {all, every, "2001:db8:0:2::9", Impossible},
		"node without addresses":         {empty, every, "10.0.0.1", Impossible},
		"node of another source":         {cached{}, every, "203.0.113.9", Unknown},
		"no sources cached":              {all, Sources{}, "203.0.113.9", Unknown},
		"only blocks cached":             {all, Sources{Pools: true}, "10.0.0.1", Impossible},
	} {
		tt.sources.Cache = tt.has
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
		got, err := tt.sources.Judge(t.Context(), p, netip.MustParseAddr(tt.address))
		if may, mayErr := tt.sources.May(t.Context(), p, netip.MustParseAddr(tt.address)); err != nil || mayErr != nil || got != tt.want || may != (tt.want != Impossible) {
			t.Errorf("%s: Judge() = %v, %v, May() = %v, %v, want %v", name, got, err, may, mayErr, tt.want)
		}
	}
}
