package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
)

// ports gives access to the pods of a lab in port mode with lab.DefaultVPCs, and to the ports of their NICs.
type ports struct {
	lab      *lab.Lab
	nodes    []*node.Node
	firewall string // ID of a group that allows nothing
}

// blue is the VPC of most pods. green has the same addresses.
func (s *ports) blue() string  { return s.lab.VPCs[0].Name }
func (s *ports) green() string { return s.lab.VPCs[1].Name }

// vpcPod is a pod whose annotations describe its NICs.
type vpcPod struct {
	name string
	node int
	vpc  string
	nics string   // YAML; empty: one default NIC
	vm   bool     // the NICs belong to a virtual machine in the pod
	have []string // expected addresses of its interfaces, in order; empty: any
}

// add adds a pod and checks its interfaces.
func (s *ports) add(ctx context.Context, p vpcPod) *node.Pod {
	o := node.PodOptions{Annotations: map[string]string{v1alpha1.AnnotationVPC: p.vpc}, VM: p.vm}
	if p.nics != "" {
		o.Annotations[v1alpha1.AnnotationNICs] = p.nics
	}
	pod := must(s.nodes[p.node].AddPod(ctx, p.name, o))
	for i, want := range p.have {
		link := fmt.Sprintf("eth%d", i)
		mac, addrs, err := linkOf(pod, link)
		checkf(err, "pod %s", p.name)
		if want != "" && !strings.HasPrefix(strings.Join(addrs, " "), want) {
			fail("pod %s has %v on %s, want %s", p.name, addrs, link, want)
		}
		if nic := s.nicOf(ctx, pod, link); nic.Status.MAC != mac {
			fail("pod %s has the MAC address %s on %s, its port %s", p.name, mac, link, nic.Status.MAC)
		}
	}
	return pod
}

// addAll adds pods at once.
func (s *ports) addAll(ctx context.Context, pods ...vpcPod) []*node.Pod {
	made, errs := make([]*node.Pod, len(pods)), make(chan error, len(pods))
	for i, p := range pods {
		go func() { errs <- attempt(func() { made[i] = s.add(ctx, p) }) }()
	}
	var err error
	for range pods {
		err = errors.Join(err, <-errs)
	}
	check(err)
	return made
}

// addPort creates a port in the first VPC as a user does.
func (s *ports) addPort(ctx context.Context, name, ip string) portcloud.Port {
	v := s.lab.VPCs[0]
	return must(s.lab.Ports.AddPort(ctx, portcloud.Port{
		Name: name, Network: v.Network.ID, Groups: []string{v.Open}, Tags: s.lab.TagsFor(inDefault),
		Addresses: []portcloud.Address{{Subnet: v.Network.Subnet("subnet-1").ID, IP: netip.MustParseAddr(ip)}},
	}))
}

// port reads a port of the cloud, and reports whether it exists.
func (s *ports) port(ctx context.Context, id string) (portcloud.Port, bool) {
	all := must(s.lab.Ports.Ports(ctx))
	i := slices.IndexFunc(all, func(p portcloud.Port) bool { return p.ID == id })
	if i < 0 {
		return portcloud.Port{}, false
	}
	return all[i], true
}

// remove deletes pods.
func (s *ports) remove(ctx context.Context, pods ...*node.Pod) {
	for _, p := range pods {
		check(must(s.lab.Node(p.Node)).DelPod(ctx, p.Name))
	}
}

// pods finds pods by name.
func (s *ports) pods(names ...string) (all []*node.Pod) {
	for _, name := range names {
		for _, n := range s.nodes {
			if p, err := n.Pod(name); err == nil {
				all = append(all, p)
			}
		}
	}
	if len(all) != len(names) {
		fail("want pods %v, found %d", names, len(all))
	}
	return all
}

// nicOf returns the PodNIC of a pod's interface.
func (s *ports) nicOf(ctx context.Context, p *node.Pod, link string) *v1alpha1.PodNIC {
	all := must(s.lab.Kube.PodNICs(ctx))
	i := slices.IndexFunc(all, func(n v1alpha1.PodNIC) bool {
		return n.Status.Pod != nil && n.Status.Pod.UID == p.UID && n.Status.Interface == link
	})
	if i < 0 {
		fail("pod %s has no PodNIC for %s", p.Name, link)
	}
	return &all[i]
}

// linkOf returns the MAC address and the IPv4 addresses of an interface in a pod, or in its virtual machine.
func linkOf(p *node.Pod, name string) (mac string, addrs []string, err error) {
	err = ns.Netlink(p.Inside(), func(h *netlink.Handle) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		mac = l.Attrs().HardwareAddr.String()
		list, err := h.AddrList(l, netlink.FAMILY_V4)
		for _, a := range list {
			addrs = append(addrs, a.IPNet.String())
		}
		return err
	})
	return mac, addrs, err
}

// tcp sends a request by TCP. The destination must see the pod's address.
func tcp(ctx context.Context, p *node.Pod, to netip.Addr, within time.Duration) error {
	one, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r, err := echo.Ask(one, p.Inside(), "tcp", port(to), netip.Addr{}, "hello from "+p.Name)
	if err == nil && r.You != p.Addr() {
		err = fmt.Errorf("seen as %s, want %s", r.You, p.Addr())
	}
	return err
}

// reached sends requests until there is a reply: changes of groups take effect with a delay.
func reached(ctx context.Context, p *node.Pod, to netip.Addr) {
	await(ctx, fmt.Sprintf("%s (%s) to %s", p.Name, p.Addr(), to), func() { check(tcp(ctx, p, to, 5*time.Second)) })
}

// notReached fails if there is a reply.
func notReached(ctx context.Context, p *node.Pod, to netip.Addr) {
	if tcp(ctx, p, to, 1500*time.Millisecond) == nil {
		fail("%s (%s) reached %s, want no reply", p.Name, p.Addr(), to)
	}
	check(ctx.Err())
}

// Reached waits until a pod gets a reply from an address, which sees the pod's own address.
func Reached(ctx context.Context, p *node.Pod, to netip.Addr) error {
	return attempt(func() { reached(ctx, p, to) })
}

// vpcsReady waits until the operator has resolved the VPCs.
func vpcsReady(ctx context.Context, s *stage) string {
	check(s.lab.Kube.WaitVPCs(ctx))
	var list []string
	for _, v := range s.lab.VPCs {
		o := must(s.lab.Kube.VPC(ctx, v.Name))
		if o.Status.NetworkID != v.Network.ID || len(o.Status.Subnets) != len(v.Network.Subnets) {
			fail("VPC %s has network %s with %d subnets in its status, want %s with %d", v.Name, o.Status.NetworkID, len(o.Status.Subnets), v.Network.ID, len(v.Network.Subnets))
		}
		list = append(list, fmt.Sprintf("%s: %d subnets, MTU %d", v.Name, len(o.Status.Subnets), o.Status.MTU))
	}
	return strings.Join(list, ", ")
}

// samples returns one pod per kind of NIC. If machines is set, pods with users' ports are virtual machines, with
// bindings.
func (s *ports) samples(ctx context.Context, machines bool) []vpcPod {
	s.firewall = must(s.lab.Ports.AddGroup(ctx, "firewall"))
	given, second := s.addPort(ctx, "users-port", "192.168.0.140"), s.addPort(ctx, "users-second-port", "192.168.0.141")
	binding := func(kind string) string {
		if !machines {
			return ""
		}
		return "\n  binding: " + kind
	}
	return []vpcPod{
		{name: "pod1", node: 0, vpc: s.blue(), have: []string{""}},
		{name: "pod2", node: 1, vpc: s.blue(), nics: "- subnet: subnet-1", have: []string{"192.168.0."}},
		{name: "pod3", node: 0, vpc: s.blue(), nics: "- subnet: subnet-1\n  ip: 192.168.0.112", have: []string{"192.168.0.112/24"}},
		{name: "pod4", node: 1, vpc: s.blue(), vm: machines, nics: "- portID: " + given.ID + binding("tap"), have: []string{"192.168.0.140/24"}},
		{
			name: "pod5", node: 1, vpc: s.blue(), vm: machines, have: []string{"192.168.0.113/24", "192.168.0.141/24"},
			nics: "- subnet: subnet-1\n  ip: 192.168.0.113\n  securityGroup: " + s.firewall + binding("bridge") + "\n- portID: " + second.ID + binding("bridge"),
		},
	}
}

func samplePods(ctx context.Context, st *stage) string {
	began := time.Now()
	var list []string
	for _, p := range st.ports.addAll(ctx, st.ports.samples(ctx, true)...) {
		list = append(list, p.Name+" "+p.Addr().String())
	}
	return fmt.Sprintf("%s, at once in %s", strings.Join(list, ", "), since(began))
}

// vpcPodsTalk sends requests from each pod of blue to each pod whose group allows it.
func vpcPodsTalk(ctx context.Context, s *stage) string {
	pods := s.ports.pods("pod1", "pod2", "pod3", "pod4")
	var a asks
	pairs := 0
	for _, p := range pods {
		for _, q := range pods {
			if p != q {
				reached(ctx, p, q.Addr()) // the first packet through a tunnel may be lost
				a.ask(ctx, p.Name, p.Inside(), port(q.Addr()), p.Addr())
				pairs++
			}
		}
	}
	return a.result("%d pairs on one node and across nodes", pairs)
}

// groups calls a pod whose security group allows nothing, and again once the group allows it.
func groups(ctx context.Context, s *stage) string {
	pods := s.ports.pods("pod1", "pod5")
	asker, closed := pods[0], pods[1]
	notReached(ctx, asker, closed.Addr())
	check(s.lab.Ports.Allow(ctx, s.ports.firewall, portcloud.Rule{Protocol: "tcp", Port: echo.Port}))
	began := time.Now()
	reached(ctx, asker, closed.Addr())
	return fmt.Sprintf("%s is closed, and open %s after a rule was added", closed.Addr(), since(began))
}

// killPortOperator kills the leader, and adds and deletes pods.
func killPortOperator(ctx context.Context, s *stage) (figures string) {
	check(s.nodes[1].DelPod(ctx, "pod5"))
	pods := names("more", 4)
	withoutLeader(ctx, s.lab, func() {
		began := time.Now()
		s.add(ctx, nil, pods)
		figures = fmt.Sprintf("%d pods added after %s, then deleted", len(s.nodes)*len(pods), since(began))
		for _, n := range s.nodes {
			for _, name := range pods {
				check(n.DelPod(ctx, name))
			}
		}
	})
	return figures
}

// Flow is a proof that needs only a lab of two nodes in port mode with lab.DefaultVPCs, and leaves nothing behind. It
// returns figures.
type Flow func(context.Context, *lab.Lab) (string, error)

func flow(try func(context.Context, *ports) string) Flow {
	return func(ctx context.Context, l *lab.Lab) (figures string, err error) {
		err = attempt(func() { figures = try(ctx, &ports{lab: l, nodes: l.Nodes()}) })
		return figures, err
	}
}

// OtherVPC adds pods with the same address in both VPCs on one node, and another pod of each VPC on the other node.
// Pods reach only their own VPC.
var OtherVPC = flow(otherVPC)

func otherVPC(ctx context.Context, s *ports) string {
	const both = "192.168.0.72"
	at := func(name string, node int, vpc, ip string) vpcPod {
		return vpcPod{name: name, node: node, vpc: vpc, nics: "[{subnet: subnet-1, ip: " + ip + "}]", have: []string{ip + "/24"}}
	}
	pods := s.addAll(ctx, at("blue-1", 0, s.blue(), both), at("green-1", 0, s.green(), both),
		at("blue-2", 1, s.blue(), "192.168.0.77"), at("green-2", 1, s.green(), "192.168.0.78"))
	reached(ctx, pods[2], pods[0].Addr())
	reached(ctx, pods[3], pods[1].Addr())
	notReached(ctx, pods[1], pods[2].Addr())
	notReached(ctx, pods[0], pods[3].Addr())
	s.remove(ctx, pods...)
	return fmt.Sprintf("both have a pod %s; neither VPC reaches the other", both)
}

// FixedNIC moves a user's PodNIC to a pod on another node, with its port and its addresses.
var FixedNIC = flow(fixedNIC)

func fixedNIC(ctx context.Context, s *ports) string {
	nic := &v1alpha1.PodNIC{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0"},
		Spec:       v1alpha1.PodNICSpec{VPC: s.blue(), Addresses: []v1alpha1.NICAddress{{Subnet: "subnet-1", IP: "192.168.0.50"}}},
	}
	checkf(s.lab.Kube.Client.Create(ctx, nic), "create PodNIC db-0")
	asker := s.add(ctx, vpcPod{name: "client", node: 1, vpc: s.blue(), have: []string{""}})
	var was v1alpha1.PodNICStatus
	for i, n := range s.nodes[:2] {
		p := s.add(ctx, vpcPod{name: "db", node: i, vpc: s.blue(), nics: "[{nic: db-0}]", have: []string{"192.168.0.50/24"}})
		now := s.nicOf(ctx, p, "eth0").Status
		if i > 0 && (now.PortID != was.PortID || now.MAC != was.MAC) || now.NodeName != n.Name {
			fail("the port was %s with %s on %s, and is %s with %s on %s", was.PortID, was.MAC, was.NodeName, now.PortID, now.MAC, now.NodeName)
		}
		was = now
		reached(ctx, asker, p.Addr())
		s.remove(ctx, p)
	}
	checkf(s.lab.Kube.Client.Delete(ctx, nic), "delete PodNIC db-0")
	s.remove(ctx, asker)
	return fmt.Sprintf("192.168.0.50, %s, port %.8s on %s, then on %s", was.MAC, was.PortID, s.nodes[0].Name, s.nodes[1].Name)
}

// UsersPort adds a pod with a user's port. The port is unchanged after the pod's deletion.
var UsersPort = flow(usersPort)

func usersPort(ctx context.Context, s *ports) string {
	given := s.addPort(ctx, "users-own", "192.168.0.60")
	p := s.add(ctx, vpcPod{name: "given", node: 1, vpc: s.blue(), nics: "- portID: " + given.ID, have: []string{"192.168.0.60/24"}})
	if o := s.nicOf(ctx, p, "eth0").Status; o.PortID != given.ID || o.MAC != given.MAC || o.Made {
		fail("pod %s has port %s with %s, made: %t; want %s with %s", p.Name, o.PortID, o.MAC, o.Made, given.ID, given.MAC)
	}
	s.remove(ctx, p)
	await(ctx, "port "+given.ID, func() {
		switch now, there := s.port(ctx, given.ID); {
		case !there:
			fail("it does not exist")
		case now.Host != "" || now.Device != given.Device || now.Owner != given.Owner:
			fail("it is bound to %q for %q of %q", now.Host, now.Device, now.Owner)
		case now.MAC != given.MAC || now.Name != given.Name:
			fail("it is %s with %s, was %s with %s", now.Name, now.MAC, given.Name, given.MAC)
		}
	})
	check(s.lab.Ports.RemovePort(ctx, given.ID))
	return fmt.Sprintf("port %.8s exists, unbound", given.ID)
}

// HotPlug adds a NIC to a running pod and removes it. The first NIC does not change.
var HotPlug = flow(hotPlug)

func hotPlug(ctx context.Context, s *ports) string {
	added := netip.MustParseAddr("192.168.0.79")
	pods := s.addAll(ctx, vpcPod{name: "asks-grows", node: 1, vpc: s.blue(), have: []string{""}}, vpcPod{name: "grows", node: 0, vpc: s.blue(), have: []string{""}})
	asker, p := pods[0], pods[1]
	mac, _, err := linkOf(p, "eth0")
	check(err)
	annotate := func(nics string) { check(s.lab.Kube.AnnotatePod(ctx, p, v1alpha1.AnnotationNICs, nics)) }
	began := time.Now()
	annotate(fmt.Sprintf("[{}, {name: net1, subnet: subnet-1, ip: %s}]", added))
	reached(ctx, asker, added)
	answered := since(began)
	var nic *v1alpha1.PodNIC
	await(ctx, "the PodNIC of net1 is Plugged", func() {
		if nic = s.nicOf(ctx, p, "net1"); !meta.IsStatusConditionTrue(nic.Status.Conditions, v1alpha1.ConditionPlugged) {
			fail("its conditions are %+v", nic.Status.Conditions)
		}
	})
	began = time.Now()
	annotate("[{}]")
	await(ctx, "nothing is left of net1", func() {
		if _, there := s.port(ctx, nic.Status.PortID); there {
			fail("its port %s still exists", nic.Status.PortID)
		}
		if _, _, err := linkOf(p, "net1"); err == nil {
			fail("pod %s still has it", p.Name)
		}
	})
	gone := since(began)
	if now, _, err := linkOf(p, "eth0"); err != nil || now != mac {
		fail("eth0 of pod %s had %s, has %s: %v", p.Name, mac, now, err)
	}
	reached(ctx, asker, p.Addr())
	s.remove(ctx, pods...)
	return fmt.Sprintf("a pod responds at %s %s after the NIC was annotated; net1 is gone %s after the annotation was removed", added, answered, gone)
}

// PortDeleted deletes the port of a running pod in the cloud. The pod gets a new port with the same MAC address, and
// responds.
var PortDeleted = flow(portDeleted)

func portDeleted(ctx context.Context, s *ports) string {
	pods := s.addAll(ctx, vpcPod{name: "asks-robbed", node: 1, vpc: s.blue(), have: []string{""}}, vpcPod{name: "robbed", node: 0, vpc: s.blue(), have: []string{""}})
	asker, p := pods[0], pods[1]
	before := s.nicOf(ctx, p, "eth0").Status
	check(s.lab.Ports.RemovePort(ctx, before.PortID))
	began, id := time.Now(), ""
	await(ctx, "another port for "+p.Name, func() {
		now := s.nicOf(ctx, p, "eth0").Status
		if id = now.PortID; id == "" || id == before.PortID || now.MAC != before.MAC {
			fail("its port is %q with %s", now.PortID, now.MAC)
		}
	})
	reached(ctx, asker, p.Addr())
	s.remove(ctx, pods...)
	return fmt.Sprintf("port %.8s in place of %.8s; %s responds again after %s", id, before.PortID, p.Addr(), since(began))
}
