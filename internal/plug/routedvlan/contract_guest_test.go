//go:build guest

package routedvlan

import (
	"testing"

	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/plugtest"
	"github.com/berthnet/berth/internal/plug/podif"
)

func TestContract(t *testing.T) {
	for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
		t.Run(string(mode), func(t *testing.T) {
			plugtest.Run(t, func(t *testing.T) plugtest.Fixture {
				w := newWorld(t)
				return plugtest.Fixture{
					Plugger: w.plugger,
					Want: func(attachment, portID string, pod *podif.Namespace) plug.Want {
						return w.want(7, mode, attachment, portID, pod)
					},
					State: w.state,
				}
			}, "plug.routed.", "plug.vlan.made.", "plug.vlan.mark.", "plug.link.")
		})
	}
}
