//go:build e2e

package neutron

import (
	"testing"

	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/openstack"
)

// With OVN and no Keystone.

func TestContract(t *testing.T) {
	w := of(t, openstack.OVN, false)
	contract(t, w, w.provider(t, nil), byOVN)
}

func TestLabAnswersAsNeutron(t *testing.T) {
	compare(t, of(t, openstack.OVN, false), neutronfake.Host{})
}

func TestPlugsWithOVN(t *testing.T) { plugs(t, of(t, openstack.OVN, false)) }
