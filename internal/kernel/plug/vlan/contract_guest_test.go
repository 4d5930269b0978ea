//go:build guest

package vlan

import (
	"testing"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/test/harness"
)

func TestContract(t *testing.T) {
	open := func(binding plug.Binding) func(t *testing.T) plugtest.Fixture {
		return func(t *testing.T) plugtest.Fixture { return newWorld(t).fixture(binding) }
	}
	t.Run("container", func(t *testing.T) {
		plugtest.Run(t, open(""), harness.Sample(t, 3, []string{"plug.vlan.trunk.", "plug.vlan.made.", "plug.vlan.mark.", "plug.vlan.name.", "plug.vlan.pod.", "plug.vlan.remove."})...)
	})
	t.Run("bridge", func(t *testing.T) { plugtest.Run(t, open(plug.BindingBridge), "plug.vlan.handover.") })
	t.Run("tap", func(t *testing.T) { plugtest.Run(t, open(plug.BindingTap), "plug.vlan.made.", "plug.tap.port.") })
}
