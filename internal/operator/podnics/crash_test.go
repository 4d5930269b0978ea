package podnics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/crashsource"
)

// mortal is an operator in its own process that a failpoint may kill.
type mortal struct {
	Kubeconfig string
	Neutron    string // URL
	MAC        v1alpha1.PortMAC
	EC2        *amazon // used instead of Neutron
}

func child(m mortal) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", m.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // cannot be set in a kubeconfig file
	ctx := context.Background()
	if m.EC2 != nil {
		return m.EC2.operate(ctx, cfg)
	}
	provider, err := neutron.Open(neutron.Settings{Endpoint: m.Neutron, Project: "p"})
	if err != nil {
		return err
	}
	network, err := provider.Network(ctx, "blue")
	if err != nil {
		return err
	}
	nets := &networks{}
	spec := specA()
	spec.PortMAC = m.MAC
	nets.set("a", Opened{Provider: provider, Network: network, Spec: spec})
	return operate(ctx, cfg, Options{Networks: nets})
}

// operate runs an operator until it is killed.
func operate(ctx context.Context, cfg *rest.Config, o Options) error {
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, mgr, err := assemble(ctx, cfg, o)
	if err != nil {
		return err
	}
	return errors.Join(failpoint.Err(), mgr.Start(ctx))
}

// stage is a Neutron, an API server, and operators that get killed.
type stage struct {
	*world
	cloud   *neutronfake.Cloud
	network string // its ID
	deaths  func() int
}

func newStage(t *testing.T, failpoints string, mac v1alpha1.PortMAC) *stage {
	t.Helper()
	harness.KubeClean(t)
	c := neutronfake.New(neutronfake.Options{})
	n := c.AddNetwork(neutronfake.Network{Name: "blue", Project: "p"})
	c.AddSubnet(neutronfake.Subnet{Name: "web", Network: n.ID, CIDR: web.CIDR, Gateway: web.Gateway})
	c.AddHost("node-a", neutronfake.Host{})
	c.AddHost("node-b", neutronfake.Host{})
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	harness.OK(t, kube.WriteKubeconfig(kubeconfig, operatorConfig(t)))
	s := &stage{world: &world{t: t, daemons: controllers.Daemons{}}, cloud: c, network: n.ID}
	controllers.Create(t, &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: specA()})
	s.makeNode("node-a")
	s.makeNode("node-b")
	s.deaths = crashsource.Restarted(t, mortal{Kubeconfig: kubeconfig, Neutron: server.URL, MAC: mac}, failpoints)
	return s
}

// live runs a scenario with all kinds of calls: pods that are created, moved and deleted, a removed NIC, a PodNIC that
// outlives pods, and a user's port.
func (s *stage) live() {
	given := s.cloud.AddPort(neutronfake.Port{Network: s.network, Name: "mine", Project: "p", Tags: []string{vpcport.NamespaceTag(cluster, "default")}})
	s.podnic("db", v1alpha1.PodNICSpec{})
	pods := map[string]string{"web": "", "pair": `[{}, {subnet: web}]`, "given": `[{portID: ` + given.ID + `}]`, "db-0": `[{name: eth0, nic: db}]`}
	for name, nics := range pods {
		s.pod(name, nics)
		s.schedule(name, "node-a")
	}
	for name := range pods {
		s.awaitNIC(name, "eth0", "is bound", boundAt("node-a"))
	}
	second := s.awaitNIC("pair", "eth1", "is bound", boundAt("node-a"))
	db := s.awaitObject("db", "is bound", boundAt("node-a"))
	s.annotate("pair", `[{}]`)
	s.awaitGone(second.Name)
	s.deletePod("db-0")
	s.pod("db-1", `[{name: eth0, nic: db}]`)
	s.schedule("db-1", "node-b")
	moved := s.awaitObject("db", "moves", boundAt("node-b"))
	if moved.Status.PortID != db.Status.PortID || moved.Status.MAC != db.Status.MAC {
		s.t.Errorf("status of PodNIC db changed from %+v to %+v, want the same port", db.Status, moved.Status)
	}
	web := s.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	s.deletePod("web")
	s.awaitGone(web.Name)
	s.deletePod("given")
	harness.Eventually(s.t, limit, "user's port returned", func() error {
		i := slices.IndexFunc(s.cloud.Ports(), func(p neutronfake.Port) bool { return p.ID == given.ID })
		if i < 0 {
			return errors.New("the port is gone")
		}
		if p := s.cloud.Ports()[i]; p.Device != "" || p.Host != "" {
			return fmt.Errorf("port = %+v, want no device and no host", p)
		}
		return nil
	})
}

// sound waits until each PodNIC has exactly one port and there are no others except the user's.
func (s *stage) sound() {
	harness.Eventually(s.t, limit, "ports match PodNICs", func() error {
		list := &v1alpha1.PodNICList{}
		if err := s.client().List(s.t.Context(), list, client.InNamespace("default")); err != nil {
			return err
		}
		want := map[string]string{"": "a user's"}
		for _, o := range list.Items {
			if o.Status.PortID == "" {
				return fmt.Errorf("PodNIC %s has no port: %+v", o.Name, o.Status)
			}
			want[vpcport.Device(cluster, string(o.UID))] = o.Status.PortID
		}
		ports := s.cloud.Ports()
		for _, p := range ports {
			if id, ok := want[p.Device]; !ok || p.Device != "" && p.ID != id {
				return fmt.Errorf("port %+v belongs to no PodNIC", p)
			}
		}
		if len(ports) != len(want) {
			return fmt.Errorf("got %d ports, want %d", len(ports), len(want))
		}
		return nil
	})
}

// An operator killed at any step leaves nothing that its successor does not complete: each NIC has one port, none was
// created twice, none is left over, and the user's port still exists.
func TestKillAtEveryFailpoint(t *testing.T) {
	for _, name := range harness.Sample(t, 9, controllers.Failpoints(t, "operator.port.", 15)) {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, name+"=kill", v1alpha1.PortMACDerived)
			s.live()
			s.sound()
			controllers.AwaitValue(t, "killed operators", s.deaths, 1)
			made := 0
			for _, call := range s.cloud.HTTP.Calls() {
				if call.Method == "POST" && call.Status == 201 {
					made += strings.Count(call.Body, `"network_id"`)
				}
			}
			if made != 4 { // web, pair's two, db
				t.Errorf("%d ports were created, want 4", made)
			}
		})
	}
}

// The same with MAC addresses chosen by the provider, where only a look shows whether a port was created.
func TestKillAfterCreateWithoutChosenMAC(t *testing.T) {
	for _, name := range harness.Sample(t, 3, []string{"operator.port.create.before", "operator.port.create.after", "operator.port.record.before"}) {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, name+"=kill", v1alpha1.PortMACProvider)
			s.live()
			s.sound()
		})
	}
}

// amazon is an EC2 with one VPC object that operators in their own processes use.
type amazon struct {
	URL, Region string
	UID         string // of the VPC object
	Spec        v1alpha1.VPCSpec
}

func (a *amazon) api(ctx context.Context) (cloud.API, error) {
	c, err := aws.New(ctx, aws.Options{Region: a.Region, EC2Endpoint: a.URL})
	if err != nil {
		return nil, err
	}
	return pace.Cloud(c, pace.Options{}), nil
}

func (a *amazon) operate(ctx context.Context, cfg *rest.Config) error {
	api, err := a.api(ctx)
	if err != nil {
		return err
	}
	p := branch.Open(branch.Settings{Cloud: api, Cluster: cluster, VPC: a.Spec.Network, Settle: time.Second, Cooling: time.Second})
	network, err := p.Network(ctx, a.Spec.Network)
	if err != nil {
		return err
	}
	nets := &networks{}
	nets.set("e", Opened{UID: a.UID, Provider: p, Network: network, Spec: a.Spec})
	return operate(ctx, cfg, Options{Networks: nets, WarmIdle: 3 * time.Second, WarmKeep: time.Second})
}

// warmStage is an EC2, an API server with the Node node-1, and operators that get killed.
type warmStage struct {
	*branches
	lab    *endpoints.Cloud
	deaths func() int
}

func newWarmStage(t *testing.T, failpoints string) *warmStage {
	t.Helper()
	harness.KubeClean(t)
	lab, err := endpoints.Serve(spec.Default())
	harness.OK(t, err)
	t.Cleanup(lab.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", lab.Credentials().AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", lab.Credentials().SecretAccessKey)
	one := int32(1)
	a := &amazon{URL: lab.EC2URL, Region: lab.Cloud.Region(), Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderEC2, Network: lab.Snapshot().VPCs[0].ID, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
		EC2: &v1alpha1.EC2Spec{WarmBranches: &one},
	}}
	s := &warmStage{branches: &branches{world: &world{t: t, daemons: controllers.Daemons{}}}, lab: lab}
	a.UID = string(controllers.Create(t, &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: a.Spec}).UID)
	instance := lab.Instances.ID("node-a")
	n := controllers.Create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{ProviderID: "aws:///lab-1a/" + instance}})
	s.ready(n.Name, corev1.ConditionTrue)
	s.branchesOf(n.Name, limits.Branches("m5.large"))
	api, err := a.api(t.Context())
	harness.OK(t, err)
	in, err := api.Instance(t.Context(), instance)
	harness.OK(t, err)
	trunk, err := api.CreateENI(t.Context(), cloud.CreateENI{
		SubnetID: in.ENIs[0].SubnetID, Type: cloud.InterfaceTrunk, Tags: map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: instance},
	})
	harness.OK(t, err)
	_, err = api.AttachENI(t.Context(), trunk.ID, instance, 1)
	harness.OK(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	harness.OK(t, kube.WriteKubeconfig(kubeconfig, operatorConfig(t)))
	s.deaths = crashsource.Restarted(t, mortal{Kubeconfig: kubeconfig, EC2: a}, failpoints)
	return s
}

// devices returns the devices of all existing branches by their IDs.
func (s *warmStage) devices() map[string]string {
	out := map[string]string{}
	for _, e := range s.lab.Snapshot().ENIs {
		if e.Tags[eni.TagOwner] == branch.Owner {
			out[e.ID] = e.Tags[eni.TagNIC]
		}
	}
	return out
}

// sound waits until each PodNIC has its own branch with its mark, and the pool has this many.
func (s *warmStage) sound(pool int) {
	s.t.Helper()
	harness.Eventually(s.t, limit, "branches match PodNICs", func() error {
		left := s.devices()
		for _, pod := range []string{"web-0", "web-1", "web-2"} {
			for _, o := range s.nicsOf(pod) {
				id := o.Status.PortID
				if left[id] != vpcport.Device(cluster, string(o.UID)) {
					return fmt.Errorf("PodNIC %s has port %q; all ports: %v", o.Name, id, left)
				}
				delete(left, id)
			}
		}
		for id, device := range left {
			if !strings.HasPrefix(device, vpcport.Device(cluster, "warm/")) {
				return fmt.Errorf("port %s belongs to %q, want a PodNIC or the pool", id, device)
			}
		}
		if len(left) != pool {
			return fmt.Errorf("pool has %v, want %d branches", left, pool)
		}
		return nil
	})
}

// An operator killed at any step leaves nothing that its successor does not complete: no two NICs have the same branch,
// and none is left over when nobody needs one.
func TestKilledWithWarmBranches(t *testing.T) {
	names := controllers.Failpoints(t, "operator.warm.", 4)
	for _, step := range []string{"record", "change", "delete"} { // the steps that take, mark and return a warm port
		names = append(names, "operator.port."+step+".before", "operator.port."+step+".after")
	}
	for _, name := range harness.Sample(t, 9, names) {
		t.Run(name, func(t *testing.T) {
			s := newWarmStage(t, name+"=kill")
			first := s.starts("web-0", "", "node-1")
			s.sound(1)
			warm := slices.DeleteFunc(slices.Collect(maps.Keys(s.devices())), func(id string) bool { return id == first.Status.PortID })
			second := s.starts("web-1", "", "node-1")
			s.sound(1)
			if s.deaths() == 0 && !slices.Contains(warm, second.Status.PortID) {
				t.Errorf("web-1 has port %s, want one of the warm ports %v", second.Status.PortID, warm)
			}
			third := s.starts("web-2", "", "node-1")
			if a, b, c := first.Status.PortID, second.Status.PortID, third.Status.PortID; a == b || b == c || a == c {
				t.Errorf("ports of the three pods are %s, %s and %s, want three different ones", a, b, c)
			}
			s.deletePod("web-1")
			s.awaitGone(second.Name)
			s.sound(1)
			for _, pod := range []string{"web-0", "web-2"} {
				s.deletePod(pod)
			}
			controllers.AwaitValue(t, "remaining branches", s.devices, nil)
			controllers.AwaitValue(t, "killed operators", s.deaths, 1)
		})
	}
}
