package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/ns"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
)

// Settings of port mode under which the story is short.
var (
	portArgs         = []string{"--repair-interval=2s"}
	portOperatorArgs = []string{"--lease-duration=4s", "--renew-deadline=3s", "--retry-period=500ms", "--listing-interval=2s"}
)

// The VPCs of the story: blue has everything, green has the same addresses.
func (s *stage) blue() string  { return s.lab.VPCs[0].Name }
func (s *stage) green() string { return s.lab.VPCs[1].Name }

// vpcPod is a pod whose NICs are told by its annotations.
type vpcPod struct {
	name string
	node int
	vpc  string
	nics string   // YAML; empty: one default NIC
	vm   bool     // they are a virtual machine's, in the pod
	have []string // addresses that its interfaces must have, in order; empty ones may be any
}

func (p vpcPod) options() node.PodOptions {
	a := map[string]string{"berth.dev/vpc": p.vpc}
	if p.nics != "" {
		a["berth.dev/nics"] = p.nics
	}
	return node.PodOptions{Annotations: a, VM: p.vm}
}

// addVPCPod makes a pod and compares its interfaces with what was asked for.
func (s *stage) addVPCPod(ctx context.Context, p vpcPod) (*node.Pod, error) {
	pod, err := s.nodes[p.node].AddPod(ctx, p.name, p.options())
	if err != nil {
		return nil, err
	}
	for i, want := range p.have {
		link := fmt.Sprintf("eth%d", i)
		mac, addrs, err := linkOf(pod, link)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", p.name, err)
		}
		if want != "" && !strings.HasPrefix(strings.Join(addrs, " "), want) {
			return nil, fmt.Errorf("pod %s has %v on %s, want %s", p.name, addrs, link, want)
		}
		nic, err := s.nicOf(ctx, pod, link)
		if err != nil {
			return nil, err
		}
		if nic.Status.MAC != mac {
			return nil, fmt.Errorf("pod %s has the MAC address %s on %s, its port %s", p.name, mac, link, nic.Status.MAC)
		}
	}
	return pod, nil
}

// addVPCPods makes pods at once.
func (s *stage) addVPCPods(ctx context.Context, pods ...vpcPod) ([]*node.Pod, error) {
	made := make([]*node.Pod, len(pods))
	var making errgroup.Group
	for i, p := range pods {
		making.Go(func() (err error) {
			made[i], err = s.addVPCPod(ctx, p)
			return err
		})
	}
	return made, making.Wait()
}

// linkOf is the MAC address and the addresses of IPv4 of an interface in a pod, or in its machine.
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

// nicOf is the PodNIC of an interface of a pod.
func (s *stage) nicOf(ctx context.Context, p *node.Pod, link string) (*v1alpha1.PodNIC, error) {
	all, err := s.lab.Kube.PodNICs(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if n := &all[i]; n.Status.Pod != nil && n.Status.Pod.UID == p.UID && n.Status.Interface == link {
			return n, nil
		}
	}
	return nil, fmt.Errorf("pod %s has no PodNIC for %s", p.Name, link)
}

// port reads a port of the cloud; false when there is none.
func (s *stage) port(ctx context.Context, id string) (portcloud.Port, bool, error) {
	all, err := s.lab.Ports.Ports(ctx)
	for _, p := range all {
		if p.ID == id {
			return p, true, err
		}
	}
	return portcloud.Port{}, false, err
}

// tcp is the question that proofs ask by TCP alone.
func tcp(ctx context.Context, p *node.Pod, to netip.Addr, within time.Duration) error {
	one, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r, err := echo.Ask(one, p.Inside(), "tcp", port(to), netip.Addr{}, "hello from "+p.Name)
	if err == nil && r.You != p.Addr() {
		err = fmt.Errorf("seen as %s, not as %s", r.You, p.Addr())
	}
	return err
}

// shut is how long a question is waited for whose answer must not come.
const shut = 1500 * time.Millisecond

// reached asks until there is an answer, which comes once groups are in force.
func reached(ctx context.Context, p *node.Pod, to netip.Addr) error {
	return until(ctx, fmt.Sprintf("%s (%s) to %s", p.Name, p.Addr(), to), func() error { return tcp(ctx, p, to, 5*time.Second) })
}

func notReached(ctx context.Context, p *node.Pod, to netip.Addr) error {
	if tcp(ctx, p, to, shut) == nil {
		return fmt.Errorf("%s (%s) reached %s, and must not", p.Name, p.Addr(), to)
	}
	return ctx.Err()
}

// vpcsReady waits until the operator has opened the VPCs.
func vpcsReady(ctx context.Context, s *stage) (string, error) {
	if err := s.lab.WaitVPCs(ctx); err != nil {
		return "", err
	}
	var told []string
	for _, v := range s.lab.VPCs {
		o, err := s.lab.Kube.VPC(ctx, v.Name)
		if err != nil {
			return "", err
		}
		if o.Status.NetworkID != v.Network.ID || len(o.Status.Subnets) != len(v.Network.Subnets) {
			return "", fmt.Errorf("VPC %s tells of network %s with %d subnets, want %s with %d", v.Name, o.Status.NetworkID, len(o.Status.Subnets), v.Network.ID, len(v.Network.Subnets))
		}
		told = append(told, fmt.Sprintf("%s: %d subnets, MTU %d", v.Name, len(o.Status.Subnets), o.Status.MTU))
	}
	return strings.Join(told, ", "), nil
}

// Things of the story that are in the cloud.
type portStory struct {
	firewall string // ID of a group that lets nothing in
}

// samplePods are the five kinds of pods with NICs.
func samplePods(ctx context.Context, s *stage) (string, error) {
	var err error
	if s.ports.firewall, err = s.lab.Ports.AddGroup(ctx, "firewall"); err != nil {
		return "", err
	}
	given, err := s.addUsersPort(ctx, "users-port", "192.168.0.40")
	if err != nil {
		return "", err
	}
	second, err := s.addUsersPort(ctx, "users-second-port", "192.168.0.41")
	if err != nil {
		return "", err
	}
	pods := []vpcPod{
		{name: "pod1", node: 0, vpc: s.blue(), have: []string{""}},
		{name: "pod2", node: 1, vpc: s.blue(), nics: "- subnet: subnet-1", have: []string{""}},
		{name: "pod3", node: 0, vpc: s.blue(), nics: "- subnet: subnet-1\n  ip: 192.168.0.12", have: []string{"192.168.0.12/24"}},
		{name: "pod4", node: 1, vpc: s.blue(), vm: true, nics: "- portID: " + given.ID + "\n  binding: tap", have: []string{"192.168.0.40/24"}},
		{
			name: "pod5", node: 1, vpc: s.blue(), vm: true, have: []string{"192.168.0.13/24", "192.168.0.41/24"},
			nics: "- subnet: subnet-1\n  ip: 192.168.0.13\n  securityGroup: " + s.ports.firewall + "\n  binding: bridge\n- portID: " + second.ID + "\n  binding: bridge",
		},
	}
	began := time.Now()
	made, err := s.addVPCPods(ctx, pods...)
	if err != nil {
		return "", err
	}
	var told []string
	for _, p := range made {
		told = append(told, fmt.Sprintf("%s %s", p.Name, p.Addr()))
	}
	return fmt.Sprintf("%s, at once in %.1f s", strings.Join(told, ", "), time.Since(began).Seconds()), nil
}

func (s *stage) pod(name string) (*node.Pod, error) {
	for _, n := range s.nodes {
		if p, err := n.Pod(name); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("there is no pod %s", name)
}

// pods finds several by name.
func (s *stage) pods(names ...string) ([]*node.Pod, error) {
	var all []*node.Pod
	for _, name := range names {
		p, err := s.pod(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// vpcPodsTalk asks from each pod of blue for each that lets anybody in.
func vpcPodsTalk(ctx context.Context, s *stage) (string, error) {
	pods, err := s.pods("pod1", "pod2", "pod3", "pod4")
	if err != nil {
		return "", err
	}
	var a asks
	pairs := 0
	for _, p := range pods {
		for _, q := range pods {
			if p == q {
				continue
			}
			if err := reached(ctx, p, q.Addr()); err != nil { // the first packet through a tunnel may be lost
				return "", err
			}
			a.ask(ctx, p.Name, p.Inside(), port(q.Addr()), p.Addr())
			pairs++
		}
	}
	return a.result("%d pairs on one node and across nodes", pairs)
}

// groups asks a pod whose security group lets nothing in, and again once it does.
func groups(ctx context.Context, s *stage) (string, error) {
	pods, err := s.pods("pod1", "pod5")
	if err != nil {
		return "", err
	}
	asker, closed := pods[0], pods[1]
	if err := notReached(ctx, asker, closed.Addr()); err != nil {
		return "", err
	}
	if err := s.lab.Ports.Allow(ctx, s.ports.firewall, portcloud.Rule{Protocol: "tcp", Port: echo.Port}); err != nil {
		return "", err
	}
	began := time.Now()
	if err := reached(ctx, asker, closed.Addr()); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s is shut, and open %.1f s after a rule was added", closed.Addr(), time.Since(began).Seconds()), nil
}

// portDeleted deletes a port of a running pod in the cloud.
func portDeleted(ctx context.Context, s *stage) (string, error) {
	pods, err := s.pods("pod2", "pod3")
	if err != nil {
		return "", err
	}
	asker, p := pods[0], pods[1]
	before, err := s.nicOf(ctx, p, "eth0")
	if err != nil {
		return "", err
	}
	if err := s.lab.Ports.RemovePort(ctx, before.Status.PortID); err != nil {
		return "", err
	}
	began := time.Now()
	var after *v1alpha1.PodNIC
	err = until(ctx, "another port for pod3", func() error {
		if after, err = s.nicOf(ctx, p, "eth0"); err != nil {
			return err
		}
		if after.Status.PortID == "" || after.Status.PortID == before.Status.PortID {
			return fmt.Errorf("its port is %q", after.Status.PortID)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := reached(ctx, asker, p.Addr()); err != nil {
		return "", err
	}
	return fmt.Sprintf("port %.8s in place of %.8s; %s answers again after %.1f s", after.Status.PortID, before.Status.PortID, p.Addr(), time.Since(began).Seconds()), nil
}

// killPortOperator kills the leader and makes and deletes pods.
func killPortOperator(ctx context.Context, s *stage) (string, error) {
	leader, err := s.leader(ctx)
	if err != nil {
		return "", err
	}
	if err := s.nodes[1].DelPod(ctx, "pod5"); err != nil {
		return "", err
	}
	if err := leader.Kill(); err != nil {
		return "", err
	}
	began := time.Now()
	pods := names("more", 4)
	if _, err := add(ctx, s.nodes, pods); err != nil {
		return "", err
	}
	took := time.Since(began)
	for _, n := range s.nodes {
		for _, name := range pods {
			if err := n.DelPod(ctx, name); err != nil {
				return "", err
			}
		}
	}
	if err := errors.Join(revive(leader), s.recovered(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pods after %.1f s, and gone again", len(s.nodes)*len(pods), took.Seconds()), nil
}

// portsAgree waits until the lab rests and compares all views of it.
func portsAgree(ctx context.Context, s *stage) (string, error) {
	if err := s.lab.WaitInvariants(ctx); err != nil {
		return "", err
	}
	nics, err := s.lab.Kube.PodNICs(ctx)
	if err != nil {
		return "", err
	}
	ports, err := s.lab.Ports.Ports(ctx)
	if err != nil {
		return "", err
	}
	pods := 0
	for _, n := range s.lab.Nodes() {
		pods += len(n.Pods())
	}
	return fmt.Sprintf("%d pods, %d PodNICs, %d ports with those of users; no leak, no duplicate", pods, len(nics), len(ports)), nil
}
