package podnics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/crashsource"
)

// mortal is an operator that a failpoint may kill, in a process of its own.
type mortal struct {
	Kubeconfig string
	Neutron    string // URL
	MAC        v1alpha1.PortMAC
	EC2        *amazon // in the place of Neutron
}

func child(m mortal) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", m.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // a file cannot say so
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

// operate is an operator until it is killed.
func operate(ctx context.Context, cfg *rest.Config, o Options) error {
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, mgr, err := assemble(ctx, cfg, o)
	if err != nil {
		return err
	}
	return errors.Join(failpoint.Err(), mgr.Start(ctx))
}

// stage is a Neutron, an API server, and operators that die.
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
	harness.OK(t, s.client().Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: specA()}))
	s.makeNode("node-a")
	s.makeNode("node-b")
	s.deaths = crashsource.Restarted(t, mortal{Kubeconfig: kubeconfig, Neutron: server.URL, MAC: mac}, failpoints)
	return s
}

// live is a life with all that leads to calls: pods that come, move and go, a NIC that is
// removed, a PodNIC that outlives pods, a user's port.
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
		s.t.Errorf("was %+v, is %+v", db.Status, moved.Status)
	}
	web := s.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	s.deletePod("web")
	s.awaitGone(web.Name)
	s.deletePod("given")
	harness.Eventually(s.t, limit, "the user's port is given back", func() error {
		i := slices.IndexFunc(s.cloud.Ports(), func(p neutronfake.Port) bool { return p.ID == given.ID })
		if i < 0 {
			return errors.New("it is gone")
		}
		if p := s.cloud.Ports()[i]; p.Device != "" || p.Host != "" {
			return fmt.Errorf("it is %+v", p)
		}
		return nil
	})
}

// sound waits until the ports are those of the PodNICs, one each, and the user's.
func (s *stage) sound() {
	harness.Eventually(s.t, limit, "ports and PodNICs agree", func() error {
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
				return fmt.Errorf("port %+v is nobody's", p)
			}
		}
		if len(ports) != len(want) {
			return fmt.Errorf("%d ports, want %d", len(ports), len(want))
		}
		return nil
	})
}

// An operator that is killed at any step leaves nothing that the next one does not
// finish: each NIC has one port, none was made twice, none is left, and the user's is
// there.
func TestKillAtEveryFailpoint(t *testing.T) {
	var names []string
	for _, name := range failpoint.Names() {
		if strings.HasPrefix(name, "operator.port.") {
			names = append(names, name)
		}
	}
	if len(names) < 15 {
		t.Fatalf("only %v are registered", names)
	}
	for _, name := range harness.Sample(t, 9, names) {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, name+"=kill", v1alpha1.PortMACDerived)
			s.live()
			s.sound()
			if n := s.deaths(); n != 1 {
				t.Errorf("%d operators died", n)
			}
			made := 0
			for _, call := range s.cloud.HTTP.Calls() {
				if call.Method == "POST" && call.Status == 201 {
					made += strings.Count(call.Body, `"network_id"`)
				}
			}
			if made != 4 { // web, pair's two, db
				t.Errorf("%d ports were made", made)
			}
		})
	}
}

// The same where the provider chooses MAC addresses, and nothing but a look tells whether
// a port was made.
func TestKillAfterCreateWithoutChosenMAC(t *testing.T) {
	for _, name := range harness.Sample(t, 3, []string{"operator.port.create.before", "operator.port.create.after", "operator.port.record.before"}) {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, name+"=kill", v1alpha1.PortMACProvider)
			s.live()
			s.sound()
		})
	}
}
