package providers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// A Secret that is not there, or lacks a key, is named; once it is mended all goes on at
// once. One of another namespace is no help.
func TestSecrets(t *testing.T) {
	b := newBed(t, Options{})
	elsewhere := controllers.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "neutron"}, StringData: password()})
	t.Cleanup(func() { _ = b.client.Delete(t.Context(), elsewhere) })
	b.vpc("blue")
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonSecretNotFound, "no Secret neutron in namespace kube-system")
	b.closed("blue", ReasonSecretNotFound)
	for _, key := range []string{"username", "password", "project"} {
		b.secret("neutron", password(key, ""))
		b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonSecretIncomplete, "lacks the key "+key+",")
	}
	harness.OK(t, controllers.Same("questions to Keystone without credentials", b.cloud.HTTP.Count(http.MethodPost, "/v3/auth/tokens"), 0))
	b.secret("neutron", password())
	b.ready("blue")

	b.secret("application", map[string]string{"id": "credential-1"})
	b.edit("blue", func(s *v1alpha1.VPCSpec) {
		s.Credentials = &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsApplication, SecretName: "application"}
	})
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonSecretIncomplete, "lacks the key secret,")
	b.closed("blue", ReasonSecretIncomplete)
	b.secret("application", map[string]string{"id": "credential-1", "secret": plantedSecret})
	b.ready("blue")
}

// Credentials that Keystone refuses are reported as such; a Secret that is mended is used at
// once, and one that is spoiled closes the VPC.
func TestCredentialsMended(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password("password", planted+"x"))
	b.vpc("blue")
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonCredentialsRefused, "Secret neutron")
	b.closed("blue", ReasonCredentialsRefused)
	v := b.read("blue")
	harness.OK(t, condition(v1alpha1.ConditionReachable, metav1.ConditionTrue, ReasonAnswers)(v))
	harness.OK(t, condition(v1alpha1.ConditionNetworkFound, metav1.ConditionUnknown, ReasonNotTried)(v))
	b.secret("neutron", password())
	b.ready("blue")
	first := b.opened("blue")

	b.secret("neutron", password("username", "nobody"))
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonCredentialsRefused, "")
	b.closed("blue", ReasonCredentialsRefused)
	b.secret("neutron", password())
	b.ready("blue")
	if second, err := b.vpcs.Networks().Of("blue"); err != nil || second.Provider == first.Provider {
		t.Errorf("the provider of the Secret before: %v", err)
	}
}

// A user of Keystone who loses his rights is found out by the calls of others.
func TestCallsTellOfTrouble(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.vpc("blue")
	b.ready("blue")
	o := b.opened("blue")
	create := func() error {
		_, err := o.Provider.Create(t.Context(), []vpcport.NewPort{{NetworkID: b.blue.ID, Device: vpcport.Device("test", "u-1")}})
		return err
	}
	b.cloud.Keystone.EditUsers(func(u *neutronfake.User) { u.Denied = []string{"create_port"} })
	if err := create(); vpcport.ClassOf(err) != vpcport.Forbidden {
		t.Fatal(err)
	}
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonForbidden, "create_port")
	b.opened("blue")
	b.cloud.Keystone.EditUsers(func(u *neutronfake.User) { u.Denied = nil })
	harness.OK(t, create())
	b.ready("blue")

	b.cloud.Keystone.EditUsers(func(u *neutronfake.User) { u.Password = "another" })
	b.cloud.Keystone.RevokeTokens()
	if err := create(); vpcport.ClassOf(err) != vpcport.Unauthorized {
		t.Fatal(err)
	}
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonCredentialsRefused, "Keystone")
	b.closed("blue", ReasonCredentialsRefused)
	b.cloud.Keystone.EditUsers(func(u *neutronfake.User) { u.Password = planted })
	b.secret("neutron", password("userDomain", "Default")) // somebody writes to it again
	b.ready("blue")
}

// A network that is not there, or not the only one of its name.
func TestNetworks(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.vpc("none", func(s *v1alpha1.VPCSpec) { s.Network = "green" })
	b.fails("none", v1alpha1.ConditionNetworkFound, ReasonNetworkNotFound, "green")
	b.closed("none", ReasonNetworkNotFound)
	harness.OK(t, condition(v1alpha1.ConditionCredentialsAccepted, metav1.ConditionTrue, ReasonAccepted)(b.read("none")))

	second := b.cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	b.vpc("two", func(s *v1alpha1.VPCSpec) { s.Network = "blue" })
	b.fails("two", v1alpha1.ConditionNetworkFound, ReasonNetworkAmbiguous, "blue")
	b.closed("two", ReasonNetworkAmbiguous)
	b.vpc("first", func(s *v1alpha1.VPCSpec) { s.Network = b.blue.ID })
	b.ready("first")

	// Pods would get no address there, which holds nobody else up.
	b.vpc("bare", func(s *v1alpha1.VPCSpec) { s.Network = second.ID })
	b.complains("bare", ReasonNoSubnet, second.ID)
	b.edit("first", func(s *v1alpha1.VPCSpec) { s.DefaultSubnets = []string{"wep"} })
	b.complains("first", ReasonSubnetNotFound, "spec.defaultSubnets[0]")
	b.opened("first")
	b.edit("first", func(s *v1alpha1.VPCSpec) { s.DefaultSubnets = []string{"web"} })
	b.ready("first")
}

// A provider that is away is reported as such after some calls; what was open stays so. The
// certificate that it proves itself with must be one that is trusted.
func TestEndpointAway(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	b.vpc("gone", func(s *v1alpha1.VPCSpec) { s.Endpoint, s.TLS = away.URL, &v1alpha1.VPCTLS{Insecure: true} })
	b.fails("gone", v1alpha1.ConditionReachable, ReasonNoAnswer, "connect")
	b.closed("gone", ReasonNoAnswer)
	harness.OK(t, condition(v1alpha1.ConditionCredentialsAccepted, metav1.ConditionUnknown, ReasonNotTried)(b.read("gone")))

	b.vpc("blue")
	b.ready("blue")
	o := b.opened("blue")
	b.cloud.HTTP.Inject(neutronfake.Fault{Path: "/v2.0/*", HangUp: true})
	for range patience {
		_, _ = o.Provider.Ports(t.Context(), vpcport.Filter{Owner: vpcport.Owner})
	}
	b.fails("blue", v1alpha1.ConditionReachable, ReasonNoAnswer, "")
	if again, err := b.vpcs.Networks().Of("blue"); err != nil || again.Provider != o.Provider {
		t.Errorf("closed while it is away: %v", err)
	}
	b.cloud.HTTP.ClearFaults()
	b.ready("blue")
	b.cloud.HTTP.Inject(neutronfake.Fault{Path: "/v2.0/*", Status: 503, Message: "no backend"})
	for range patience {
		_, _ = o.Provider.Ports(t.Context(), vpcport.Filter{Owner: vpcport.Owner})
	}
	b.fails("blue", v1alpha1.ConditionReachable, ReasonProviderFailed, "503")
	b.cloud.HTTP.ClearFaults()
	b.ready("blue")
}

// What is wrong with the certificates, or where the endpoint leads, is reported.
func TestCertificates(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.vpc("unknown", func(s *v1alpha1.VPCSpec) { s.TLS = nil })
	b.fails("unknown", v1alpha1.ConditionReachable, ReasonCertificateRefused, "spec.tls.caBundle")
	b.vpc("name", func(s *v1alpha1.VPCSpec) { s.TLS.ServerName = "keystone.example.org" })
	b.fails("name", v1alpha1.ConditionReachable, ReasonCertificateRefused, "keystone.example.org")
	b.vpc("broken", func(s *v1alpha1.VPCSpec) {
		s.TLS.CABundle = "-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n"
	})
	b.fails("broken", v1alpha1.ConditionReachable, ReasonInvalidEndpoint, "spec.tls.caBundle")
	b.vpc("region", func(s *v1alpha1.VPCSpec) { s.Region = "RegionTwo" })
	b.fails("region", v1alpha1.ConditionReachable, ReasonInvalidEndpoint, "RegionTwo")
	b.vpc("path", func(s *v1alpha1.VPCSpec) { s.Endpoint = b.server.URL + "/identity" })
	b.fails("path", v1alpha1.ConditionReachable, ReasonInvalidEndpoint, "")
	for _, name := range []string{"unknown", "name", "broken", "region"} {
		b.edit(name, func(s *v1alpha1.VPCSpec) { *s = b.newVPC(name).Spec })
		b.ready(name)
	}
}

// While a VPC has NICs, credentials of another project are not used: Neutron would say of
// their ports that there are none. Nor is another network that got the name.
func TestAnotherProject(t *testing.T) {
	b := newBed(t, Options{})
	const other = "9c1c0a0e9d0b4e0f8d8f2c7d6b5a4930"
	b.cloud.Keystone.AddUser(neutronfake.User{Name: "else", Password: planted, Project: "else", ProjectID: other})
	b.secret("neutron", password())
	b.vpc("blue")
	was := b.ready("blue").Status.ProjectID
	n := b.nic("blue", "n-1")
	b.until("blue", "counts", controllers.If(func(v *v1alpha1.VPC) bool { return v.Status.NICs == 1 }))
	b.secret("neutron", password("username", "else", "project", "else"))
	v := b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonProjectChanged, other)
	b.closed("blue", ReasonProjectChanged)
	harness.OK(t, controllers.Same("the project", v.Status.ProjectID, was))
	b.secret("neutron", password())
	b.ready("blue")

	b.cloud.RemoveNetwork(b.blue.ID)
	b.cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	b.vpcs.wake("blue")
	b.fails("blue", v1alpha1.ConditionNetworkFound, ReasonNetworkChanged, b.blue.ID)
	b.closed("blue", ReasonNetworkChanged)

	// Without NICs there is nothing that could be lost.
	harness.OK(t, b.client.Delete(t.Context(), n))
	b.secret("neutron", password("username", "else", "project", "else"))
	b.until("blue", "takes the other", controllers.If(func(v *v1alpha1.VPC) bool { return v.Status.ProjectID == other && v.Status.NetworkID != b.blue.ID }))
}

// Two VPCs of one endpoint have providers of their own and share its lanes; the trouble of
// one is not the other's.
func TestTwoVPCs(t *testing.T) {
	b := newBed(t, Options{Calls: 3})
	red := b.cloud.AddNetwork(neutronfake.Network{Name: "red"})
	b.secret("neutron", password())
	b.secret("application", map[string]string{"id": "credential-1", "secret": plantedSecret})
	b.vpc("blue")
	b.vpc("red", func(s *v1alpha1.VPCSpec) {
		s.Network = "red"
		s.Credentials = &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsApplication, SecretName: "application"}
	})
	b.ready("blue")
	b.complains("red", ReasonNoSubnet, red.ID)
	harness.OK(t, controllers.Same("calls allowed at one endpoint", b.vpcs.opener.usage().Allowed, 3))
	b.secret("application", map[string]string{"id": "credential-1", "secret": "wrong"})
	b.fails("red", v1alpha1.ConditionCredentialsAccepted, ReasonCredentialsRefused, "")
	b.opened("blue")
	harness.OK(t, b.client.Delete(t.Context(), b.read("red")))
	controllers.AwaitGone(t, controllers.Named[v1alpha1.VPC]("red"))
	harness.Eventually(t, limit, "red is forgotten", func() error {
		if _, err := b.vpcs.Networks().Of("red"); err == nil || !strings.Contains(err.Error(), "no VPC red") {
			return fmt.Errorf("open: %w", err)
		}
		return nil
	})
}

// A VPC that is deleted stays, and is open, until its last PodNIC is gone.
func TestDeletion(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.vpc("blue")
	b.ready("blue")
	n := b.nic("blue", "n-1")
	harness.OK(t, b.client.Delete(t.Context(), b.read("blue")))
	b.complains("blue", ReasonDeleting, "1 PodNICs")
	b.opened("blue")
	harness.OK(t, b.client.Delete(t.Context(), n))
	controllers.AwaitGone(t, controllers.Named[v1alpha1.VPC]("blue"))
	b.vpc("blue") // another of its name
	b.ready("blue")
}

// What a restarted operator finds is taken up, and the pin of the project holds.
func TestRestart(t *testing.T) {
	b := newBed(t, Options{})
	b.cloud.Keystone.AddUser(neutronfake.User{Name: "else", Password: planted, Project: "else", ProjectID: "9c1c0a0e9d0b4e0f8d8f2c7d6b5a4930"})
	b.secret("neutron", password())
	b.vpc("blue")
	b.ready("blue")
	b.nic("blue", "n-1")
	b.end()
	b.secret("neutron", password("username", "else", "project", "else"))
	b.start(Options{})
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonProjectChanged, "")
	b.closed("blue", ReasonProjectChanged)
}

// A Keystone that shows the password to everybody does not get it into conditions; the
// bed looks for it in all that people see.
func TestEchoedSecrets(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"error": {"code": 401, "title": "Unauthorized", "message": "wrong password: %s"}}`, planted)
	})
	b.vpc("blue")
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonCredentialsRefused, "(concealed)")
}

// A VPC is ready with what Neutron says of its network, and open for others.
func TestReady(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.vpc("blue")
	v := b.ready("blue")
	conditions := map[string]string{}
	for _, c := range v.Status.Conditions {
		conditions[c.Type] = string(c.Status) + " " + c.Reason
	}
	if diff := cmp.Diff(map[string]string{
		"Ready": "True Ready", "Reachable": "True Answers", "CredentialsAccepted": "True Accepted", "NetworkFound": "True Found",
	}, conditions); diff != "" {
		t.Error(diff)
	}
	v.Status.Conditions = nil
	if diff := cmp.Diff(v1alpha1.VPCStatus{
		NetworkID: b.blue.ID, ProjectID: "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930", MTU: 1442,
		Subnets: []v1alpha1.VPCSubnet{{ID: b.web.ID, Name: "web", CIDR: "192.168.0.0/24", Gateway: "192.168.0.1"}},
	}, v.Status); diff != "" {
		t.Error(diff)
	}
	o, err := b.vpcs.Networks().Of("blue")
	if err != nil || o.Network.ID != b.blue.ID || o.Spec.Network != "blue" {
		t.Fatalf("%+v, %v", o, err)
	}
	made, err := o.Provider.Create(t.Context(), []vpcport.NewPort{{NetworkID: o.Network.ID, Device: vpcport.Device("test", "u-1")}})
	if err != nil || len(made) != 1 {
		t.Errorf("a port: %+v, %v", made, err)
	}
	if _, err := b.vpcs.Networks().Of("red"); err == nil {
		t.Error("a VPC that there is not is open")
	}
}

// What changes at the provider is seen after the interval, and told to others; else it is
// quiet: NICs that come and go are counted, and no call is made for them.
func TestQuiet(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.vpc("blue")
	b.ready("blue")
	before := len(b.cloud.HTTP.Calls())
	for i := range 20 {
		b.nic("blue", fmt.Sprintf("n-%d", i))
	}
	b.until("blue", "counts", controllers.If(func(v *v1alpha1.VPC) bool { return v.Status.NICs == 20 }))
	if n := len(b.cloud.HTTP.Calls()) - before; n > 3 { // one more look may be due
		t.Errorf("%d calls for nothing: %+v", n, b.cloud.HTTP.Calls()[before:])
	}
	events := &eventsv1.EventList{}
	harness.OK(t, b.client.List(t.Context(), events))
	var reasons []string
	for _, e := range events.Items {
		if e.Regarding.Kind == "VPC" {
			reasons = append(reasons, e.Type+" "+e.Reason)
		}
	}
	if !slices.Equal(reasons, []string{"Normal Ready"}) {
		t.Errorf("events %q", reasons)
	}
}

func TestInterval(t *testing.T) {
	b := newBed(t, Options{Interval: 200 * time.Millisecond})
	b.secret("neutron", password())
	b.vpc("blue")
	b.ready("blue")
	changed := make(chan string, 100)
	b.vpcs.Networks().Changed(func(vpc string) { changed <- vpc })
	b.cloud.AddSubnet(neutronfake.Subnet{Name: "more", Network: b.blue.ID, CIDR: netip.MustParsePrefix("192.168.1.0/24")})
	b.until("blue", "has the subnet", controllers.If(func(v *v1alpha1.VPC) bool { return len(v.Status.Subnets) == 2 }))
	harness.OK(t, controllers.Same("the VPC that changed", <-changed, "blue"))
	if o, err := b.vpcs.Networks().Of("blue"); err != nil || len(o.Network.Subnets) != 2 {
		t.Errorf("%+v, %v", o.Network, err)
	}
}

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
	harness.OK(t, controllers.Same("the reason", meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionCredentialsAccepted).Reason, ReasonNotNeeded))
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

// A Secret that cannot be read for a moment is reported, and closes no VPC that is open.
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

// A VPC of EC2 goes once its warm pool is deleted, and not before; the ports of another object's
// pool in the same VPC stay.
func TestWarmPoolGoesBeforeItsVPC(t *testing.T) {
	lab, err := endpoints.Serve(spec.Default())
	harness.OK(t, err)
	t.Cleanup(lab.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", lab.Credentials().AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", lab.Credentials().SecretAccessKey)
	signed, err := aws.New(t.Context(), aws.Options{Region: lab.Cloud.Region(), EC2Endpoint: lab.EC2URL})
	harness.OK(t, err)
	amazon := pace.Cloud(signed, pace.Options{})
	b := newBed(t, Options{EC2: &EC2{Cloud: amazon, Cluster: "test", Settle: time.Second}})
	books := lab.Snapshot()
	v := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, Network: books.VPCs[0].ID}}
	controllers.Create(t, v)
	b.ready("e")
	made := func(uid string) string {
		e, err := amazon.CreateENI(t.Context(), cloud.CreateENI{SubnetID: books.Subnets[0].ID, Tags: map[string]string{
			eni.TagCluster: "test", eni.TagOwner: branch.Owner, eni.TagNIC: vpcport.WarmDevice("test", uid, "1"),
		}})
		harness.OK(t, err)
		return e.ID
	}
	mine, other := made(string(v.UID)), made("other")
	harness.Eventually(t, limit, "EC2 shows both", func() error { // whose listings trail
		list, err := amazon.ENIs(t.Context(), cloud.ENIFilter{IDs: []string{mine, other}})
		if err == nil && len(list) != 2 {
			err = errors.New("not yet")
		}
		return err
	})
	harness.OK(t, b.client.Delete(t.Context(), v))
	controllers.AwaitGone(t, v)
	left := map[string]bool{}
	for _, e := range lab.Snapshot().ENIs {
		left[e.ID] = true
	}
	if left[mine] || !left[other] {
		t.Errorf("there are %v, want %s and not %s", left, other, mine)
	}
}
