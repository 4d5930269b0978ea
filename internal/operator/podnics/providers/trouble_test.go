package providers

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// A Secret that is not there, or lacks a key, is named; once it is mended all goes on at
// once. One of another namespace is no help.
func TestSecrets(t *testing.T) {
	b := newBed(t, Options{})
	elsewhere := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "neutron"}, StringData: password()}
	harness.OK(t, b.client.Create(t.Context(), elsewhere))
	t.Cleanup(func() { _ = b.client.Delete(t.Context(), elsewhere) })
	b.vpc("blue")
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonSecretNotFound, "no Secret neutron in namespace kube-system")
	b.closed("blue", ReasonSecretNotFound)
	for _, key := range []string{"username", "password", "project"} {
		b.secret("neutron", password(key, ""))
		b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonSecretIncomplete, "lacks the key "+key+",")
	}
	if n := b.cloud.HTTP.Count(http.MethodPost, "/v3/auth/tokens"); n != 0 {
		t.Errorf("Keystone was asked %d times without credentials", n)
	}
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

// Credentials that Keystone refuses are told as such; a Secret that is mended is used at
// once, and one that is spoiled closes the VPC.
func TestCredentialsMended(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password("password", planted+"x"))
	b.vpc("blue")
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonCredentialsRefused, "Secret neutron")
	b.closed("blue", ReasonCredentialsRefused)
	v := b.read("blue")
	conditionIs(t, v, v1alpha1.ConditionReachable, metav1.ConditionTrue, ReasonAnswers)
	conditionIs(t, v, v1alpha1.ConditionNetworkFound, metav1.ConditionUnknown, ReasonNotTried)
	b.secret("neutron", password())
	b.ready("blue")
	first, err := b.vpcs.Networks().Of("blue")
	harness.OK(t, err)

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
	o, err := b.vpcs.Networks().Of("blue")
	harness.OK(t, err)
	create := func() error {
		_, err := o.Provider.Create(t.Context(), []vpcport.NewPort{{NetworkID: b.blue.ID, Device: vpcport.Device("test", "u-1")}})
		return err
	}
	b.cloud.Keystone.EditUsers(func(u *neutronfake.User) { u.Denied = []string{"create_port"} })
	if err := create(); vpcport.ClassOf(err) != vpcport.Forbidden {
		t.Fatal(err)
	}
	b.fails("blue", v1alpha1.ConditionCredentialsAccepted, ReasonForbidden, "create_port")
	if _, err := b.vpcs.Networks().Of("blue"); err != nil {
		t.Errorf("closed, so that nobody can find out that it is allowed again: %v", err)
	}
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
	conditionIs(t, b.read("none"), v1alpha1.ConditionCredentialsAccepted, metav1.ConditionTrue, ReasonAccepted)

	second := b.cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	b.vpc("two", func(s *v1alpha1.VPCSpec) { s.Network = "blue" })
	b.fails("two", v1alpha1.ConditionNetworkFound, ReasonNetworkAmbiguous, "blue")
	b.closed("two", ReasonNetworkAmbiguous)
	b.vpc("first", func(s *v1alpha1.VPCSpec) { s.Network = b.blue.ID })
	b.ready("first")

	// Pods would get no address there, which holds nobody else up.
	b.vpc("bare", func(s *v1alpha1.VPCSpec) { s.Network = second.ID })
	b.until("bare", "complains", reason(v1alpha1.ConditionReady, ReasonNoSubnet, second.ID))
	b.edit("first", func(s *v1alpha1.VPCSpec) { s.DefaultSubnets = []string{"wep"} })
	b.until("first", "complains", reason(v1alpha1.ConditionReady, ReasonSubnetNotFound, "spec.defaultSubnets[0]"))
	if _, err := b.vpcs.Networks().Of("first"); err != nil {
		t.Error(err)
	}
	b.edit("first", func(s *v1alpha1.VPCSpec) { s.DefaultSubnets = []string{"web"} })
	b.ready("first")
}

// A provider that is away is told as such after some calls; what was open stays so. The
// certificate that it proves itself with must be one that is trusted.
func TestEndpointAway(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	b.vpc("gone", func(s *v1alpha1.VPCSpec) { s.Endpoint, s.TLS = away.URL, &v1alpha1.VPCTLS{Insecure: true} })
	b.fails("gone", v1alpha1.ConditionReachable, ReasonNoAnswer, "connect")
	b.closed("gone", ReasonNoAnswer)
	conditionIs(t, b.read("gone"), v1alpha1.ConditionCredentialsAccepted, metav1.ConditionUnknown, ReasonNotTried)

	b.vpc("blue")
	b.ready("blue")
	o, err := b.vpcs.Networks().Of("blue")
	harness.OK(t, err)
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

// What is wrong with the certificates, or where the endpoint leads, is told.
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
	if v.Status.ProjectID != was {
		t.Errorf("project %s, want that of the ports, %s", v.Status.ProjectID, was)
	}
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
	b.until("red", "complains", reason(v1alpha1.ConditionReady, ReasonNoSubnet, red.ID))
	if got := b.vpcs.opener.usage(); got.Allowed != 3 {
		t.Errorf("lanes %+v, want one endpoint's", got)
	}
	b.secret("application", map[string]string{"id": "credential-1", "secret": "wrong"})
	b.fails("red", v1alpha1.ConditionCredentialsAccepted, ReasonCredentialsRefused, "")
	if _, err := b.vpcs.Networks().Of("blue"); err != nil {
		t.Error(err)
	}
	harness.OK(t, b.client.Delete(t.Context(), b.read("red")))
	harness.Eventually(t, limit, "red goes", func() error { return gone(t, b, "red") })
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
	b.until("blue", "waits", reason(v1alpha1.ConditionReady, ReasonDeleting, "1 PodNICs"))
	if _, err := b.vpcs.Networks().Of("blue"); err != nil {
		t.Errorf("closed, so that the port cannot be given back: %v", err)
	}
	harness.OK(t, b.client.Delete(t.Context(), n))
	harness.Eventually(t, limit, "blue goes", func() error { return gone(t, b, "blue") })
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

func conditionIs(t *testing.T, v *v1alpha1.VPC, kind string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	for _, c := range v.Status.Conditions {
		if c.Type == kind && (c.Status != status || c.Reason != reason) {
			t.Errorf("%s is %s for %s, want %s for %s", kind, c.Status, c.Reason, status, reason)
		}
	}
}

// reason wants a condition to be False for a reason, with a word in its message.
func reason(kind, reason, word string) func(*v1alpha1.VPC) error {
	return func(v *v1alpha1.VPC) error {
		for _, c := range v.Status.Conditions {
			if c.Type == kind && c.Status == metav1.ConditionFalse && c.Reason == reason && strings.Contains(c.Message, word) {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", v.Status.Conditions)
	}
}

// gone is nil when there is no VPC of a name.
func gone(t *testing.T, b *bed, name string) error {
	t.Helper()
	err := b.client.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.VPC{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(errors.New("it is there"), err)
}
