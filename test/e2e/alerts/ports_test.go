//go:build e2e

package alerts

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
)

// portLab is a lab in port mode, whose operators serve the webhook.
type portLab struct {
	*testing.T
	*lab.Lab
	model *portcloud.Model
	vpc   string
}

// again repeats a request until the API server accepts it.
func (l *portLab) again(what string, do func() error) {
	l.Helper()
	harness.OK(l.T, kube.Retry(l.Context(), what, do))
}

// waiting creates Pods of a node that no runtime starts: their NICs are created and bound, and nobody
// plugs them.
func (l *portLab) waiting(node string, names ...string) (gone func()) {
	l.Helper()
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{v1alpha1.AnnotationVPC: l.vpc}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
	}
	for _, name := range names {
		l.again("make pod "+name, func() error { return client.IgnoreAlreadyExists(l.Kube.Client.Create(l.Context(), pod(name))) })
	}
	return func() {
		l.Helper()
		for _, name := range names {
			l.again("delete pod "+name, func() error {
				return client.IgnoreNotFound(l.Kube.Client.Delete(l.Context(), pod(name), client.GracePeriodSeconds(0)))
			})
		}
	}
}

// database is the process of Open vSwitch's database on a node.
func (l *portLab) database(node string) int {
	l.Helper()
	dir := filepath.Dir(strings.TrimPrefix(l.model.OVN.Switch(node).Endpoint(), "unix:"))
	data, err := os.ReadFile(filepath.Join(dir, "db.pid"))
	harness.OK(l.T, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	harness.OK(l.T, err)
	return pid
}

// editVPC changes the spec of the VPC.
func (l *portLab) editVPC(edit func(*v1alpha1.VPCSpec)) {
	l.Helper()
	l.again("edit the VPC", func() error {
		v := &v1alpha1.VPC{}
		if err := l.Kube.Client.Get(l.Context(), client.ObjectKey{Name: l.vpc}, v); err != nil {
			return err
		}
		edit(&v.Spec)
		return l.Kube.Client.Update(l.Context(), v)
	})
}

// webhookSecret has the webhook's authorities.
func webhookSecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berth-operator-webhook"}}
}

// raiseWebhook creates the chart's objects of the webhook, which the API server never calls.
func (l *portLab) raiseWebhook() {
	l.Helper()
	objects, err := deploy.Render(deploy.InMode(deploy.PortMode, "test"))
	harness.OK(l.T, err)
	config, err := deploy.Get[admissionregistrationv1.ValidatingWebhookConfiguration](objects, "ValidatingWebhookConfiguration", "berth-ports")
	harness.OK(l.T, err)
	for i := range config.Webhooks {
		config.Webhooks[i].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "namespace"}}
	}
	l.again("make the webhook's Secret", func() error {
		return client.IgnoreAlreadyExists(l.Kube.Client.Create(l.Context(), webhookSecret()))
	})
	l.again("make the webhook's configuration", func() error {
		return client.IgnoreAlreadyExists(l.Kube.Client.Create(l.Context(), config.DeepCopy()))
	})
}

// TestPortAlertsFire has each failure of ports of VPCs, and its end.
func TestPortAlertsFire(t *testing.T) {
	t.Parallel()
	harness.CanRun(t, lab.PortMode)
	raised := harness.RaiseQuick(t, lab.PortMode, lab.Options{
		Nodes: 3, DaemonArgs: []string{atNodeAddress},
		OperatorArgs: []string{"--webhook-address=127.0.0.1:9443", "--orphan-age=1h", "--lease-duration=15s", "--renew-deadline=10s"},
	})
	model, ok := raised.Ports.(*portcloud.Model)
	if !ok {
		t.Fatalf("the lab has %T", raised.Ports)
	}
	l := &portLab{t, raised, model, raised.VPCs[0].Name}
	l.raiseWebhook()
	p := watch(t, raised, 60)
	p.quiet(t)

	t.Log("hosts without an agent")
	for _, name := range []string{"node-1", "node-2"} {
		model.Neutron.RemoveHost(name)
	}
	gone := []func(){l.waiting("node-1", "unbound-1"), l.waiting("node-2", "unbound-2")}
	p.fires(t, "BerthNICBindingsFailOnManyNodes", "BerthNICBindingsFail")

	t.Log("a port that no PodNIC has")
	stray := neutronfake.Port{Network: l.VPCs[0].Network.ID}
	for _, of := range model.Neutron.Ports() { // as those of the NICs above, of another's UID
		if at := strings.LastIndex(of.Device, ":"); strings.HasPrefix(of.Device, "berth:") {
			stray.Device, stray.Owner, stray.Project = of.Device[:at+1]+"00000000-0000-4000-8000-000000000000", of.Owner, of.Project
		}
	}
	stray = model.Neutron.AddPort(stray)
	p.fires(t, "BerthPodsWaitForNICs", "BerthPortsLeftBehind")
	model.Neutron.Remove(stray.ID)
	for _, name := range []string{"node-1", "node-2"} {
		model.Neutron.AddHost(name, neutronfake.Host{})
	}
	for _, do := range gone {
		do()
	}
	p.resolves(t, "BerthNICBindingsFailOnManyNodes", "BerthNICBindingsFail", "BerthPodsWaitForNICs", "BerthPortsLeftBehind")

	t.Log("a quota")
	model.Neutron.SetQuota(len(model.Neutron.Ports()))
	end := l.waiting("node-1", "refused")
	p.fires(t, "BerthVPCExhausted")
	model.Neutron.SetQuota(-1)
	p.resolves(t, "BerthVPCExhausted")
	end()

	t.Log("listings that fail")
	model.Neutron.HTTP.Inject(neutronfake.Fault{Method: "GET", Path: "/v2.0/ports", Status: 500, Type: "HTTPInternalServerError", Message: "no database"})
	p.fires(t, "BerthPortListingsFail")
	model.Neutron.HTTP.ClearFaults()
	p.resolves(t, "BerthPortListingsFail")

	t.Log("credentials")
	var password string
	model.Neutron.Keystone.EditUsers(func(u *neutronfake.User) { password, u.Password = u.Password, "another" })
	model.Neutron.Keystone.RevokeTokens()
	p.fires(t, "BerthVPCCredentialsRefused")
	model.Neutron.Keystone.EditUsers(func(u *neutronfake.User) { u.Password = password })
	p.resolves(t, "BerthVPCCredentialsRefused")

	t.Log("a provider that is away")
	model.Neutron.HTTP.Inject(neutronfake.Fault{HangUp: true})
	p.fires(t, "BerthVPCUnreachable")
	model.Neutron.HTTP.ClearFaults()
	p.resolves(t, "BerthVPCUnreachable")

	t.Log("a subnet that there is not")
	var subnets []string
	l.editVPC(func(s *v1alpha1.VPCSpec) { subnets, s.DefaultSubnets = s.DefaultSubnets, []string{"nowhere"} })
	p.fires(t, "BerthVPCNotReady")
	l.editVPC(func(s *v1alpha1.VPCSpec) { s.DefaultSubnets = subnets })
	p.resolves(t, "BerthVPCNotReady")

	t.Log("Open vSwitch that is away")
	signal := func(s syscall.Signal) {
		t.Helper()
		for _, name := range []string{"node-2", "node-3"} {
			harness.OK(t, syscall.Kill(l.database(name), s))
		}
	}
	signal(syscall.SIGSTOP)
	p.fires(t, "BerthOVSDBAwayOnManyNodes", "BerthOVSDBAway")
	signal(syscall.SIGCONT)
	p.resolves(t, "BerthOVSDBAwayOnManyNodes", "BerthOVSDBAway")

	t.Log("a webhook without a certificate")
	l.again("delete the webhook's Secret", func() error {
		return client.IgnoreNotFound(l.Kube.Client.Delete(t.Context(), webhookSecret()))
	})
	for _, o := range l.Operators() {
		harness.OK(t, o.Stop(time.Minute))
		harness.OK(t, o.Start())
	}
	p.fires(t, "BerthWebhookDown")
	l.raiseWebhook()
	p.resolves(t, "BerthWebhookDown")

	for name := range p.fired { // and nothing besides, but for what an operator that ended does
		if !strings.Contains(brought, name) && name != "BerthNoLeader" && name != "BerthOperatorDown" {
			t.Errorf("%s fired, and nothing of it was wrong", name)
		}
	}
}

// brought are the alerts of TestPortAlertsFire, and one that may fire while listings fail.
const brought = "BerthNICBindingsFailOnManyNodes BerthNICBindingsFail BerthPodsWaitForNICs BerthPortsLeftBehind BerthVPCExhausted BerthPortListingsFail " +
	"BerthVPCCredentialsRefused BerthVPCUnreachable BerthVPCNotReady BerthOVSDBAwayOnManyNodes BerthOVSDBAway BerthWebhookDown BerthVPCCallsFail"
