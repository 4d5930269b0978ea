package providers

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
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

// away is an API server that does not answer.
type away struct{ client.Reader }

func (away) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewServiceUnavailable("the API server is away")
}

// A Secret that cannot be read for a moment is told, and closes no VPC that is open.
func TestSecretThatIsNotRead(t *testing.T) {
	c := &Controller{
		o: Options{Clock: clock.Real{}, Interval: time.Minute}, states: map[string]*state{},
		secrets: &secrets{namespace: namespace, reader: away{}, byVPC: map[string]use{}, follow: map[string]context.CancelFunc{}},
	}
	v := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: v1alpha1.VPCSpec{
		Credentials: &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsPassword, SecretName: "neutron"},
	}}
	for _, open := range []bool{true, false} {
		s := &state{open: open}
		c.look(t.Context(), v, s, 1)
		if s.open != open || s.why == nil || s.why.reason != ReasonSecretUnreadable || !s.next.After(time.Now()) {
			t.Errorf("was open %v: is open %v, because of %+v, next look %v", open, s.open, s.why, s.next)
		}
	}
}
