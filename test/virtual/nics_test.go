package virtual

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/podnic"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/ec2"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

const vpcName = "blue"

// nics are those of a node's pods, which are ports of one VPC.
type nics struct {
	*node
	c     *cluster
	first podnic.First
	asks  map[string]string // by pod, its annotation of NICs
	ports func() []port     // those that Berth has at the provider
}

// port is one at a provider.
type port struct {
	id, device string
	address    netip.Addr
}

// withNICs makes a node whose pods ask for NICs in a VPC.
func withNICs(n *node, c *cluster, first podnic.First, spec v1alpha1.VPCSpec, asks map[string]string) *nics {
	m := &nics{node: n, c: c, first: first, asks: asks}
	c.addNode(n)
	n.pods.object, n.pods.describe = m.object, m.describe
	spec.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{"default"}}
	check(n.t, c.admin.Create(n.t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: vpcName}, Spec: spec}))
	return m
}

// object makes or removes a Pod.
func (m *nics) object(name string, exists bool) error {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{v1alpha1.AnnotationVPC: vpcName, v1alpha1.AnnotationNICs: m.asks[name]}},
		Spec:       corev1.PodSpec{NodeName: nodeName},
	}
	if exists {
		return m.c.admin.Create(m.t.Context(), o)
	}
	return client.IgnoreNotFound(m.c.admin.Delete(m.t.Context(), o)) // as it may have been deleted by force
}

// describe tells a pod's UID and annotations.
func (m *nics) describe(r *rpc.AddRequest) error {
	o := &corev1.Pod{}
	if err := m.c.admin.Get(m.t.Context(), client.ObjectKey{Namespace: "default", Name: r.GetPod().GetName()}, o); err != nil {
		return err
	}
	r.Pod.Uid, r.Annotations = string(o.UID), &rpc.Annotations{All: o.Annotations}
	return nil
}

// annotate has a pod that runs ask for other NICs.
func (m *nics) annotate(pod, asks string) {
	m.t.Helper()
	m.asks[pod] = asks
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}}
	patch := func(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }
	check(m.t, m.c.admin.Status().Patch(m.t.Context(), o, patch(`{"status":{"phase":"Running"}}`)))
	check(m.t, m.c.admin.Patch(m.t.Context(), o, patch(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationNICs, asks))))
}

// settle waits until all agree.
func (m *nics) settle(also ...func() error) {
	m.t.Helper()
	await(m.t, func() error {
		err := m.agree()
		for _, check := range also {
			err = cmp.Or(err, check())
		}
		return err
	})
}

// agree compares the records, what is plugged, the PodNICs, the provider's ports and what
// pods asked for and were told.
func (m *nics) agree() error {
	w, _ := m.daemon()
	records, err := records(m.dir(w.number))
	if err != nil {
		return err
	}
	var list v1alpha1.PodNICList
	if err := m.c.admin.List(m.t.Context(), &list); err != nil {
		return err
	}
	asked, err := m.asked()
	recorded, unready := inRecords(records)
	plugged, nobodys := inPods(m.plugs.Plugged(), records)
	has, active, inactive := inPodNICs(list.Items)
	return cmp.Or(err, unready, nobodys, inactive, m.told(records),
		same("NICs with PodNICs", names(active), asked),
		same("NICs in records", recorded, active),
		same("plugged NICs", plugged, recorded),
		same("ports", m.atProvider(list.Items), has),
		m.pods.call(func(ctx context.Context, client rpc.NodeClient) error {
			_, err := client.Status(ctx, &rpc.StatusRequest{})
			return err
		}))
}

// line is a NIC in a comparison: whose it is, its port and its address.
func line(pod, ifName, port string, address netip.Addr) string {
	return fmt.Sprintf("%s/%s %s %s", pod, ifName, port, address)
}

// names are the pods and interfaces of some lines.
func names(lines []string) (out []string) {
	for _, l := range lines {
		name, _, _ := strings.Cut(l, " ")
		out = append(out, name)
	}
	return out
}

// asked are the NICs that pods ask for that run.
func (m *nics) asked() (out []string, err error) {
	m.pods.mu.Lock()
	defer m.pods.mu.Unlock()
	for pod := range m.pods.live {
		list, errs := podnic.Pod{Annotations: map[string]string{v1alpha1.AnnotationNICs: m.asks[pod]}}.NICs(m.first, 0)
		err = cmp.Or(err, errs.Err())
		for _, n := range list {
			out = append(out, pod+"/"+n.Name)
		}
	}
	slices.Sort(out)
	return out, err
}

// told compares the records with what pods were told, of which each has one.
func (m *nics) told(records []attachment.Record) error {
	m.pods.mu.Lock()
	defer m.pods.mu.Unlock()
	for pod, s := range m.pods.live {
		i := slices.IndexFunc(records, func(r attachment.Record) bool { return r.Key.ContainerID == s.container })
		if i < 0 {
			return fmt.Errorf("pod %s has no record", pod)
		}
		addresses := records[i].Lease.Addrs()
		if first := records[i].First(); first != nil {
			addresses = []netip.Addr{first.Addresses[0].CIDR.Addr()}
		}
		if !slices.Equal(addresses, s.addresses) {
			return fmt.Errorf("pod %s was told %v, and recorded are %v", pod, s.addresses, addresses)
		}
	}
	if len(records) != len(m.pods.live) {
		return fmt.Errorf("%d records for %d pods", len(records), len(m.pods.live))
	}
	return nil
}

// inRecords are the NICs in records.
func inRecords(records []attachment.Record) (out []string, err error) {
	for _, r := range records {
		for _, n := range r.NICs {
			out = append(out, line(r.Pod.Name, n.IfName, n.Port, n.Addresses[0].CIDR.Addr()))
			if n.State != attachment.Plugged {
				err = fmt.Errorf("NIC %s of pod %s is %s", n.IfName, r.Pod.Name, n.State)
			}
		}
		if r.State != attachment.Ready {
			err = fmt.Errorf("the record of pod %s is %s", r.Pod.Name, r.State)
		}
	}
	slices.Sort(out)
	return out, err
}

// inPods are the NICs that are plugged.
func inPods(plugged map[string]plug.Want, records []attachment.Record) (out []string, err error) {
	for id, w := range plugged {
		i := slices.IndexFunc(records, func(r attachment.Record) bool { return r.HostLink == w.Attachment })
		if i < 0 {
			err = fmt.Errorf("port %s is plugged for %s, which no record has", id, w.Attachment)
			continue
		}
		out = append(out, line(records[i].Pod.Name, w.Pod.IfName, id, w.Interface.Addresses[0].Addr()))
	}
	slices.Sort(out)
	return out, err
}

// inPodNICs are the NICs that have PodNICs, and those of them that pods have and that
// carry packets.
func inPodNICs(list []v1alpha1.PodNIC) (all, active []string, err error) {
	for i := range list {
		o := &list[i]
		if o.DeletionTimestamp != nil {
			return nil, nil, fmt.Errorf("PodNIC %s is there still: %+v", o.Name, o.Status)
		}
		pod, says, ok := "", o.Status.Node, false
		switch {
		case o.Status.Pod == nil:
			ok = o.Spec.Pod == nil && o.Status.Phase == v1alpha1.PhaseCreated
		default:
			pod = o.Status.Pod.Name
			ok = o.Status.Phase == v1alpha1.PhaseActive && says != nil && says.State == v1alpha1.NodePlugged && says.PortID == o.Status.PortID
		}
		if !ok {
			return nil, nil, fmt.Errorf("PodNIC %s is %+v, and its node says %+v", o.Name, o.Status, says)
		}
		a, err := netip.ParsePrefix(o.Status.Addresses[0].CIDR)
		if err != nil {
			return nil, nil, err
		}
		l := line(pod, o.Status.Interface, o.Status.PortID, a.Addr())
		all = append(all, l)
		if pod != "" {
			active = append(active, l)
		}
	}
	slices.Sort(all)
	slices.Sort(active)
	return all, active, nil
}

// atProvider are the NICs that have ports.
func (m *nics) atProvider(list []v1alpha1.PodNIC) (out []string) {
	for _, p := range m.ports() {
		i := slices.IndexFunc(list, func(o v1alpha1.PodNIC) bool { return vpcport.Device(clusterName, string(o.UID)) == p.device })
		switch {
		case i < 0:
			out = append(out, fmt.Sprintf("port %s of %s, which no PodNIC has", p.id, p.device))
		case list[i].Status.Pod == nil:
			out = append(out, line("", list[i].Status.Interface, p.id, p.address))
		default:
			out = append(out, line(list[i].Status.Pod.Name, list[i].Status.Interface, p.id, p.address))
		}
	}
	slices.Sort(out)
	return out
}

// blue is a network of Neutron's.
var blue = vpcport.Network{ID: "n-blue", Name: "blue", MTU: 1442, Subnets: []vpcport.Subnet{{
	ID: "s-web", Name: "web", CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1"),
}}}

// strangers is a port that is plugged for nobody.
const strangers = "0badc0de-76f7-46d4-9d11-000000000000"

// recorded tells whether a record of the daemon that runs names a port.
func (n *node) recorded(port string) bool {
	files, _ := filepath.Glob(filepath.Join(n.dir(n.running().number), "attachments", "attachment-*.json"))
	return slices.ContainsFunc(files, func(path string) bool {
		data, _ := os.ReadFile(path)
		return strings.Contains(string(data), port)
	})
}

// inPortMode makes a node whose pods have ports of a Neutron alone. Of two nobody knows whose
// they are, half made or plugged.
func inPortMode(t *testing.T) (m *nics) {
	n := newNode(t, slices.Concat(quick, []string{"--ipam=port", "--ovsdb="})...)
	n.pods.cooling = 0                                                                                                                 // whoever has a port has its addresses
	c := newCluster(t, n.log, "--ipam=port", "--listing-interval=20s", "--settle-time=2s", "--orphan-interval=30s", "--orphan-age=1h") // nothing is left to the sweep
	// That chooses MAC addresses, so that it would make a second port for a NIC.
	c.vpc = portfake.New(portfake.Options{Latency: 100 * time.Millisecond, Lag: time.Second, Traits: vpcport.Traits{MaxBatch: 64, MaxFilter: 100, Revisions: true}})
	c.vpc.AddNetwork(blue)
	c.vpc.AddHost(nodeName, vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int"})
	user := c.vpc.AddPort(vpcport.Port{NetworkID: blue.ID, Name: "mine", Addresses: []vpcport.FixedIP{{SubnetID: "s-web", IP: netip.MustParseAddr("192.168.0.77")}}})
	n.plugs.LeaveHalfMade("tapdeadbeef-00")
	_, err := n.plugs.Open(nil).Plug(t.Context(), plug.Want{
		Ref:       plug.Ref{Attachment: "bth0123456789ab", PortID: strangers, Kind: plug.OVS, Bridge: "br-int", Pod: plug.Pod{Netns: "/run/netns/gone", IfName: "eth0"}},
		Interface: plug.Interface{MAC: []byte{0xfa, 0x16, 0x3e, 0xff, 0xff, 0xff}, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.250/24")}},
	})
	check(t, err)
	n.plugs.Latency = 300 * time.Millisecond
	n.plugs.Changed = func(id string, plugged bool) {
		if id != strangers && !n.recorded(id) {
			t.Errorf("port %s became plugged, %v, while no record had it", id, plugged)
		}
		if plugged {
			c.vpc.Plug(id, nodeName)
		} else {
			c.vpc.Unplug(id)
		}
	}
	spec := v1alpha1.VPCSpec{Provider: v1alpha1.ProviderNeutron, Network: "blue"}
	m = withNICs(n, c, podnic.First{Name: podnic.FirstInterface, IsPort: true}, spec, map[string]string{
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

// exercisePorts has pods with one NIC or two, of a user's port and of a PodNIC that outlives
// pods, come, ask for others while they run, be replaced and go.
func (m *nics) exercisePorts() {
	m.t.Helper()
	m.pods.each(0, 4, m.pods.add)
	m.settle()
	m.annotate("pod-0", `[{}]`)
	m.annotate("pod-1", `[{}, {}]`)
	m.settle()
	kept := m.portOf("kept")
	check(m.t, m.object("pod-1", false)) // by force
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
	for _, call := range m.c.vpc.Calls() {
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

func TestPortMode(t *testing.T) {
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

// withBranches makes a node with a trunk, whose pods have branches for their first or second
// interface. One is kept warm.
func withBranches(t *testing.T) *nics {
	n := newNode(t, slices.Concat(quick, []string{"--ipam=eni-operator", "--auto-create-node-network", "--pre-allocate=1", "--trunk-eni", "--vpc-ports", "--ovsdb="})...)
	n.inVPC("m5.large")
	c := newCluster(t, n.log, slices.Concat(quickReconciler, []string{
		"--ipam=eni-operator,port", "--first-interface-is-port=false", "--branch-cooling=20s", "--listing-interval=20s", "--orphan-age=1h",
	})...)
	c.cloud = n.cloud
	one := int32(1)
	spec := v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, Network: cloudfake.VPC, EC2: &v1alpha1.EC2Spec{WarmBranches: &one}}
	m := withNICs(n, c, podnic.First{Name: podnic.FirstInterface, MayBePort: true}, spec, map[string]string{
		"pod-0": `[{}]`, "pod-1": `[{name: eth0}]`, "pod-2": `[{}]`, "pod-3": `[{}]`, "pod-4": `[{name: eth0}]`,
	})
	m.ports = func() (out []port) {
		for _, e := range n.cloud.Truth() {
			if e.Tags[eni.TagOwner] == ec2.Owner && !strings.HasPrefix(e.Tags[eni.TagNIC], warmDevice) {
				out = append(out, port{e.ID, e.Tags[eni.TagNIC], e.Primary})
			}
		}
		return out
	}
	return m
}

// warmDevice begins the devices of branches that no NIC has yet.
var warmDevice = vpcport.Device(clusterName, "warm/")

// warm wants so many branches that no NIC has yet.
func (m *nics) warm(want int) func() error {
	return func() error {
		var have []string
		for _, e := range m.cloud.Truth() {
			if strings.HasPrefix(e.Tags[eni.TagNIC], warmDevice) {
				have = append(have, e.ID)
			}
		}
		if len(have) != want {
			return fmt.Errorf("the warm branches are %v, want %d", have, want)
		}
		return nil
	}
}

func TestWarmBranches(t *testing.T) {
	eachCrash(t, warmOperator, func(t *testing.T, at crash) {
		m := withBranches(t)
		m.c.start()
		m.start()
		atOnce := strings.HasPrefix(at.failpoint, "operator.warm.make.")
		if atOnce {
			m.c.haltAt(at)
		}
		m.pods.each(0, 3, m.pods.add)
		m.settle(m.warm(1))
		if !atOnce { // at what is done to a warm branch, of which the operator knows by now that it is
			time.Sleep(time.Minute) //nolint:forbidigo // virtual time
			m.c.haltAt(at)
		}
		m.pods.each(0, 2, m.pods.del)
		m.pods.each(3, 5, m.pods.add)
		m.settle(m.warm(1))
		m.pods.each(2, 5, m.pods.del)
		vpc := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: vpcName}}
		check(t, m.c.admin.Patch(t.Context(), vpc, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ec2":{"warmBranches":0}}}`))))
		m.settle(m.warm(0))
		made := 0
		for _, call := range m.cloud.Calls() {
			if call.Op == "CreateENI" && call.Err == nil {
				made++
			}
		}
		// Of the first three pods, the fourth's, which another one became, and the fifth's; a trunk, an
		// ENI for addresses, and one that was left there.
		if made != 6+3 {
			t.Errorf("%d ENIs were made, want 6 branches and 3 others", made)
		}
		for _, wrong := range m.plugs.Clashes() {
			t.Error(wrong)
		}
		m.close()
		m.c.close()
		m.c.wantHalt(at)
	})
}
