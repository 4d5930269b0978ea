//go:build e2e

package neutron

import (
	"testing"

	lab "github.com/berthnet/berth/internal/lab/cloud/neutron"
	"github.com/berthnet/berth/internal/lab/openstack"
)

// With OVN and no Keystone.

func TestContract(t *testing.T) {
	w := of(t, openstack.OVN, false)
	contract(t, w, w.provider(t, nil), byOVN)
}

func TestLabAnswersAsNeutron(t *testing.T) { compare(t, of(t, openstack.OVN, false), lab.Host{}) }

func TestPlugsWithOVN(t *testing.T) { plugs(t, of(t, openstack.OVN, false)) }
