package oracle

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/ovn"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
)

// firstInterface is the name of the interface that runtimes request.
const firstInterface = "eth0"

// berthOwner is the device owner of Berth's ports in the cloud.
const berthOwner = "compute:berth"

// portView is a snapshot of ports in the API and the cloud, and the inconsistencies found.
type portView struct {
	nics  []v1alpha1.PodNIC
	ports map[string]portcloud.Port // by ID
	first bool                      // whether pods' first interface is a port
	pods  map[string]bool           // UIDs of existing pods
	vpcs  map[string]bool           // UIDs of the VPC objects
	// families are the families of an EC2 port's addresses, by name of the VPC object. Other ports have all families.
	families map[string]ipfamily.Set
	used     map[string]string // ports in pods of the lab: by whom
	errs     []error
}

func (v *portView) wrong(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

// checkPorts compares six views of the NICs of a lab with ports: pods with their interfaces, PodNICs, the cloud's
// ports, the ports plugged by the nodes' OVSDBs or agents, kernels, and berthd's records.
func checkPorts(ctx context.Context, l *lab.Lab) []error {
	v := &portView{first: l.Mode == lab.PortMode, ports: map[string]portcloud.Port{}, pods: map[string]bool{}, used: map[string]string{}}
	if err := viewPorts(ctx, l, v); err != nil {
		return []error{err}
	}
	for _, n := range l.Nodes() {
		c := portNode{portView: v, node: n}
		c.check(ctx, l.Ports)
	}
	v.checkObjects()
	v.checkCloud()
	if err := l.Err(); err != nil {
		v.wrong("the lab itself: %w", err)
	}
	if err := l.Ports.Alive(); err != nil {
		v.wrong("the provider of the lab's ports: %w", err)
	}
	return v.errs
}

func viewPorts(ctx context.Context, l *lab.Lab, v *portView) (err error) {
	pods := &corev1.PodList{}
	if err := l.Kube.Client.List(ctx, pods); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for _, p := range pods.Items {
		v.pods[string(p.UID)] = true
	}
	vpcs := &v1alpha1.VPCList{}
	if err := l.Kube.Client.List(ctx, vpcs); err != nil {
		return fmt.Errorf("list VPCs: %w", err)
	}
	v.vpcs, v.families = map[string]bool{}, map[string]ipfamily.Set{}
	for i := range vpcs.Items {
		o := &vpcs.Items[i]
		v.vpcs[string(o.UID)] = true
		if o.Spec.Provider == v1alpha1.ProviderEC2 {
			v.families[o.Name] = ipfamily.Set(o.Spec.IPFamilies())
		}
	}
	if v.nics, err = l.Kube.PodNICs(ctx); err != nil {
		return err
	}
	ports, err := l.Ports.Ports(ctx)
	if err != nil {
		return err
	}
	for _, p := range ports {
		v.ports[p.ID] = p
	}
	return nil
}

// checkObjects looks for leaked PodNICs, and for PodNICs with a wrong status.
func (v *portView) checkObjects() {
	holder := map[string]string{}
	for i := range v.nics {
		n := &v.nics[i]
		name := n.Namespace + "/" + n.Name
		if n.DeletionTimestamp != nil {
			v.wrong("PodNIC %s is being deleted", name)
		}
		if n.Spec.Pod != nil && !v.pods[n.Spec.Pod.UID] {
			v.wrong("PodNIC %s is leaked: pod %s (%s) is gone", name, n.Spec.Pod.Name, n.Spec.Pod.UID)
		}
		if n.Status.Pod != nil && !v.pods[n.Status.Pod.UID] {
			v.wrong("PodNIC %s: status.pod is %s (%s), which does not exist", name, n.Status.Pod.Name, n.Status.Pod.UID)
		}
		id := n.Status.PortID
		if _, ofEC2 := v.families[n.Spec.VPC]; ofEC2 && id == "" && n.Spec.Pod == nil && n.Status.Pod == nil {
			continue // a branch is created on the node of its first pod
		}
		if id == "" {
			v.wrong("PodNIC %s has no port: %s", name, phase(n))
			continue
		}
		if other := holder[id]; other != "" {
			v.wrong("PodNICs %s and %s have port %s", other, name, id)
		}
		holder[id] = name
		if _, ok := v.ports[id]; !ok {
			v.wrong("PodNIC %s: port %s is gone", name, id)
		}
		if n.Status.Node != nil && n.Status.Node.State == v1alpha1.NodePlugged && v.used[id] == "" {
			v.wrong("PodNIC %s is plugged according to node %s, but in no pod", name, n.Status.NodeName)
		}
	}
}

// checkCloud looks for Berth's ports that no PodNIC has.
func (v *portView) checkCloud() {
	for _, id := range slices.Sorted(maps.Keys(v.ports)) {
		p := v.ports[id]
		i := slices.IndexFunc(v.nics, func(n v1alpha1.PodNIC) bool { return n.Status.PortID == id })
		vpc, warm := p.WarmFor()
		switch {
		case i >= 0:
		case warm && v.vpcs[vpc] && p.Host != "":
			continue // it waits for a pod of its node
		case warm:
			v.wrong("port %s of the warm pool of VPC %s, at host %q, is leaked: no pod can use it", id, vpc, p.Host)
		case p.Owner == berthOwner:
			v.wrong("port %s (%s, device %s) is leaked: no PodNIC has it", id, p.Name, p.Device)
		}
		if i < 0 {
			continue
		}
		if n := &v.nics[i]; !strings.HasSuffix(p.Device, string(n.UID)) {
			v.wrong("port %s has the device %q, PodNIC %s/%s has it", id, p.Device, n.Namespace, n.Name)
		}
		if p.Host != "" && v.used[id] == "" {
			v.wrong("port %s is bound to %s but in no pod", id, p.Host)
		}
	}
}

// phase formats the phase of a PodNIC and its reason.
func phase(n *v1alpha1.PodNIC) string {
	return strings.TrimSpace(string(n.Status.Phase) + " " + lab.Untrue(n.Status.Conditions))
}

// portNode is the check of one node.
type portNode struct {
	*portView
	node    *node.Node
	rows    map[string]ovn.Interface // by port
	links   map[string]bool          // Berth's links, by name
	records map[string]string        // containers by port

	indexes  map[string]int            // of those links, by name
	modes    map[string]plug.Enforcing // recorded modes by port, of first interfaces that are branches
	branches branchKernel
	shared   map[sharedRules]bool // of the branches found
}

func (c *portNode) wrong(format string, args ...any) {
	c.portView.wrong("node "+c.node.Name+": "+format, args...)
}

func (c *portNode) check(ctx context.Context, cloud portcloud.Cloud) {
	if err := c.observe(ctx, cloud); err != nil {
		c.wrong("%w", err)
		return
	}
	for _, p := range c.node.Pods() {
		if err := c.checkPod(p); err != nil {
			c.wrong("pod %s: %w", p.Name, err)
		}
	}
	c.checkLeaks()
}

// checkLeaks looks for state without a pod.
func (c *portNode) checkLeaks() {
	for id, row := range c.rows {
		c.wrong("%s is plugged in OVSDB or by the agent for port %s, which no pod has", row.Link, id)
	}
	for name := range c.links {
		c.wrong("link %s is leaked: no pod is behind it", name)
	}
	for id, container := range c.records {
		c.wrong("the record of %.12s holds port %s, which it does not have", container, id)
	}
	c.checkSharedBranches()
}

func (c *portNode) observe(ctx context.Context, cloud portcloud.Cloud) error {
	c.rows, c.links, c.records = map[string]ovn.Interface{}, map[string]bool{}, map[string]string{}
	c.indexes, c.modes, c.shared = map[string]int{}, map[string]plug.Enforcing{}, map[sharedRules]bool{}
	rows, err := cloud.Plugged(ctx, c.node.Name)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if other, twice := c.rows[r.Port]; twice {
			c.wrong("%s and %s are both plugged in OVSDB or by the agent for port %s", other.Link, r.Link, r.Port)
		}
		c.rows[r.Port] = r
	}
	err = ns.Netlink(c.node.Netns, func(h *netlink.Handle) error {
		links, err := again(h.LinkList)
		for _, l := range links {
			if l.Attrs().Group == plug.LinkGroup {
				c.links[l.Attrs().Name], c.indexes[l.Attrs().Name] = true, l.Attrs().Index
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	if c.branches, err = observeBranches(c.node.Netns); err != nil {
		return fmt.Errorf("read the branches' state: %w", err)
	}
	return c.readRecords()
}

// readRecords reads the ports in berthd's records.
func (c *portNode) readRecords() error {
	r, err := readRecords(c.node.StateDir())
	if err != nil {
		return fmt.Errorf("read its records: %w", err)
	}
	for _, name := range r.odd {
		c.wrong("unexpected record file %s", name)
	}
	for _, rec := range r.attachments {
		if !slices.ContainsFunc(c.node.Pods(), func(p *node.Pod) bool { return p.ContainerID == rec.Key.ContainerID }) {
			c.wrong("the record of %s (%s) belongs to no pod", rec.Key, rec.State)
		}
		for _, nic := range rec.NICs {
			c.records[nic.Port], c.modes[nic.Port] = rec.Key.ContainerID, plug.Enforcing(nic.Plug.Enforcing)
		}
	}
	return nil
}

// checkPod compares a pod with its PodNICs and their ports and links, and removes what it finds from the node's
// state.
func (c *portNode) checkPod(p *node.Pod) error {
	inside, err := podLinks(p.Inside())
	if err != nil {
		return err
	}
	given := !c.first // the mode provides the first interface
	for i := range c.nics {
		n := &c.nics[i]
		if n.Status.Pod == nil || n.Status.Pod.UID != p.UID {
			continue
		}
		if err := c.checkNIC(p, n, inside[n.Status.Interface]); err != nil {
			c.wrong("pod %s, PodNIC %s: %w", p.Name, n.Name, err)
		}
		given = given && n.Status.Interface != firstInterface
		delete(inside, n.Status.Interface)
	}
	if given {
		delete(inside, firstInterface)
	}
	for name := range inside {
		return fmt.Errorf("its interface %s has no PodNIC", name)
	}
	return nil
}

func (c *portNode) checkNIC(p *node.Pod, n *v1alpha1.PodNIC, in podLink) error {
	id := n.Status.PortID
	port, row := c.ports[id], c.rows[id]
	c.used[id] = p.Node + "/" + p.Name
	want, bare := c.addressesInPod(n)
	var at []string
	for _, a := range port.Addresses {
		if only, ok := c.families[n.Spec.VPC]; !ok || only.Has(ipfamily.Of(a.IP)) {
			at = append(at, a.IP.String())
		}
	}
	slices.Sort(at)
	report := n.Status.Node
	container := c.records[id]
	link := row.Link
	hasLink := c.takeLinks(n, link)
	delete(c.records, id)
	delete(c.rows, id)
	switch {
	case n.Status.Phase != v1alpha1.PhaseActive || n.Status.NodeName != p.Node:
		return fmt.Errorf("it is on %q: %s", n.Status.NodeName, phase(n))
	case port.Host != p.Node || port.Status != "ACTIVE":
		return fmt.Errorf("port %s is %q on %q", id, port.Status, port.Host)
	case port.MAC != n.Status.MAC || !slices.Equal(at, bare):
		return fmt.Errorf("port %s has %s and %v, its status has %s and %v", id, port.MAC, at, n.Status.MAC, bare)
	case in.mac != n.Status.MAC || !slices.Equal(in.addrs, want):
		return fmt.Errorf("interface %s has %s and %v, want %s and %v", n.Status.Interface, in.mac, in.addrs, n.Status.MAC, want)
	case link == "" || !hasLink:
		return fmt.Errorf("port %s has the link %q in OVSDB or with the agent, in the kernel: %v", id, link, hasLink)
	case container != p.ContainerID:
		return fmt.Errorf("port %s is in the record of %q, want %s", id, container, p.ContainerID)
	case report == nil || report.State != v1alpha1.NodePlugged || report.PortID != id || report.ContainerID != p.ContainerID:
		return fmt.Errorf("its status.node is %+v", report)
	}
	return c.checkRouted(n, in, link)
}

// addressesInPod returns the addresses of a PodNIC as its pod has them, sorted, with and without prefix lengths. A pod
// to which its node routes has host prefixes.
func (c *portNode) addressesInPod(n *v1alpha1.PodNIC) (cidrs, bare []string) {
	cidrs, bare = addressesOf(n)
	for i := range cidrs {
		if a, err := netip.ParseAddr(bare[i]); c.routes(n) && err == nil {
			cidrs[i] = rtnl.HostPrefix(a).String()
		}
	}
	return cidrs, bare
}

// offNode are the kinds of plugs without a link of Berth on the node: an agent's link is not Berth's, and a VLAN link
// is in the pod, unless the node routes to it as the pod's first interface.
var offNode = []v1alpha1.PlugType{v1alpha1.PlugNetns, v1alpha1.PlugVLAN}

// addressesOf returns the addresses of a PodNIC, sorted, with and without prefix lengths.
func addressesOf(n *v1alpha1.PodNIC) (cidrs, bare []string) {
	for _, a := range n.Status.Addresses {
		ip, _, _ := strings.Cut(a.CIDR, "/")
		cidrs, bare = append(cidrs, a.CIDR), append(bare, ip)
	}
	slices.Sort(cidrs)
	slices.Sort(bare)
	return cidrs, bare
}

// takeLinks removes the links of a plugged port from the list, and reports whether all of them existed.
func (c *portNode) takeLinks(n *v1alpha1.PodNIC, link string) bool {
	if n.Status.Plug != nil && slices.Contains(offNode, n.Status.Plug.Type) && !c.routes(n) {
		return true
	}
	all := []string{link}
	if end, ok := strings.CutPrefix(link, "qvo"); ok { // by a Linux bridge (package hybrid)
		all = append(all, "qbr"+end, "qvb"+end, "tap"+end)
	}
	if end, ok := strings.CutPrefix(link, plug.VLANPrefix); ok && c.routes(n) { // package routedvlan
		all = append(all, datapath.LinkPrefix+end)
	}
	there := true
	for _, name := range all {
		there = there && c.links[name]
		delete(c.links, name)
	}
	return there
}

// podLink is an interface of a pod.
type podLink struct {
	mac   string
	peer  int      // index of its peer
	addrs []string // with prefix lengths, sorted, without link-local ones
}

// podLinks returns the interfaces of a pod that are up, except lo, by name. Those that the kernel creates in every
// namespace, such as tunl0, are down.
func podLinks(path string) (map[string]podLink, error) {
	all := map[string]podLink{}
	err := ns.Netlink(path, func(h *netlink.Handle) error {
		links, err := again(h.LinkList)
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, l := range links {
			if l.Attrs().Name == "lo" || l.Attrs().Flags&net.FlagUp == 0 {
				continue
			}
			addrs, err := again(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
			if err != nil {
				return fmt.Errorf("list addresses: %w", err)
			}
			p := podLink{mac: l.Attrs().HardwareAddr.String(), peer: l.Attrs().ParentIndex}
			for _, a := range addrs {
				ip, _ := netip.AddrFromSlice(a.IP)
				ones, _ := a.Mask.Size()
				if !ip.IsLinkLocalUnicast() {
					p.addrs = append(p.addrs, netip.PrefixFrom(ip.Unmap(), ones).String())
				}
			}
			slices.Sort(p.addrs)
			all[l.Attrs().Name] = p
		}
		return nil
	})
	return all, err
}
