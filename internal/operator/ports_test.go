package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/test/harness"
)

// The whole for VPC ports, under the roles and policies of the chart: an annotated pod
// gets a port of Neutron bound to its node, and the port goes with it.
func TestPodGetsPort(t *testing.T) {
	c := newCluster(t)
	c.usePortMode()
	cloud := neutronfake.New(neutronfake.Options{})
	cloud.Keystone.AddUser(neutronfake.User{Name: "berth", Password: "correct horse"})
	blue := cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	cloud.AddSubnet(neutronfake.Subnet{Name: "web", Network: blue.ID, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")})
	cloud.AddHost("node-a", neutronfake.Host{})
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)

	o := c.start("one", "--ipam=port", "--unplug-grace=1s")
	o.until(c.leads("one"))
	c.secret("neutron", map[string]string{"username": "berth", "password": "correct horse", "project": "berth"})
	harness.OK(t, c.client.Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: server.URL + "/v3",
		Credentials:       &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsPassword, SecretName: "neutron"},
		TLS:               &v1alpha1.VPCTLS{Insecure: true},
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
	}}))
	harness.OK(t, c.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}))
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "c"}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
	pod.Namespace, pod.Name = "default", "web-0"
	pod.Annotations = map[string]string{v1alpha1.AnnotationVPC: "blue", v1alpha1.AnnotationNICs: "[{subnet: web, ip: 192.168.0.7}]"}
	harness.OK(t, c.client.Create(t.Context(), pod))

	o.until(c.nic(func(n v1alpha1.PodNIC) error {
		if n.Status.Phase != v1alpha1.PhaseBound || len(n.Status.Addresses) != 1 || n.Status.Addresses[0].CIDR != "192.168.0.7/24" || n.Status.NodeName != "node-a" {
			return fmt.Errorf("status %+v", n.Status)
		}
		return nil
	}))
	ports := cloud.Ports()
	if len(ports) != 1 || ports[0].Host != "node-a" || !strings.HasPrefix(ports[0].Device, "berth:test:") || ports[0].Owner != vpcport.Owner {
		t.Errorf("ports %+v", ports)
	}
	o.until(o.shows(map[string]string{
		`berth_operator_vpc_condition{type="Ready",vpc="blue"}`:                     "1",
		`berth_operator_podnics{phase="Bound",vpc="blue"}`:                          "1",
		`berth_operator_port_calls_total{class="ok",operation="Create",vpc="blue"}`: "1",
		`berth_operator_port_calls_allowed`:                                         "8",
		`berth_operator_port_call_seconds_count{operation="Create",vpc="blue"}`:     "1",
		`leader_election_master_status{name="berth-operator"}`:                      "1",
	}))
	for path, status := range map[string]int{"/livez": 200, "/readyz": 200} {
		harness.OK(t, answersWith(o.health, path, status)())
	}

	harness.OK(t, c.client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	o.until(func() error {
		if n := len(cloud.Ports()); n != 0 {
			return fmt.Errorf("%d ports are left", n)
		}
		return nil
	})
	o.logsNone("orbidden", "correct horse")
}

// The whole for a NICPolicy, under the roles and policies of the chart: a pod that says nothing
// gets a port with the policy's subnet and group, and what came before is told of it.
func TestPodGetsNICOfAPolicy(t *testing.T) {
	c := newCluster(t)
	r := deploy.InMode(deploy.PortMode, "test")
	c.useRelease(r)
	cloud := neutronfake.New(neutronfake.Options{})
	blue := cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	cloud.AddSubnet(neutronfake.Subnet{Name: "web", Network: blue.ID, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")})
	cloud.AddSubnet(neutronfake.Subnet{Name: "db", Network: blue.ID, CIDR: netip.MustParsePrefix("192.168.1.0/24"), Gateway: netip.MustParseAddr("192.168.1.1")})
	group := cloud.AddGroup(neutronfake.Group{Name: "db", Project: blue.Project})
	cloud.AddHost("node-a", neutronfake.Host{})
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)

	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{
			NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "c"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		}}
		p.Namespace, p.Name, p.Labels = "default", name, map[string]string{"app": "db"}
		return p
	}
	policy := func(name, subnet string) *v1alpha1.NICPolicy {
		p := &v1alpha1.NICPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.NICPolicySpec{
			PodSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "db"}}, Subnet: subnet, SecurityGroups: []string{group.ID},
		}}
		harness.OK(t, c.client.Create(t.Context(), p))
		return p
	}
	db := policy("db", "db")
	harness.OK(t, c.client.Create(t.Context(), pod("early"))) // before anybody can ask the operator
	at := freeAddress(t)
	c.askWebhook(r, at)
	o := c.start("one", "--ipam=port", "--webhook-address="+at)
	o.until(c.leads("one"))
	harness.OK(t, c.client.Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: server.URL, Project: blue.Project, DefaultSubnets: []string{"web"},
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
		NamespaceLimits:   []v1alpha1.VPCNamespaceLimits{{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"default"}}, SecurityGroups: []string{group.ID}}},
	}}))
	harness.OK(t, c.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}))
	o.until(func() error {
		got := &v1alpha1.NICPolicy{}
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(db), got); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("conditions %+v", got.Status.Conditions)
		}
		return nil
	})
	o.until(func() error { // the API server may learn of the webhook's namespaces a moment later
		p := pod("probe")
		err := c.client.Create(t.Context(), p, client.DryRunAll)
		if p.Annotations[v1alpha1.AnnotationNICPolicy] != "NICPolicy/db" {
			return fmt.Errorf("annotations %v: %w", p.Annotations, err)
		}
		return err
	})
	harness.OK(t, c.client.Create(t.Context(), pod("db-0")))
	o.until(c.nic(func(n v1alpha1.PodNIC) error {
		if n.Status.Phase != v1alpha1.PhaseBound || n.Status.Interface != "eth0" || len(n.Status.Addresses) != 1 || !strings.HasPrefix(n.Status.Addresses[0].CIDR, "192.168.1.") || !slices.Equal(n.Spec.SecurityGroups, []string{group.ID}) {
			return fmt.Errorf("spec %+v, status %+v", n.Spec, n.Status)
		}
		return nil
	}))
	o.until(c.told("early", "NICPolicyMissed", "recreate the pod"))
	policy("late", "web")
	o.until(func() error { // which the operator may learn of later than the pod
		p := pod("probe")
		err := c.client.Create(t.Context(), p, client.DryRunAll)
		if p.Annotations[v1alpha1.AnnotationNICPolicyOverlap] != "NICPolicy/late" {
			return fmt.Errorf("annotations %v: %w", p.Annotations, err)
		}
		return err
	})
	harness.OK(t, c.client.Create(t.Context(), pod("db-1")))
	o.until(c.told("db-1", "NICPolicyOverlap", "the oldest counts, NICPolicy/db; not counted: NICPolicy/late"))
	if ports := cloud.Ports(); len(ports) == 0 || !slices.Equal(ports[0].Groups, []string{group.ID}) {
		t.Errorf("ports %+v", ports)
	}
	o.logsNone("orbidden")
}

// told is nil once a pod has an Event of a reason that says something.
func (c *cluster) told(pod, reason, text string) func() error {
	return func() error {
		list := &eventsv1.EventList{}
		if err := c.client.List(c.t.Context(), list, client.InNamespace("default")); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Kind == "Pod" && e.Regarding.Name == pod && e.Reason == reason && strings.Contains(e.Note, text)
		}) {
			return fmt.Errorf("pod %s has no Event %s with %q among %d", pod, reason, text, len(list.Items))
		}
		return nil
	}
}

// usePortMode has operators that start from now on reach the API server as the chart has
// it in mode port, once that mode's policies are what counts.
func (c *cluster) usePortMode() {
	c.t.Helper()
	c.useRelease(deploy.InMode(deploy.PortMode, "test"))
}

// useRelease is usePortMode for a release of the chart that has ports.
func (c *cluster) useRelease(r deploy.Release) {
	c.t.Helper()
	cfg := harness.OperatorConfigOf(c.t, r)
	c.use(cfg)
	operator := harness.KubeClientFor(c.t, cfg)
	harness.Eventually(c.t, limit, "the operator may write events of VPCs", func() error {
		return operator.Create(c.t.Context(), &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "probe-"}, EventTime: metav1.NowMicro(),
			ReportingController: v1alpha1.OwnerOperator, ReportingInstance: "probe", Action: "Report", Reason: "Probe", Type: corev1.EventTypeNormal,
			Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VPC", Name: "blue"},
		}, client.DryRunAll)
	})
}

// The same by Alcor, with a port that is made and one that is there: the node is told from
// which namespace it takes them, and Alcor's agent, by the port's status, that they work.
func TestPodGetsPortsOfAlcor(t *testing.T) {
	c := newCluster(t)
	c.use(harness.OperatorConfig(t, deploy.PortMode))
	cloud := alcorfake.New(alcorfake.Options{})
	green := cloud.AddNetwork(alcorfake.Network{Name: "green"})
	web := cloud.AddSubnet(alcorfake.Subnet{Name: "web", Network: green.ID, CIDR: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1")})
	given := cloud.AddPort(alcorfake.Port{Network: green.ID, Unsecured: true, Tags: []string{"berth:test:default"}, FixedIPs: []alcorfake.FixedIP{{Subnet: web.ID, IP: netip.MustParseAddr("10.0.0.9")}}})
	cloud.AddHost("node-a", alcorfake.Host{})
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)

	o := c.start("one", "--ipam=port", "--unplug-grace=1s")
	o.until(c.leads("one"))
	harness.OK(t, c.client.Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "green"}, Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderAlcor, Network: "green", Endpoint: server.URL, Project: green.Project,
		Alcor: &v1alpha1.AlcorSpec{NetnsPrefix: "vpc-ns-"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
	}}))
	harness.OK(t, c.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}))
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "c"}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
	pod.Namespace, pod.Name = "default", "web-0"
	pod.Annotations = map[string]string{v1alpha1.AnnotationVPC: "green", v1alpha1.AnnotationNICs: fmt.Sprintf("[{subnet: web, ip: 10.0.0.7}, {portID: %s}]", given.ID)}
	harness.OK(t, c.client.Create(t.Context(), pod))

	phase := func(want v1alpha1.PodNICPhase) {
		t.Helper()
		o.until(func() error {
			list := &v1alpha1.PodNICList{}
			if err := c.client.List(t.Context(), list); err != nil {
				return err
			}
			addresses := map[string]bool{}
			for _, n := range list.Items {
				if n.Status.Phase != want || n.Status.Plug == nil || *n.Status.Plug != (v1alpha1.PortPlug{Type: v1alpha1.PlugNetns, Netns: "vpc-ns-" + green.ID}) || len(n.Status.Addresses) != 1 || n.Status.MTU != 1450 {
					return fmt.Errorf("status %+v", n.Status)
				}
				addresses[n.Status.Addresses[0].CIDR] = true
			}
			if len(addresses) != 2 || !addresses["10.0.0.7/24"] || !addresses["10.0.0.9/24"] {
				return fmt.Errorf("the addresses are %v", addresses)
			}
			return nil
		})
	}
	phase(v1alpha1.PhaseBound)
	for _, p := range cloud.Ports() {
		if p.Owner != vpcport.Owner || p.Host != "node-a" || p.Unsecured != (p.ID == given.ID) {
			t.Errorf("port %+v", p)
		}
		cloud.Programmed(p.ID, "node-a", true)
	}
	phase(v1alpha1.PhaseActive)
	harness.OK(t, c.client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	o.until(func() error {
		left := cloud.Ports()
		if len(left) != 1 || left[0].ID != given.ID || left[0].Device != "" || left[0].Owner != "" || !left[0].Unsecured {
			return fmt.Errorf("left are %+v", left)
		}
		return nil
	})
	if ignored := cloud.Ignored(); len(ignored) > 0 {
		t.Errorf("Alcor does not know what it was asked for: %v", ignored)
	}
}

// secret makes a Secret of the operator's namespace, which goes with the test.
func (c *cluster) secret(name string, data map[string]string) {
	c.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: name}, StringData: data}
	harness.OK(c.t, client.IgnoreNotFound(c.client.Delete(c.t.Context(), s.DeepCopy())))
	harness.OK(c.t, c.client.Create(c.t.Context(), s))
}

// nic is nil while there is one PodNIC, and it is as it should be.
func (c *cluster) nic(is func(v1alpha1.PodNIC) error) func() error {
	return func() error {
		list := &v1alpha1.PodNICList{}
		if err := c.client.List(c.t.Context(), list); err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("%d PodNICs", len(list.Items))
		}
		return is(list.Items[0])
	}
}

// The whole for branch interfaces, under the roles and policies of the chart: a Node has as
// many as its type may have while its instance has a trunk, and pods ask for them.
func TestNodeHasBranches(t *testing.T) {
	c := newCluster(t)
	r := deploy.InMode(deploy.OperatorMode, "test")
	r.Values["ports"] = map[string]any{"enabled": true}
	c.useRelease(r)
	at := freeAddress(t)
	c.askWebhook(r, at)
	o := c.start("one", "--ipam=eni-operator,port", "--first-interface-is-port=false", "--webhook-address="+at)
	o.until(c.leads("one"))
	harness.OK(t, c.client.Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderEC2, Network: "vpc-0a1b2c3d", AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
	}}))
	c.node("node-a", v1alpha1.ENISpec{Trunk: new(true)})
	c.node("node-b", v1alpha1.ENISpec{})
	branches := func(node, want string) func() error {
		return func() error {
			n := &corev1.Node{}
			if err := c.client.Get(t.Context(), client.ObjectKey{Name: node}, n); err != nil {
				return err
			}
			if q, has := n.Status.Capacity[v1alpha1.ResourceBranches]; has != (want != "") || has && q.String() != want {
				return fmt.Errorf("%s has capacity %v, want %q branch interfaces; trunk %+v", node, n.Status.Capacity, want, c.read(node).Status.ENI.Trunk)
			}
			return nil
		}
	}
	o.until(branches("node-a", "9"))
	o.until(c.has("node-b", 8))
	harness.OK(t, branches("node-b", "")())
	o.until(func() error {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
		pod.Namespace, pod.Name, pod.Annotations = "default", "web-0", map[string]string{v1alpha1.AnnotationVPC: "e"}
		if err := c.client.Create(t.Context(), pod, client.DryRunAll); err != nil {
			return err
		}
		if q := pod.Spec.Containers[0].Resources.Limits[v1alpha1.ResourceBranches]; q.String() != "1" {
			return errors.New("the pod does not ask for a branch interface")
		}
		return nil
	})
	unwanted := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"eni":{"trunk":false}}}`))
	harness.OK(t, c.client.Patch(t.Context(), c.read("node-a"), unwanted))
	o.until(branches("node-a", ""))
	o.logsNone("orbidden")
}

// askWebhook has the API server ask about pods at an address, as a release of the chart has
// it ask by the operator's Service.
func (c *cluster) askWebhook(r deploy.Release, address string) {
	c.t.Helper()
	objects, err := deploy.Render(r)
	harness.OK(c.t, err)
	changes, err := deploy.Get[admissionregistrationv1.MutatingWebhookConfiguration](objects, "MutatingWebhookConfiguration", webhook.ConfigurationName)
	harness.OK(c.t, err)
	judges, err := deploy.Get[admissionregistrationv1.ValidatingWebhookConfiguration](objects, "ValidatingWebhookConfiguration", webhook.ConfigurationName)
	harness.OK(c.t, err)
	here := func(c *admissionregistrationv1.WebhookClientConfig) {
		*c = admissionregistrationv1.WebhookClientConfig{URL: new("https://" + address + *c.Service.Path)}
	}
	for i := range changes.Webhooks {
		here(&changes.Webhooks[i].ClientConfig)
	}
	for i := range judges.Webhooks {
		here(&judges.Webhooks[i].ClientConfig)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: webhook.SecretName}}
	for _, o := range []client.Object{secret, &judges, &changes} {
		harness.OK(c.t, c.client.Create(c.t.Context(), o))
		c.t.Cleanup(func() { harness.OK(c.t, c.client.Delete(context.Background(), o)) })
	}
}

// The first interface of pods may be a branch where there are such, and it is no port anyway.
func TestFirstOf(t *testing.T) {
	for ipam, want := range map[string]bool{"eni-operator,port": true, "port": false, "pool,port": false, "eni-operator": false} {
		cfg := config.Operator{OperatorCluster: config.OperatorCluster{IPAM: strings.Split(ipam, ",")}}
		if first := firstOf(cfg); first.MayBePort != want || first.IsPort || first.Name != "eth0" {
			t.Errorf("%s: %+v", ipam, first)
		}
		cfg.FirstIsPort = true
		if first := firstOf(cfg); first.MayBePort || !first.IsPort {
			t.Errorf("%s, where it is a port: %+v", ipam, first)
		}
	}
}
