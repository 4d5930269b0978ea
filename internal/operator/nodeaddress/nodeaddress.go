// Package nodeaddress tells whether a node may give a pod an address, as far as the operator knows.
package nodeaddress

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/operator/podnics"
)

// Sources are what the process has in memory of where addresses come from.
type Sources struct {
	Cache client.Reader
	// ENIs, Pools and Ports tell whether NodeNetworks, AddressBlocks and PodNICs are in it.
	ENIs, Pools, Ports bool
}

// May tells whether the node of a pod may give it an address: one that its NodeNetwork, its blocks or the pod's PodNICs
// have. On a node of which there are none addresses are another's business, and any may be.
func (s Sources) May(ctx context.Context, p *corev1.Pod, a netip.Addr) (bool, error) {
	known := false
	if s.ENIs {
		o := &v1alpha1.NodeNetwork{}
		err := s.Cache.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, o, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("read NodeNetwork %s from the cache: %w", p.Spec.NodeName, err)
		}
		if known = !apierrors.IsNotFound(err); known && available(o.Spec.IPAM.Available, a) {
			return true, nil
		}
	}
	if s.Pools {
		blocks, err := addresspool.BlocksOf(ctx, s.Cache, p.Spec.NodeName)
		if err != nil {
			return false, err
		}
		for i := range blocks {
			known = true
			if within(blocks[i].IPv4, a) || within(blocks[i].IPv6, a) {
				return true, nil
			}
		}
	}
	if s.Ports {
		nics, err := podnics.NICsOf(ctx, s.Cache, client.ObjectKeyFromObject(p))
		if err != nil {
			return false, err
		}
		for i := range nics {
			known = true
			for _, has := range nics[i].Status.Addresses {
				if is, err := netip.ParsePrefix(has.CIDR); err == nil && is.Addr() == a {
					return true, nil
				}
			}
		}
	}
	return !known, nil
}

// available tells whether a NodeNetwork has an address, alone or in a prefix of its family's length.
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
