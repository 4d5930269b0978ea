//go:build e2e

package neutron

import (
	"testing"

	lab "github.com/berthnet/berth/internal/lab/cloud/neutron"
	"github.com/berthnet/berth/internal/lab/openstack"
)

// With Neutron's own agent, and Linux bridges between ports and br-int.

func TestContractWithAgent(t *testing.T) {
	w := of(t, openstack.Agent, false)
	contract(t, w, w.provider(t, nil), byHybrid)
}

func TestLabAnswersAsNeutronWithAgent(t *testing.T) {
	compare(t, of(t, openstack.Agent, false), lab.Host{Agent: true, Hybrid: true})
}

func TestPlugsWithAgent(t *testing.T) { plugs(t, of(t, openstack.Agent, false)) }
