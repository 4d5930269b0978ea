package providers

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

const limit = controllers.Limit

// namespace is the operator's own namespace.
const namespace = "kube-system"

// planted are secrets that must not occur in any text visible to users.
const (
	planted       = "plantedPassword4711"
	plantedSecret = "plantedSecret0815"
)

// bed is a control plane, and a Neutron behind Keystone with the network blue.
type bed struct {
	t      *testing.T
	client client.Client
	cloud  *neutronfake.Cloud
	server *httptest.Server
	blue   neutronfake.Network
	web    neutronfake.Subnet
	log    *buffer
	vpcs   *Controller
	end    func()
}

// buffer is a log that is also written to the test's output.
type buffer struct {
	t    *testing.T
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	return b.t.Output().Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// newBed starts the controller after prepare.
func newBed(t *testing.T, o Options) *bed {
	t.Helper()
	harness.KubeClean(t)
	b := &bed{t: t, client: harness.KubeClient(t), cloud: neutronfake.New(neutronfake.Options{}), log: &buffer{t: t}}
	b.cloud.Keystone.AddUser(neutronfake.User{Name: "berth", Password: planted, Credential: "credential-1", Secret: plantedSecret})
	b.blue = b.cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	b.web = b.cloud.AddSubnet(neutronfake.Subnet{Name: "web", Network: b.blue.ID, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")})
	b.server = httptest.NewTLSServer(b.cloud)
	t.Cleanup(b.server.Close)
	t.Cleanup(b.leaksNothing)
	b.start(o)
	return b
}

// start runs the controller in a leading operator, with its service account and the chart's roles and admission policies.
func (b *bed) start(o Options) {
	b.t.Helper()
	o.Namespace, o.Logger = namespace, slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	mgr, err := controllers.Manager(harness.OperatorConfig(b.t, deploy.PortMode), Watches())
	harness.OK(b.t, err)
	harness.OK(b.t, podnics.Index(b.t.Context(), mgr.GetFieldIndexer()))
	b.vpcs, err = Setup(mgr, o)
	harness.OK(b.t, err)
	b.end = controllers.Run(b.t, mgr)
}

// trust returns the server's certificate as PEM.
func trust(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// newVPC returns a VPC of the cloud, with a password in the Secret neutron.
func (b *bed) newVPC(name string, edit ...func(*v1alpha1.VPCSpec)) *v1alpha1.VPC {
	v := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: b.server.URL + "/v3",
		Credentials: &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsPassword, SecretName: "neutron"},
		TLS:         &v1alpha1.VPCTLS{CABundle: trust(b.server)}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
	}}
	for _, e := range edit {
		e(&v.Spec)
	}
	return v
}

// vpc creates a VPC.
func (b *bed) vpc(name string, edit ...func(*v1alpha1.VPCSpec)) *v1alpha1.VPC {
	b.t.Helper()
	return controllers.Create(b.t, b.newVPC(name, edit...))
}

func (b *bed) edit(name string, edit func(*v1alpha1.VPCSpec)) {
	b.t.Helper()
	controllers.Edit(b.t, client.ObjectKey{Name: name}, func(v *v1alpha1.VPC) { edit(&v.Spec) })
}

// password returns the data of a Secret that Keystone accepts.
func password(edit ...string) map[string]string {
	data := map[string]string{"username": "berth", "password": planted, "project": "berth"}
	for i := 0; i+1 < len(edit); i += 2 {
		data[edit[i]] = edit[i+1]
	}
	return data
}

// secret creates or changes a Secret in the operator's namespace. Empty values are omitted.
func (b *bed) secret(name string, data map[string]string) {
	b.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		if v != "" {
			s.Data[k] = []byte(v)
		}
	}
	err := b.client.Create(b.t.Context(), s)
	if apierrors.IsAlreadyExists(err) {
		err = b.client.Update(b.t.Context(), s)
	} else {
		b.t.Cleanup(func() { _ = b.client.Delete(context.Background(), s) })
	}
	harness.OK(b.t, err)
}

// nic creates a PodNIC of a VPC.
func (b *bed) nic(vpc, name string) *v1alpha1.PodNIC {
	b.t.Helper()
	return controllers.Create(b.t, &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.PodNICSpec{VPC: vpc}})
}

func (b *bed) read(name string) *v1alpha1.VPC {
	b.t.Helper()
	return controllers.Get[v1alpha1.VPC](b.t, client.ObjectKey{Name: name})
}

// until waits until check returns nil for a VPC.
func (b *bed) until(name, what string, check func(*v1alpha1.VPC) error) *v1alpha1.VPC {
	b.t.Helper()
	return controllers.Await(b.t, client.ObjectKey{Name: name}, what, check)
}

// condition checks a condition of a VPC.
var condition = controllers.Has[*v1alpha1.VPC]

// complains waits until a VPC is not ready for a reason, with a word in the message.
func (b *bed) complains(name, reason, word string) {
	b.t.Helper()
	b.until(name, "complains", condition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, word))
}

// ready waits until a VPC is ready and open for other controllers.
func (b *bed) ready(name string) *v1alpha1.VPC {
	b.t.Helper()
	return b.until(name, "ready", func(v *v1alpha1.VPC) error {
		if !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionReady) || v.Generation != meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionReady).ObservedGeneration {
			return fmt.Errorf("conditions = %+v", v.Status.Conditions)
		}
		_, err := b.vpcs.Networks().Of(name)
		return err
	})
}

// fails waits until a condition of a VPC, and Ready, are False for a reason, with a word in the message. The VPC must be closed for
// other controllers, unless it may stay open.
func (b *bed) fails(name, kind, reason, word string) *v1alpha1.VPC {
	b.t.Helper()
	return b.until(name, "has False condition "+kind, func(v *v1alpha1.VPC) error {
		return errors.Join(condition(kind, metav1.ConditionFalse, reason, word)(v), condition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, word)(v))
	})
}

func (b *bed) opened(name string) podnics.Opened {
	b.t.Helper()
	o, err := b.vpcs.Networks().Of(name)
	harness.OK(b.t, err)
	return o
}

// closed checks that a VPC is closed for other controllers for a reason.
func (b *bed) closed(name, reason string) {
	b.t.Helper()
	_, err := b.vpcs.Networks().Of(name)
	if why, ok := errors.AsType[*NotReady](err); !ok || why.Reason != reason {
		b.t.Errorf("Of(%s): error = %[3]v, want reason %[2]s", name, reason, err)
	}
}

// leaksNothing searches everything visible to users for planted secrets.
func (b *bed) leaksNothing() {
	ctx := context.Background()
	var texts []string
	vpcs, nics, events, old := &v1alpha1.VPCList{}, &v1alpha1.PodNICList{}, &eventsv1.EventList{}, &corev1.EventList{}
	for _, list := range []client.ObjectList{vpcs, nics, events, old} {
		if err := b.client.List(ctx, list); err != nil {
			b.t.Error(err)
		}
		texts = append(texts, fmt.Sprintf("%+v", list))
	}
	texts = append(texts, b.log.String())
	for _, secret := range []string{planted, plantedSecret, "gAAAAAB"} { // the last one is a prefix of tokens
		for _, text := range texts {
			if i := strings.Index(text, secret); i >= 0 {
				b.t.Errorf("secret %s occurs in …%s…", secret, text[max(0, i-100):min(len(text), i+100)])
			}
		}
	}
}
