//go:build e2e

package neutron

import (
	"testing"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/openstack"
	"github.com/berthnet/berth/test/harness"
)

// TestProviderWithNeutron tests the provider of VPC ports and the plugs with a real Neutron: with OVN, and with
// Neutron's own agent, which puts a Linux bridge between a port and br-int. It also compares the replies of the
// lab's fake Neutron with those of the real one.
func TestProviderWithNeutron(t *testing.T) {
	for _, tc := range []struct {
		name    string
		backend openstack.Backend
		plug    vpcport.Plug
		host    neutronfake.Host // host in the lab's fake Neutron
	}{
		{"OVN", openstack.OVN, byOVN, neutronfake.Host{}},
		{"Agent", openstack.Agent, byHybrid, neutronfake.Host{Agent: true, Hybrid: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Run("contract", func(t *testing.T) {
				w := of(t, tc.backend, false)
				contract(t, w, w.provider(t, nil), tc.plug)
			})
			t.Run("answers", func(t *testing.T) { compare(t, of(t, tc.backend, false), tc.host) })
			t.Run("plugs", func(t *testing.T) { plugs(t, of(t, tc.backend, false)) })
		})
	}
}

// TestContractWithLeastPrivilege runs the contract tests as a project user with exactly the permissions that the provider
// requires, with a password and with an application credential.
func TestContractWithLeastPrivilege(t *testing.T) {
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
