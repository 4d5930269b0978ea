package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/guest"
)

// Pod is one sandbox with a network and an echo server.
type Pod struct {
	PodOptions
	Node        string
	Name        string // name on its node
	ObjectName  string // UID for the plugin: that of its object, if it has one
	UID         string
	ContainerID string
	Addrs       []netip.Addr // of eth0, as reported by the plugin
	Result      types.Result // complete result of ADD

	netns  string       // name of its namespace
	up     bool         // guarded by Node.mu
	guest  *guest.Guest // of VM
	server *echo.Server
}

// PodOptions are optional properties of a pod.
type PodOptions struct {
	Namespace   string            // default "default"
	Ports       []PortMapping     // for the portmap plugin
	Labels      map[string]string // of its object, as are Annotations and Named
	Annotations map[string]string
	Named       []NamedPort // of its container
	// Once returns the first failure instead of retrying like a kubelet.
	Once bool
	// Object is an existing Pod object. If nil, one is created and deleted with the pod.
	Object *PodObject
	// VM runs a virtual machine in the pod, which gets its NICs.
	VM bool
}

// PodObject names a Pod of the Kubernetes API.
type PodObject struct{ Name, UID string }

// NamedPort is a port of a container that has a name.
type NamedPort struct {
	Name     string
	Protocol string // TCP, UDP or SCTP
	Port     uint16
}

// PortMapping is an element of a runtime's portMappings (CNI conventions document).
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

// Netns returns the path of the pod's network namespace.
func (p *Pod) Netns() string { return ns.Path(p.netns) }

// Inside returns the path of the network namespace with the pod's addresses: the pod's, or that of its virtual machine.
func (p *Pod) Inside() string {
	if p.guest != nil {
		return p.guest.Netns()
	}
	return p.Netns()
}

// Addr returns the pod's first address.
func (p *Pod) Addr() netip.Addr {
	if len(p.Addrs) == 0 {
		return netip.Addr{}
	}
	return p.Addrs[0]
}

// Ask sends a message from the pod to an echo server and returns the reply.
func (p *Pod) Ask(ctx context.Context, network string, to netip.Addr, text string) (echo.Reply, error) {
	return echo.Ask(ctx, p.Inside(), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, text)
}

// PodObjects manages the Pod objects of a node's pods.
type PodObjects interface {
	// Bind creates the object of a pod, bound to the node, unless it exists, and returns its UID and its name.
	Bind(ctx context.Context, name string, o PodOptions) (uid, objectName string, err error)
	// Running and Gone report, like a kubelet, that a pod is running, or that it was deleted. They do not wait.
	Running(p *Pod)
	Gone(namespace, name string)
}

var validPod = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,60}[a-z0-9])?$`)

// retryDelay is the pause between two sandboxes of a pod; shorter than a kubelet's, which is a second or more.
const retryDelay = 250 * time.Millisecond

// AddPod adds a pod, and waits until its network is up and its server responds. Unless o.Once is set, a failed attempt is
// undone and repeated with a new sandbox until ctx ends, as by a kubelet.
func (n *Node) AddPod(ctx context.Context, name string, o PodOptions) (*Pod, error) {
	if !validPod.MatchString(name) {
		return nil, fmt.Errorf("pod name %q: want lower-case letters, digits, dots and dashes, at most 62", name)
	}
	if o.Namespace == "" {
		o.Namespace = "default"
	}
	placeholder, err := n.reserve(name)
	if err != nil {
		return nil, err
	}
	uid, objectName, err := bind(ctx, n.Objects, o, name)
	if err != nil {
		n.settle(name, placeholder, nil)
		return nil, err
	}
	return addSandbox(ctx, n, placeholder, Pod{PodOptions: o, Node: n.Name, Name: name, ObjectName: objectName, UID: uid})
}

// RestartPod replaces the sandbox of a pod, as a kubelet does when the old one ended: the object stays, the addresses change.
func (n *Node) RestartPod(ctx context.Context, name string) (*Pod, error) {
	p, err := n.Pod(name)
	if err != nil {
		return nil, err
	}
	if err := delSandbox(ctx, n, p); err != nil {
		return nil, err
	}
	placeholder := &Pod{}
	n.mu.Lock()
	n.pods[name] = placeholder
	n.mu.Unlock()
	return addSandbox(ctx, n, placeholder, Pod{PodOptions: p.PodOptions, Node: n.Name, Name: name, ObjectName: p.ObjectName, UID: p.UID})
}

// addSandbox makes attempts to add a pod, in place of a reservation.
func addSandbox(ctx context.Context, n *Node, placeholder *Pod, pod Pod) (*Pod, error) {
	o, name := pod.PodOptions, pod.Name
	var last error // errors from before ctx ended in the middle of an attempt
	for {
		p, err := n.tryPod(ctx, pod)
		if err == nil {
			n.settle(name, placeholder, p)
			return p, nil
		}
		if ctx.Err() != nil && last != nil {
			err = last
		}
		last = err
		if o.Once || !pause(ctx, retryDelay) {
			n.settle(name, placeholder, nil)
			if n.Objects != nil && o.Object == nil {
				n.Objects.Gone(o.Namespace, name)
			}
			return nil, fmt.Errorf("add pod %s on %s: %w", name, n.Name, err)
		}
		n.Log.Debug("retrying pod", "node", n.Name, "pod", name, "err", err)
	}
}

// bind returns the plugin's parameters of a new pod. objects may be nil.
func bind(ctx context.Context, objects PodObjects, o PodOptions, name string) (uid, objectName string, err error) {
	if o.Object != nil {
		return o.Object.UID, o.Object.Name, nil
	}
	if objects == nil {
		return randomHex(16), name, nil
	}
	return objects.Bind(ctx, name, o)
}

// reserve reserves a name, so that the same pod is not added twice.
func (n *Node) reserve(name string) (*Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods[name] != nil {
		return nil, fmt.Errorf("node %s already has a pod %s", n.Name, name)
	}
	p := &Pod{}
	n.pods[name] = p
	return p, nil
}

// settle ends a reservation, with p if the pod is up. A node that was powered off in the meantime has no reservations.
func (n *Node) settle(name string, placeholder, p *Pod) {
	n.mu.Lock()
	known := n.pods[name] == placeholder
	if known {
		delete(n.pods, name)
		if p != nil {
			p.up = true
			n.pods[name] = p
		}
	}
	n.mu.Unlock()
	switch {
	case p == nil:
	case !known:
		_ = p.vanish()
	case n.Objects != nil && p.Object == nil:
		n.Objects.Running(p)
	}
}

// tryPod makes one attempt. A failed attempt leaves no state that the plugin could remove.
func (n *Node) tryPod(ctx context.Context, pod Pod) (*Pod, error) {
	list, err := n.conf()
	if err != nil {
		return nil, err
	}
	p := &pod
	p.ContainerID = randomHex(32)
	p.netns = n.PodPrefix + p.Name + "-" + p.ContainerID[:4]
	if err := ns.Create(p.netns); err != nil {
		return nil, err
	}
	if err := n.wire(ctx, list, p); err != nil {
		// A runtime calls DEL after a failed ADD, with a deadline of its own.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return nil, errors.Join(err, n.unwire(undo, p))
	}
	return p, nil
}

func (n *Node) wire(ctx context.Context, list *libcni.NetworkConfigList, p *Pod) error {
	if err := ns.Netlink(p.Netns(), func(h *netlink.Handle) error { return ns.LinkUp(h, "lo") }); err != nil {
		return err
	}
	res, err := n.cni.AddNetworkList(ctx, list, p.runtimeConf())
	if err != nil {
		return err
	}
	p.Result = res
	cur, err := types100.GetResult(res)
	if err != nil {
		return fmt.Errorf("parse the plugin's result: %w", err)
	}
	for _, ip := range cur.IPs {
		if i := ip.Interface; i != nil && *i < len(cur.Interfaces) && cur.Interfaces[*i].Name != firstInterface {
			continue // a runtime uses the addresses of a pod's first interface
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			p.Addrs = append(p.Addrs, a.Unmap())
		}
	}
	if p.VM {
		if p.guest, err = guest.Start(p.Netns(), p.netns+"-vm", machineNICs(cur)); err != nil {
			return err
		}
	}
	p.server, err = echo.Serve(p.Inside())
	return err
}

// machineNICs returns the NICs of a machine in a pod, from the plugin's result.
func machineNICs(r *types100.Result) (nics []guest.NIC) {
	for i, in := range r.Interfaces {
		if in.Sandbox == "" {
			continue
		}
		mac, _ := net.ParseMAC(in.Mac) // an invalid address is rejected later, when it is set
		nic := guest.NIC{Name: in.Name, MAC: mac}
		for _, ip := range r.IPs {
			addr, ok := netip.AddrFromSlice(ip.Address.IP)
			if ip.Interface == nil || *ip.Interface != i || !ok {
				continue
			}
			ones, _ := ip.Address.Mask.Size()
			nic.Addrs = append(nic.Addrs, netip.PrefixFrom(addr.Unmap(), ones))
			if via, ok := netip.AddrFromSlice(ip.Gateway); ok && in.Name == firstInterface {
				nic.Gateways = append(nic.Gateways, via.Unmap())
			}
		}
		nics = append(nics, nic)
	}
	return nics
}

// unwire runs DEL, with retries unless the pod has Once set, and removes the sandbox even if DEL fails.
func (n *Node) unwire(ctx context.Context, p *Pod) error {
	err := n.del(ctx, p)
	for err != nil && !p.Once && pause(ctx, retryDelay) {
		err = n.del(ctx, p)
	}
	return errors.Join(err, p.vanish())
}

// del runs CNI DEL.
func (n *Node) del(ctx context.Context, p *Pod) error {
	list, err := n.conf()
	if err != nil {
		return err
	}
	if err := n.cni.DelNetworkList(ctx, list, p.runtimeConf()); err != nil {
		return fmt.Errorf("DEL of container %.12s: %w", p.ContainerID, err)
	}
	return nil
}

// pause waits between two attempts to run a plugin, and returns false if ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// DelPod kills a pod's processes, removes its network with DEL, and then its namespace. It retries a failed DEL until ctx
// ends, like a kubelet; the pod then still exists.
func (n *Node) DelPod(ctx context.Context, name string) error {
	p, err := n.Pod(name)
	if err != nil {
		return err
	}
	if err := delSandbox(ctx, n, p); err != nil {
		return err
	}
	n.mu.Lock()
	if n.pods[name] == p {
		delete(n.pods, name)
	}
	n.mu.Unlock()
	if n.Objects != nil && p.Object == nil {
		n.Objects.Gone(p.Namespace, p.Name)
	}
	return nil
}

// delSandbox ends a pod's processes, network and network namespace.
func delSandbox(ctx context.Context, n *Node, p *Pod) error {
	p.stop()
	for {
		err := n.del(ctx, p)
		if err == nil {
			return p.vanish()
		}
		if !pause(ctx, retryDelay) {
			return fmt.Errorf("delete pod %s on %s: %w", p.Name, n.Name, err)
		}
	}
}

// DelAgain repeats DEL for a deleted pod, as runtimes may do.
func (n *Node) DelAgain(ctx context.Context, gone *Pod) error { return n.del(ctx, gone) }

// stop stops the programs in the pod.
func (p *Pod) stop() {
	if p.server != nil {
		_ = p.server.Close()
	}
}

// turnOff stops the virtual machine in the pod, if there is one.
func (p *Pod) turnOff() error {
	if p.guest == nil {
		return nil
	}
	return p.guest.Close()
}

// vanish removes the pod's namespace without calling a plugin.
func (p *Pod) vanish() error {
	p.stop()
	if p.netns == "" {
		return nil // not created yet
	}
	if err := p.turnOff(); err != nil {
		return err
	}
	if _, err := ns.Kill(time.Minute, p.Netns()); err != nil {
		return err
	}
	return ns.Remove(p.netns)
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
