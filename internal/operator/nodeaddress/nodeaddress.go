// Package nodeaddress reports whether a pod may have an address on its node, as far as the operator knows.
package nodeaddress

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics"
)

// Sources are the address sources that the cache has.
type Sources struct {
	Cache client.Reader
	// ENIs, Pools and Ports report whether NodeNetworks, AddressBlocks and PodNICs are in the cache.
	ENIs, Pools, Ports bool
}

// Verdict says whether an address can be a pod's.
type Verdict int

// The verdicts. Unknown: addresses come from a source that the operator does not know, and any address is possible.
const (
	Impossible Verdict = iota
	Unknown
	Confirmed
)

// May reports whether a pod may have an address on its node.
func (s Sources) May(ctx context.Context, p *corev1.Pod, a netip.Addr) (bool, error) {
	v, err := s.Judge(ctx, p, a)
	return v != Impossible, err
}

// Judge reports whether an address can be a pod's on its node: the node's NodeNetwork or blocks, or the pod's PodNICs, must
// have the address. If none of these exist, that is Unknown.
func (s Sources) Judge(ctx context.Context, p *corev1.Pod, a netip.Addr) (Verdict, error) {
	known := false
	if s.ENIs {
		o, err := objects.Get[v1alpha1.NodeNetwork](ctx, s.Cache, client.ObjectKey{Name: p.Spec.NodeName}, objects.Shared)
		if err != nil {
			return Impossible, err
		}
		if known = o != nil; known && available(o.Spec.IPAM.Available, a) {
			return Confirmed, nil
		}
	}
	if s.Pools {
		blocks, err := addresspool.BlocksOf(ctx, s.Cache, p.Spec.NodeName)
		if err != nil {
			return Impossible, err
		}
		for i := range blocks {
			known = true
			if within(blocks[i].IPv4, a) || within(blocks[i].IPv6, a) {
				return Confirmed, nil
			}
		}
	}
	if s.Ports {
		nics, err := podnics.NICsOf(ctx, s.Cache, client.ObjectKeyFromObject(p))
		if err != nil {
			return Impossible, err
		}
		if known = known || len(nics) > 0; anyHas(nics, a) {
			return Confirmed, nil
		}
	}
	if known {
		return Impossible, nil
	}
	return Unknown, nil
}

// OfNIC reports whether a PodNIC of a pod has an address, as far as the cache knows.
func (s Sources) OfNIC(pod types.NamespacedName, a netip.Addr) bool {
	if !s.Ports {
		return false
	}
	nics, err := podnics.NICsOf(context.Background(), s.Cache, pod)
	return err == nil && anyHas(nics, a)
}

func anyHas(nics []v1alpha1.PodNIC, a netip.Addr) bool {
	for i := range nics {
		for _, has := range nics[i].Status.Addresses {
			if is, err := netip.ParsePrefix(has.CIDR); err == nil && is.Addr() == a {
				return true
			}
		}
	}
	return false
}

// available reports whether a NodeNetwork has an address, or the prefix around it that EC2 assigns.
func available(all map[string]v1alpha1.AvailableAddress, a netip.Addr) bool {
	bits := 80
	if a.Is4() {
		bits = 28
	}
	_, alone := all[a.String()]
	prefix, err := a.Prefix(bits)
	_, inPrefix := all[prefix.String()]
	return alone || err == nil && inPrefix
}

func within(block string, a netip.Addr) bool {
	p, err := netip.ParsePrefix(block)
	return err == nil && p.Contains(a)
}
