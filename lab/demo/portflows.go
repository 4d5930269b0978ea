package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
)

// The flows of this file need nothing but a lab of two nodes in port mode with lab.DefaultVPCs,
// and leave nothing: they are proofs of the demo, and tests of other labs. They return figures.

// onPorts is the stage of a flow.
func onPorts(l *lab.Lab) *stage { return &stage{lab: l, nodes: l.Nodes()} }

// alone is the proof of a flow.
func alone(flow func(context.Context, *lab.Lab) (string, error)) func(context.Context, *stage) (string, error) {
	return func(ctx context.Context, s *stage) (string, error) { return flow(ctx, s.lab) }
}

// removePods deletes pods of a stage's nodes.
func (s *stage) removePods(ctx context.Context, pods ...*node.Pod) error {
	for _, p := range pods {
		n, err := s.lab.Node(p.Node)
		if err != nil {
			return err
		}
		if err := n.DelPod(ctx, p.Name); err != nil {
			return err
		}
	}
	return nil
}

// OtherVPC has pods of one address in both VPCs on one node, and one more of each VPC on the
// other node: they reach their own, and nobody else.
func OtherVPC(ctx context.Context, l *lab.Lab) (string, error) {
	s := onPorts(l)
	const both = "192.168.0.72"
	at := func(name string, node int, vpc, ip string) vpcPod {
		return vpcPod{name: name, node: node, vpc: vpc, nics: "[{subnet: subnet-1, ip: " + ip + "}]", have: []string{ip + "/24"}}
	}
	pods, err := s.addVPCPods(ctx, at("blue-1", 0, s.blue(), both), at("green-1", 0, s.green(), both),
		at("blue-2", 1, s.blue(), "192.168.0.77"), at("green-2", 1, s.green(), "192.168.0.78"))
	if err != nil {
		return "", err
	}
	blue, green := [2]*node.Pod{pods[0], pods[2]}, [2]*node.Pod{pods[1], pods[3]}
	for _, vpc := range [][2]*node.Pod{blue, green} {
		if err := reached(ctx, vpc[1], vpc[0].Addr()); err != nil {
			return "", err
		}
	}
	if err := errors.Join(notReached(ctx, green[0], blue[1].Addr()), notReached(ctx, blue[0], green[1].Addr())); err != nil {
		return "", err
	}
	return fmt.Sprintf("both have a pod %s; neither VPC reaches the other", both), s.removePods(ctx, pods...)
}

// FixedNIC has a user's PodNIC go from a pod to its successor on another node, with its port, its
// address and its MAC address.
func FixedNIC(ctx context.Context, l *lab.Lab) (string, error) {
	s := onPorts(l)
	nic := &v1alpha1.PodNIC{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0"},
		Spec:       v1alpha1.PodNICSpec{VPC: s.blue(), Addresses: []v1alpha1.NICAddress{{Subnet: "subnet-1", IP: "192.168.0.50"}}},
	}
	if err := l.Kube.Client.Create(ctx, nic); err != nil {
		return "", fmt.Errorf("create PodNIC db-0: %w", err)
	}
	asker, err := s.addVPCPod(ctx, vpcPod{name: "client", node: 1, vpc: s.blue(), have: []string{""}})
	if err != nil {
		return "", err
	}
	var was v1alpha1.PodNICStatus
	for i, n := range s.nodes[:2] {
		p, err := s.addVPCPod(ctx, vpcPod{name: "db", node: i, vpc: s.blue(), nics: "[{nic: db-0}]", have: []string{"192.168.0.50/24"}})
		if err != nil {
			return "", err
		}
		o, err := s.nicOf(ctx, p, "eth0")
		if err != nil {
			return "", err
		}
		now := o.Status
		if i > 0 && (now.PortID != was.PortID || now.MAC != was.MAC) || now.NodeName != n.Name {
			return "", fmt.Errorf("the port was %s with %s on %s, and is %s with %s on %s", was.PortID, was.MAC, was.NodeName, now.PortID, now.MAC, now.NodeName)
		}
		was = now
		if err := errors.Join(reached(ctx, asker, p.Addr()), s.removePods(ctx, p)); err != nil {
			return "", err
		}
	}
	figures := fmt.Sprintf("192.168.0.50, %s, port %.8s on %s, then on %s", was.MAC, was.PortID, s.nodes[0].Name, s.nodes[1].Name)
	if err := l.Kube.Client.Delete(ctx, nic); err != nil {
		return "", fmt.Errorf("delete PodNIC db-0: %w", err)
	}
	return figures, s.removePods(ctx, asker)
}

// UsersPort gives a port that a user made to a pod, and has it as it was once the pod is gone.
func UsersPort(ctx context.Context, l *lab.Lab) (string, error) {
	s := onPorts(l)
	given, err := s.addUsersPort(ctx, "users-own", "192.168.0.60")
	if err != nil {
		return "", err
	}
	p, err := s.addVPCPod(ctx, vpcPod{name: "given", node: 1, vpc: s.blue(), nics: "- portID: " + given.ID, have: []string{"192.168.0.60/24"}})
	if err != nil {
		return "", err
	}
	o, err := s.nicOf(ctx, p, "eth0")
	if err != nil {
		return "", err
	}
	if o.Status.PortID != given.ID || o.Status.MAC != given.MAC || o.Status.Made {
		return "", fmt.Errorf("pod %s has port %s with %s, made: %t; want %s with %s", p.Name, o.Status.PortID, o.Status.MAC, o.Status.Made, given.ID, given.MAC)
	}
	if err := s.removePods(ctx, p); err != nil {
		return "", err
	}
	err = until(ctx, "port "+given.ID, func() error {
		now, there, err := s.port(ctx, given.ID)
		switch {
		case err != nil:
			return err
		case !there:
			return errors.New("it is gone")
		case now.Host != "" || now.Device != given.Device || now.Owner != given.Owner:
			return fmt.Errorf("it is bound to %q for %q of %q", now.Host, now.Device, now.Owner)
		case now.MAC != given.MAC || now.Name != given.Name:
			return fmt.Errorf("it is %s with %s, was %s with %s", now.Name, now.MAC, given.Name, given.MAC)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("port %.8s is there, bound to nothing", given.ID), l.Ports.RemovePort(ctx, given.ID)
}

// addUsersPort makes a port in the first VPC as a user does.
func (s *stage) addUsersPort(ctx context.Context, name, ip string) (portcloud.Port, error) {
	v := s.lab.VPCs[0]
	return s.lab.Ports.AddPort(ctx, portcloud.Port{
		Name: name, Network: v.Network.ID, Groups: []string{v.Open}, Tags: s.lab.TagsFor(inDefault),
		Addresses: []portcloud.Address{{Subnet: v.Network.Subnet("subnet-1").ID, IP: netip.MustParseAddr(ip)}},
	})
}

// Flow is a proof that others try on a lab of their own.
type Flow struct {
	Name string
	// Try returns figures.
	Try func(context.Context) (string, error)
}

// Story are the proofs of the demo for a lab that is up, to be tried in this order: later ones
// build on earlier ones.
func Story(l *lab.Lab) (flows []Flow) {
	s := &stage{size: sizes[l.Mode], lab: l, nodes: l.Nodes()}
	for _, p := range proofsOf(l.Options) {
		flows = append(flows, Flow{p.name, func(ctx context.Context) (string, error) { return p.try(ctx, s) }})
	}
	return flows
}

// LabOptions are those of the demo's lab, besides what the caller asks for.
func LabOptions(o lab.Options) (lab.Options, error) {
	all, err := Options{Lab: o}.complete()
	return all.Lab, err
}

// Reached has a pod ask an address until it is answered, by TCP and as who it is.
func Reached(ctx context.Context, p *node.Pod, to netip.Addr) error { return reached(ctx, p, to) }
