package providers

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
)

// A VPC of Alcor is opened without credentials, and says what is wrong in the same words as
// others.
func TestVPCOfAlcor(t *testing.T) {
	b := newBed(t, Options{})
	cloud := alcorfake.New(alcorfake.Options{})
	green := cloud.AddNetwork(alcorfake.Network{Name: "green"})
	subnet := cloud.AddSubnet(alcorfake.Subnet{Name: "web", Network: green.ID, CIDR: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1")})
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	of := func(network string) func(s *v1alpha1.VPCSpec) {
		return func(s *v1alpha1.VPCSpec) {
			s.Provider, s.Network, s.Endpoint, s.Credentials, s.TLS, s.Project = v1alpha1.ProviderAlcor, network, server.URL, nil, nil, green.Project
		}
	}
	b.vpc("green", of("green"))
	st := b.ready("green").Status
	if st.NetworkID != green.ID || st.ProjectID != green.Project || st.MTU != 1450 || len(st.Subnets) != 1 || st.Subnets[0].ID != subnet.ID {
		t.Errorf("status %+v", st)
	}
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionCredentialsAccepted); c.Reason != ReasonNotNeeded {
		t.Errorf("credentials: %+v", c)
	}
	o, err := b.vpcs.Networks().Of("green")
	if err != nil || o.Provider.Traits() != (vpcport.Traits{MaxBatch: 1, MaxFilter: 100, ChosenMAC: true}) {
		t.Errorf("opened %+v, %v", o, err)
	}
	b.vpc("none", of("grey"))
	b.fails("none", v1alpha1.ConditionNetworkFound, ReasonNetworkNotFound, "grey")
	cloud.HTTP.Inject(alcorfake.Fault{Status: 503, Method: http.MethodGet})
	b.vpc("away", of("green"))
	b.fails("away", v1alpha1.ConditionReachable, ReasonProviderFailed, "503")
	cloud.HTTP.ClearFaults()
	b.ready("away")
}
