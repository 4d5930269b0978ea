//go:build e2e

package neutron

import (
	"testing"

	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/lab/openstack"
	"github.com/berthnet/berth/test/harness"
)

// A user of the project who has exactly the rights that the provider says it needs keeps the
// contract, by password and by an application credential.
func TestContractBehindKeystone(t *testing.T) {
	w := of(t, openstack.OVN, true)
	u, err := w.AddUser(t.Context(), name(), openstack.Role)
	harness.OK(t, err)
	id, secret, err := w.ApplicationCredential(t.Context(), u, "berth")
	harness.OK(t, err)
	for by, c := range map[string]*neutron.Credentials{
		"Password":    {Password: &neutron.Password{User: u.Name, Password: u.Password, Project: u.Project}},
		"Application": {Application: &neutron.Application{ID: id, Secret: secret}},
	} {
		t.Run(by, func(t *testing.T) { contract(t, w, w.provider(t, c), byOVN) })
	}
}
