package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/run/poll"
)

// GatewayPool is the pool in EgressPools that provides the source addresses of gateways' traffic to the outside.
const GatewayPool = "gateways"

// GatewayNetworks are the addresses of GatewayPool. Each address is one block.
var GatewayNetworks = v1alpha1.PoolSubnet{IPv4: "198.51.101.0/27", IPv6: "2001:db8:51::/123"}

// EgressArgs are settings of berthd that shorten delays of egress.
var EgressArgs = []string{"--repair-interval=2s", "--cooling-period=1s"}

// EgressPools are the pools of clients and of gateways.
func EgressPools() []v1alpha1.AddressPool {
	return append(DefaultPools(), Pool(GatewayPool, 0, GatewayNetworks))
}

// Egress reads an Egress.
func (c *Cluster) Egress(ctx context.Context, key types.NamespacedName) (*v1alpha1.Egress, error) {
	return read[v1alpha1.Egress](ctx, c, "Egress", key)
}

// EditEgress changes an Egress as a user does with kubectl edit.
func (c *Cluster) EditEgress(ctx context.Context, key types.NamespacedName, change func(*v1alpha1.Egress)) error {
	return edit(ctx, c, "Egress", key, change)
}

// WaitGateways waits until an Egress has n gateways, all ready and none terminating, and returns their addresses with
// their names.
func (c *Cluster) WaitGateways(ctx context.Context, key types.NamespacedName, n int) (map[netip.Addr]string, error) {
	addrs := map[netip.Addr]string{}
	err := poll.Until(ctx, func() error {
		e, err := c.Egress(ctx, key)
		if err != nil {
			return err
		}
		clear(addrs)
		for _, g := range e.Status.Gateways {
			for _, text := range g.Addresses {
				if a, err := netip.ParseAddr(text); err == nil && !g.Ending {
					addrs[a] = g.Name
				}
			}
		}
		if len(e.Status.Gateways) != n || int(e.Status.ReadyGateways) != n {
			return fmt.Errorf("status has %d gateways, %d of them ready: %s", len(e.Status.Gateways), e.Status.ReadyGateways, Conditions(e.Status.Conditions))
		}
		return nil
	})
	if err != nil {
		return addrs, fmt.Errorf("wait for %d gateways: %w: %w", n, context.Cause(ctx), err)
	}
	return addrs, nil
}

// Conditions formats conditions in one line.
func Conditions(all []metav1.Condition) string {
	var parts []string
	for _, c := range all {
		parts = append(parts, fmt.Sprintf("%s %s %s %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(parts, "; ")
}
