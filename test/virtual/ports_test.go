package virtual

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// blue is a network of Neutron's.
var blue = vpcport.Network{ID: "n-blue", Name: "blue", MTU: 1442, Subnets: []vpcport.Subnet{{
	ID: "s-web", Name: "web", CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1"),
}}}

// strangers is a port that is plugged at the start and in no record.
const strangers = "0badc0de-76f7-46d4-9d11-000000000000"

// recorded reports whether a record of the present daemon names a port.
func (n *node) recorded(port string) bool {
	files, _ := filepath.Glob(filepath.Join(n.dir(n.running().number), "attachments", "attachment-*.json"))
	return slices.ContainsFunc(files, func(path string) bool {
		data, _ := os.ReadFile(path)
		return strings.Contains(string(data), port)
	})
}

// inPortMode makes a node in port mode with a fake Neutron. Two unknown NICs are plugged, one of them
// by half.
func inPortMode(t *testing.T) (m *nics) {
	n := newNode(t, slices.Concat(quick, []string{"--ipam=port", "--ovsdb="})...)
	n.pods.cooling = 0 // addresses go with their ports
	// This orphan age keeps the collection of orphans from hiding a leak.
	c := newCluster(t, n.log, "--ipam=port", "--listing-interval=20s", "--settle-time=2s", "--orphan-interval=30s", "--orphan-age=1h")
	// The provider chooses MAC addresses, so it does not refuse a second port for a NIC.
	c.vpc = portfake.New(portfake.Options{Latency: 100 * time.Millisecond, Lag: time.Second, Traits: vpcport.Traits{MaxBatch: 64, MaxFilter: 100, Revisions: true}})
	c.vpc.AddNetwork(blue)
	c.vpc.AddHost(nodeName, vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int"})
	user := c.vpc.AddPort(vpcport.Port{NetworkID: blue.ID, Name: "mine", Tags: []string{vpcport.NamespaceTag(clusterName, "default")}, Addresses: []vpcport.FixedIP{{SubnetID: "s-web", IP: netip.MustParseAddr("192.168.0.77")}}})
	n.plugs.LeaveHalfMade("tapdeadbeef-00")
	_, err := n.plugs.Open(nil).Plug(t.Context(), plug.Want{
		Ref:       plug.Ref{Attachment: "bth0123456789ab", PortID: strangers, Kind: plug.OVS, Bridge: "br-int", Pod: plug.Pod{Netns: "/run/netns/gone", IfName: "eth0"}},
		Interface: plug.Interface{MAC: []byte{0xfa, 0x16, 0x3e, 0xff, 0xff, 0xff}, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.250/24")}},
	})
	check(t, err)
	n.plugs.Latency = 300 * time.Millisecond
	n.plugs.Changed = func(id string, plugged bool) {
		if id != strangers && !n.recorded(id) {
			t.Errorf("port %s changed to plugged %v while no record names it", id, plugged)
		}
		if plugged {
			c.vpc.Plug(id, nodeName)
		} else {
			c.vpc.Unplug(id)
		}
	}
	spec := v1alpha1.VPCSpec{Provider: v1alpha1.ProviderNeutron, Network: "blue"}
	m = withNICs(n, c, nicrequest.First{Name: nicrequest.FirstInterface, IsPort: true}, spec, map[string]string{
		"pod-0": `[{}, {}]`, "pod-2": fmt.Sprintf(`[{portID: %s}]`, user.ID), "pod-3": `[{name: eth0, nic: kept}]`, "pod-4": `[{}, {}]`, "pod-6": `[{name: eth0, nic: kept}]`,
	})
	m.ports = func() (out []port) {
		for _, p := range c.vpc.All() {
			if p.Device != "" || p.ID != user.ID {
				out = append(out, port{p.ID, p.Device, p.Addresses[0].IP})
			}
		}
		return out
	}
	check(t, c.admin.Create(t.Context(), &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}, Spec: v1alpha1.PodNICSpec{VPC: vpcName}}))
	return m
}

// exercisePorts makes, edits, replaces and removes pods with one NIC or two, with a user's
// port, and with a PodNIC that outlives its pods.
func (m *nics) exercisePorts() {
	m.t.Helper()
	m.pods.each(0, 4, m.pods.add)
	m.settle()
	m.annotate("pod-0", `[{}]`)
	m.annotate("pod-1", `[{}, {}]`)
	m.settle()
	kept := m.portOf("kept")
	check(m.t, m.object("pod-1", false)) // a forced deletion, before DEL
	m.pods.each(0, 4, m.pods.del)
	m.pods.each(4, 7, m.pods.add)
	m.settle()
	if now := m.portOf("kept"); now != kept {
		m.t.Errorf("the PodNIC that is kept had port %s and has %s", kept, now)
	}
	m.pods.each(4, 7, m.pods.del)
	check(m.t, m.c.admin.Delete(m.t.Context(), &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}}))
	m.settle(func() error { return same("half made links", m.plugs.HalfMade(), nil) }, func() error {
		if all := m.c.vpc.All(); len(all) != 1 || all[0].Device != "" || all[0].Owner != "" || all[0].Host != "" {
			return fmt.Errorf("left are the ports %+v, want the user's alone", all)
		}
		return nil
	})
	made := 0
	for _, call := range m.c.vpc.Front.Calls() {
		if call.Op == "Create" && call.Err == nil {
			made += call.N
		}
	}
	if made != 8 {
		m.t.Errorf("%d ports were made for 8 NICs", made)
	}
	for _, wrong := range slices.Concat(m.c.vpc.Torn(), m.plugs.Clashes()) {
		m.t.Error(wrong)
	}
}

// portOf is the port of a PodNIC.
func (m *nics) portOf(name string) string {
	m.t.Helper()
	o := &v1alpha1.PodNIC{}
	check(m.t, m.c.admin.Get(m.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, o))
	return o.Status.PortID
}

func TestHaltsInPortMode(t *testing.T) {
	eachCrash(t, slices.Concat(portOperator, portDaemon), func(t *testing.T, at crash) {
		m := inPortMode(t)
		victim := m.program
		if slices.Contains(portOperator, at.failpoint) {
			victim = m.c.program
		}
		victim.haltAt(at)
		m.c.start()
		m.start()
		m.exercisePorts()
		m.close()
		m.c.close()
		victim.wantHalt(at)
	})
}
