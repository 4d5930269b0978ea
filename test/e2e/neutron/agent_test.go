//go:build e2e

package neutron

import (
	"testing"

	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/openstack"
)

// With Neutron's own agent, and Linux bridges between ports and br-int.

func TestContractWithAgent(t *testing.T) {
	w := of(t, openstack.Agent, false)
	contract(t, w, w.provider(t, nil), byHybrid)
}

func TestLabAnswersAsNeutronWithAgent(t *testing.T) {
	compare(t, of(t, openstack.Agent, false), neutronfake.Host{Agent: true, Hybrid: true})
}

func TestPlugsWithAgent(t *testing.T) { plugs(t, of(t, openstack.Agent, false)) }
