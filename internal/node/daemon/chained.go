package daemon

import (
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
)

// chainedBy is what plugins before this one made of the pod's interface, by an ADD's request,
// and nil where this one makes it. A request of the other kind is refused: it is of a network
// that another daemon was to serve.
func (d *Daemon) chainedBy(req *rpc.AddRequest) (*attachment.Chained, error) {
	previous := req.GetPrevious()
	switch {
	case previous == nil && !d.Chained:
		return nil, nil
	case previous == nil:
		return nil, failf(types.ErrInvalidNetworkConfig, "not-chained", "berthd has no addresses of its own (--ipam=none), and no plugin before berth made the pod's interface: "+
			"put berth at the end of another network's list of plugins")
	case !d.Chained:
		return nil, failf(types.ErrInvalidNetworkConfig, "chained", "a plugin before berth made the pod's interface already, and berthd has addresses of its own (it runs with --ipam=%s): "+
			"put berth first in its network's list of plugins, or run berthd with --ipam=none", d.IPAM)
	}
	chained := &attachment.Chained{}
	for _, cidr := range previous.GetAddresses() {
		p, err := netip.ParsePrefix(cidr)
		if err != nil || p.Addr().Zone() != "" || p.Addr().Is4In6() {
			return nil, failf(types.ErrInvalidNetworkConfig, "bad-request", "prevResult: address %q is not a CIDR", cidr)
		}
		chained.Addresses = append(chained.Addresses, p.Addr())
	}
	if len(chained.Addresses) == 0 {
		return nil, failf(types.ErrInvalidNetworkConfig, "bad-request", "prevResult has no address of interface %s", req.GetAttachment().GetIfName())
	}
	return chained, nil
}
