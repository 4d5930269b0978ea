package operator

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// everybody are all namespaces.
var everybody = v1alpha1.VPCNamespaces{Names: []string{"*"}}

// serveNeutron serves a Neutron with the network blue, its subnet web and the host node-a.
func serveNeutron(t *testing.T) (*neutronfake.Cloud, neutronfake.Network, string) {
	t.Helper()
	cloud := neutronfake.New(neutronfake.Options{})
	blue := cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	cloud.AddSubnet(neutronfake.Subnet{Name: "web", Network: blue.ID, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")})
	cloud.AddHost("node-a", neutronfake.Host{})
	return cloud, blue, serveHTTP(t, cloud)
}

func serveHTTP(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func (c *cluster) vpc(name string, spec v1alpha1.VPCSpec) {
	c.t.Helper()
	spec.AllowedNamespaces = &everybody
	c.create(&v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

// asks makes a pod with NICs in a VPC on node-a.
func (c *cluster) asks(vpc, nics string) *corev1.Pod {
	c.t.Helper()
	pod := newPod("web-0")
	pod.Annotations = map[string]string{v1alpha1.AnnotationVPC: vpc, v1alpha1.AnnotationNICs: nics}
	c.create(bareNode("node-a"), pod)
	return pod
}

// The whole for VPC ports, under the roles and policies of the chart: an annotated pod
// gets a port of Neutron bound to its node, and the port goes with it.
func TestPodGetsPort(t *testing.T) {
	c := newCluster(t)
	c.useRelease(deploy.InMode(deploy.PortMode, "test"))
	cloud, _, url := serveNeutron(t)
	cloud.Keystone.AddUser(neutronfake.User{Name: "berth", Password: "correct horse"})
	o := c.start("one", "--ipam=port", "--unplug-grace=1s")
	o.until(c.leads("one"))
	c.secret("neutron", map[string]string{"username": "berth", "password": "correct horse", "project": "berth"})
	c.vpc("blue", v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: url + "/v3", TLS: &v1alpha1.VPCTLS{Insecure: true},
		Credentials: &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsPassword, SecretName: "neutron"},
	})
	pod := c.asks("blue", "[{subnet: web, ip: 192.168.0.7}]")
	c.awaitNICs(o, func(n *v1alpha1.PodNIC) bool {
		return n.Status.Phase == v1alpha1.PhaseBound && addressesOf(n) == "192.168.0.7/24" && n.Status.NodeName == "node-a"
	})
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
	o.healthy()
	controllers.DeletePod(t, client.ObjectKeyFromObject(pod))
	o.until(func() error { return harness.Equal("ports", len(cloud.Ports()), 0) })
	o.logsNone("orbidden", "correct horse")
}

// The whole for a NICPolicy, under the roles and policies of the chart: a pod that says nothing
// gets a port with the policy's subnet and group, and a pod of before is reported.
func TestPodGetsNICOfAPolicy(t *testing.T) {
	c := newCluster(t)
	r := deploy.InMode(deploy.PortMode, "test")
	c.useRelease(r)
	cloud, blue, url := serveNeutron(t)
	cloud.AddSubnet(neutronfake.Subnet{Name: "db", Network: blue.ID, CIDR: netip.MustParsePrefix("192.168.1.0/24"), Gateway: netip.MustParseAddr("192.168.1.1")})
	group := cloud.AddGroup(neutronfake.Group{Name: "db", Project: blue.Project})
	pod := func(name string) *corev1.Pod {
		p := newPod(name)
		p.Labels = map[string]string{"app": "db"}
		return p
	}
	policy := func(name, subnet string) *v1alpha1.NICPolicy {
		p := &v1alpha1.NICPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.NICPolicySpec{
			PodSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "db"}}, Subnet: subnet, SecurityGroups: []string{group.ID},
		}}
		c.create(p)
		return p
	}
	db := policy("db", "db")
	c.create(pod("early")) // before anybody can ask the operator
	at := freeAddress(t)
	controllers.ServeWebhookAt(t, r, at)
	o := c.start("one", "--ipam=port", "--webhook-address="+at)
	o.until(c.leads("one"))
	c.vpc("blue", v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: url, Project: blue.Project, DefaultSubnets: []string{"web"},
		NamespaceLimits: []v1alpha1.VPCNamespaceLimits{{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"default"}}, SecurityGroups: []string{group.ID}}},
	})
	c.create(bareNode("node-a"))
	controllers.Await(t, client.ObjectKeyFromObject(db), "is ready", controllers.If(func(p *v1alpha1.NICPolicy) bool {
		return meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady)
	}))
	annotated := func(key, value string) func() error {
		return func() error {
			p := pod("probe")
			err := c.client.Create(t.Context(), p, client.DryRunAll)
			if p.Annotations[key] != value {
				return fmt.Errorf("annotations %v: %w", p.Annotations, err)
			}
			return err
		}
	}
	o.until(annotated(v1alpha1.AnnotationNICPolicy, "NICPolicy/db")) // the API server may learn of the webhook's namespaces a moment later
	c.create(pod("db-0"))
	c.awaitNICs(o, func(n *v1alpha1.PodNIC) bool {
		return n.Status.Phase == v1alpha1.PhaseBound && n.Status.Interface == "eth0" && strings.HasPrefix(addressesOf(n), "192.168.1.") && slices.Equal(n.Spec.SecurityGroups, []string{group.ID})
	})
	controllers.AwaitEvent(t, newPod("early"), "NICPolicyMissed", "recreate the pod")
	policy("late", "web")
	o.until(annotated(v1alpha1.AnnotationNICPolicyOverlap, "NICPolicy/late")) // which the operator may learn of later than the pod
	c.create(pod("db-1"))
	controllers.AwaitEvent(t, newPod("db-1"), "NICPolicyOverlap", "the oldest counts, NICPolicy/db; not counted: NICPolicy/late")
	if ports := cloud.Ports(); len(ports) == 0 || !slices.Equal(ports[0].Groups, []string{group.ID}) {
		t.Errorf("ports %+v", ports)
	}
	o.logsNone("orbidden")
}

// useRelease has operators that start from now on reach the API server as a release of the chart with
// ports has it, once its policies are what counts.
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

// The same by Alcor, with a port that is made and one that is there: the node learns from
// which namespace it takes them, and Alcor's agent, by the port's status, that they work.
func TestPodGetsPortsOfAlcor(t *testing.T) {
	c := newCluster(t)
	c.use(harness.OperatorConfig(t, deploy.PortMode))
	cloud := alcorfake.New(alcorfake.Options{})
	green := cloud.AddNetwork(alcorfake.Network{Name: "green"})
	web := cloud.AddSubnet(alcorfake.Subnet{Name: "web", Network: green.ID, CIDR: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1")})
	given := cloud.AddPort(alcorfake.Port{Network: green.ID, Unsecured: true, Tags: []string{"berth:test:default"}, FixedIPs: []alcorfake.FixedIP{{Subnet: web.ID, IP: netip.MustParseAddr("10.0.0.9")}}})
	cloud.AddHost("node-a", alcorfake.Host{})
	o := c.start("one", "--ipam=port", "--unplug-grace=1s")
	o.until(c.leads("one"))
	c.vpc("green", v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderAlcor, Network: "green", Endpoint: serveHTTP(t, cloud), Project: green.Project, Alcor: &v1alpha1.AlcorSpec{NetnsPrefix: "vpc-ns-"},
	})
	pod := c.asks("green", fmt.Sprintf("[{subnet: web, ip: 10.0.0.7}, {portID: %s}]", given.ID))
	phase := func(want v1alpha1.PodNICPhase) {
		t.Helper()
		plug := v1alpha1.PortPlug{Type: v1alpha1.PlugNetns, Netns: "vpc-ns-" + green.ID}
		all := c.awaitNICs(o, func(n *v1alpha1.PodNIC) bool {
			return n.Status.Phase == want && n.Status.Plug != nil && *n.Status.Plug == plug && n.Status.MTU == 1450
		}, "eth0", "eth1")
		if a, b := addressesOf(all["eth0"]), addressesOf(all["eth1"]); a != "10.0.0.7/24" || b != "10.0.0.9/24" {
			t.Errorf("the addresses are %s and %s", a, b)
		}
	}
	phase(v1alpha1.PhaseBound)
	for _, p := range cloud.Ports() {
		if p.Owner != vpcport.Owner || p.Host != "node-a" || p.Unsecured != (p.ID == given.ID) {
			t.Errorf("port %+v", p)
		}
		cloud.Programmed(p.ID, "node-a", true)
	}
	phase(v1alpha1.PhaseActive)
	controllers.DeletePod(t, client.ObjectKeyFromObject(pod))
	o.until(func() error {
		left := cloud.Ports()
		if len(left) != 1 || left[0].ID != given.ID || left[0].Device != "" || left[0].Owner != "" || !left[0].Unsecured {
			return fmt.Errorf("left are %+v", left)
		}
		return nil
	})
	harness.OK(t, controllers.Same("requests that Alcor does not know", len(cloud.Ignored()), 0))
}

// secret makes a Secret of the operator's namespace, which goes with the test.
func (c *cluster) secret(name string, data map[string]string) {
	c.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: name}, StringData: data}
	harness.OK(c.t, client.IgnoreNotFound(c.client.Delete(c.t.Context(), s.DeepCopy())))
	c.create(s)
}

// addressesOf are the addresses of a NIC, with their lengths.
func addressesOf(n *v1alpha1.PodNIC) string {
	var all []string
	for _, a := range n.Status.Addresses {
		all = append(all, a.CIDR)
	}
	return strings.Join(all, " ")
}

// awaitNICs waits until there are PodNICs of these interfaces of pods, by default eth0, and no others, each as it should
// be, and returns them.
func (c *cluster) awaitNICs(o *process, is func(*v1alpha1.PodNIC) bool, interfaces ...string) (all map[string]*v1alpha1.PodNIC) {
	c.t.Helper()
	if len(interfaces) == 0 {
		interfaces = []string{"eth0"}
	}
	o.until(func() error {
		list := &v1alpha1.PodNICList{}
		if err := c.client.List(c.t.Context(), list); err != nil {
			return err
		}
		all = map[string]*v1alpha1.PodNIC{}
		for i := range list.Items {
			n := &list.Items[i]
			if all[n.Status.Interface] = n; !is(n) {
				return fmt.Errorf("PodNIC %s: %+v, %+v", n.Name, n.Spec, n.Status)
			}
		}
		if names := slices.Sorted(maps.Keys(all)); !slices.Equal(names, interfaces) || len(list.Items) != len(names) {
			return fmt.Errorf("%d PodNICs, of the interfaces %v", len(list.Items), names)
		}
		return nil
	})
	return all
}

// The whole for branch interfaces, under the roles and policies of the chart: a Node has as
// many as its type may have while its instance has a trunk, and pods ask for them.
func TestNodeHasBranches(t *testing.T) {
	c := newCluster(t)
	r := deploy.InMode(deploy.OperatorMode, "test")
	r.Values["ports"] = map[string]any{"enabled": true}
	c.useRelease(r)
	at := freeAddress(t)
	controllers.ServeWebhookAt(t, r, at)
	o := c.start("one", "--ipam=eni-operator,port", "--first-interface-is-port=false", "--webhook-address="+at)
	o.until(c.leads("one"))
	c.vpc("e", v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, Network: "vpc-0a1b2c3d"})
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
		pod := newPod("web-0")
		pod.Spec.NodeName, pod.Annotations = "", map[string]string{v1alpha1.AnnotationVPC: "e"}
		if err := c.client.Create(t.Context(), pod, client.DryRunAll); err != nil {
			return err
		}
		if q := pod.Spec.Containers[0].Resources.Limits[v1alpha1.ResourceBranches]; q.String() != "1" {
			return errors.New("the pod does not ask for a branch interface")
		}
		return nil
	})
	controllers.Merge(t, c.read("node-a"), `{"spec":{"eni":{"trunk":false}}}`)
	o.until(branches("node-a", ""))
	o.logsNone("orbidden")
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
