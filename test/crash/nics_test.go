package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// shape is what a pod has in addition to the mode's address: nothing, or NICs that are ports of a VPC.
type shape struct {
	network  string       // network of the NICs' addresses; empty without NICs
	families ipfamily.Set // families of those addresses
	beside   bool         // the first interface is the mode's
	options  node.PodOptions
	nics     []wantNIC
	entries  []string // of the annotation, one per NIC
}

// wantNIC is an expected interface of a pod.
type wantNIC struct {
	name  string
	claim *claim // claim that it uses; nil for a port of its own
}

// claim belongs to one pod at a time: a requested address, an address in a small subnet, or a user's PodNIC or port.
type claim struct {
	vpc, entry string // entry of the annotation
	keeps      bool   // keeps its address and MAC address from pod to pod

	mu  sync.Mutex   // guards all below
	ips []netip.Addr // nil if not yet known
	mac string
}

// holds compares an interface with the previous state of the claim.
func (c *claim) holds(ips []netip.Addr, mac string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ips != nil && !slices.Equal(c.ips, ips) {
		return fmt.Errorf("has %s, want %s", ips, c.ips)
	}
	if c.mac != "" && c.mac != mac {
		return fmt.Errorf("has the MAC address %s, want %s", mac, c.mac)
	}
	if c.keeps {
		c.ips, c.mac = ips, mac
	}
	return nil
}

// The number of claims of each kind in a VPC; pods need fewer.
const (
	fixedClaims  = 8
	podNICClaims = 5
	portClaims   = 5
	narrowClaims = 8 // addresses in a small subnet, which are reused soon
)

const maxNICs = 4

// firstFixed is the last byte of the first address that pods request.
const firstFixed = 200

// narrow is a subnet of 13 addresses.
const narrow = "narrow"

func twoVPCs() (all []lab.VPC) {
	for i, name := range []string{"blue", "green"} {
		all = append(all, lab.VPC{Name: fmt.Sprintf("vpc-%d", i+1), Network: portcloud.Network{Name: name, Subnets: []portcloud.Subnet{
			{Name: "subnet-1", CIDR: netip.MustParsePrefix("192.168.0.0/24")},
			{Name: "subnet-2", CIDR: netip.MustParsePrefix("192.168.1.0/24")},
			{Name: narrow, CIDR: netip.MustParsePrefix("192.168.2.0/28")},
		}}})
	}
	return all
}

// nicPool provides the NICs for the pods of a round.
type nicPool struct {
	first    bool // the first interface of pods is a port, too
	branches bool // NICs are branches on the nodes' trunks
	vpcs     []lab.VPC
	ports    map[string]portcloud.Port // users' ports, by ID

	mu   sync.Mutex // guards free
	free map[string][]*claim
}

// newNICPool creates users' ports and PodNICs in a lab with ports.
func newNICPool(ctx context.Context, l *lab.Lab) (*nicPool, error) {
	if l.Ports == nil {
		return nil, nil
	}
	_, branches := l.Ports.(*portcloud.Branches)
	w := &nicPool{first: l.Mode == lab.PortMode, branches: branches, vpcs: l.VPCs, ports: map[string]portcloud.Port{}, free: map[string][]*claim{}}
	for _, v := range l.VPCs {
		claimsOf := w.claimsOf
		if branches {
			claimsOf = branchClaims
		}
		claims, err := claimsOf(ctx, l, v)
		if err != nil {
			return nil, err
		}
		w.free[v.Name] = claims
	}
	return w, nil
}

func (w *nicPool) claimsOf(ctx context.Context, l *lab.Lab, v lab.VPC) (all []*claim, err error) {
	base := v.Network.Subnet("subnet-1").CIDR.Addr().As4()
	at := func(last int) netip.Addr {
		a := base
		a[3] = byte(last)
		return netip.AddrFrom4(a)
	}
	for i := range fixedClaims {
		ip := at(firstFixed + i)
		all = append(all, &claim{vpc: v.Name, entry: "ip: " + ip.String(), ips: []netip.Addr{ip}})
	}
	for range narrowClaims {
		all = append(all, &claim{vpc: v.Name, entry: "subnet: " + narrow})
	}
	for i := range podNICClaims {
		var addresses []v1alpha1.NICAddress
		var ips []netip.Addr
		if i%2 == 0 {
			ips = []netip.Addr{at(220 + i)}
			addresses = []v1alpha1.NICAddress{{Subnet: "subnet-1", IP: ips[0].String()}}
		}
		c, err := keptNIC(ctx, l, v, i, addresses...)
		if err != nil {
			return nil, err
		}
		c.ips = ips
		all = append(all, c)
	}
	for i := range portClaims {
		p, err := l.Ports.AddPort(ctx, portcloud.Port{
			Name: fmt.Sprintf("given-%d", i), Network: v.Network.ID, Groups: []string{v.Open}, Tags: l.TagsFor("default"),
			Addresses: []portcloud.Address{{Subnet: v.Network.Subnet("subnet-1").ID, IP: at(240 + i)}},
		})
		if err != nil {
			return nil, fmt.Errorf("create a user's port: %w", err)
		}
		w.ports[p.ID] = p
		all = append(all, &claim{vpc: v.Name, entry: "portID: " + p.ID, keeps: true, ips: []netip.Addr{p.Addresses[0].IP}, mac: p.MAC})
	}
	return all, nil
}

// keptNIC creates a user's PodNIC, which outlives pods.
func keptNIC(ctx context.Context, l *lab.Lab, v lab.VPC, i int, addresses ...v1alpha1.NICAddress) (*claim, error) {
	o := &v1alpha1.PodNIC{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-kept-%d", v.Name, i)},
		Spec:       v1alpha1.PodNICSpec{VPC: v.Name, Addresses: addresses},
	}
	if err := l.Kube.Client.Create(ctx, o); err != nil {
		return nil, fmt.Errorf("create a user's PodNIC: %w", err)
	}
	return &claim{vpc: v.Name, entry: "nic: " + o.Name, keeps: true}, nil
}

// take returns a free claim, or nil.
func (w *nicPool) take(vpc string, dice *rand.Rand) *claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := w.free[vpc]
	if len(free) == 0 {
		return nil
	}
	i := dice.IntN(len(free))
	c := free[i]
	w.free[vpc] = slices.Delete(free, i, i+1)
	return c
}

// back returns the claims of a deleted pod.
func (w *nicPool) back(s shape) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range s.nics {
		if n.claim != nil {
			w.free[n.claim.vpc] = append(w.free[n.claim.vpc], n.claim)
		}
	}
}

// draw draws the shape of the next pod: without NICs if there is no pool, and sometimes with the mode's first
// interface.
func (w *nicPool) draw(dice *rand.Rand) shape {
	if w != nil && w.branches {
		return w.drawBranches(dice)
	}
	if w == nil || !w.first && dice.IntN(3) == 0 {
		return shape{}
	}
	vpc := w.vpcs[dice.IntN(len(w.vpcs))].Name
	s := shape{network: vpc, beside: !w.first, options: node.PodOptions{Annotations: map[string]string{v1alpha1.AnnotationVPC: vpc}}}
	first := 0
	if !w.first {
		first = 1
	}
	if dice.IntN(8) == 0 { // the default VPC, without an annotation
		s.nics, s.entries = []wantNIC{{name: fmt.Sprintf("eth%d", first)}}, []string{"{}"}
		return s
	}
	route := dice.IntN(3 * maxNICs) // mostly no NIC requests the default route
	for i := range 1 + dice.IntN(maxNICs) {
		n := wantNIC{name: fmt.Sprintf("eth%d", first+len(unnamed(s.nics)))}
		var keys []string
		if i > 0 && dice.IntN(6) == 0 {
			n.name = fmt.Sprintf("net-%d", i)
			keys = append(keys, "name: "+n.name)
		}
		if dice.IntN(5) < 2 {
			n.claim = w.take(vpc, dice)
		}
		switch {
		case n.claim != nil:
			keys = append(keys, n.claim.entry)
		case dice.IntN(3) == 0:
			keys = append(keys, "subnet: subnet-2")
		}
		if i == route {
			keys = append(keys, "defaultRoute: true")
		}
		s.entries, s.nics = append(s.entries, "{"+strings.Join(keys, ", ")+"}"), append(s.nics, n)
	}
	s.options.Annotations[v1alpha1.AnnotationNICs] = "[" + strings.Join(s.entries, ", ") + "]"
	return s
}

// unnamed returns the NICs without an explicit name.
func unnamed(nics []wantNIC) []wantNIC {
	return slices.DeleteFunc(slices.Clone(nics), func(n wantNIC) bool { return !strings.HasPrefix(n.name, "eth") })
}

// is compares a pod's CNI result with its shape, and returns its addresses.
func (s shape) is(p *node.Pod) ([]address, error) {
	var all []address
	if s.network == "" || s.beside {
		for _, a := range p.Addrs {
			all = append(all, address{addr: a})
		}
	}
	if s.network == "" {
		return all, nil
	}
	r, err := types100.GetResult(p.Result)
	if err != nil {
		return nil, err
	}
	addrs := map[string][]netip.Addr{}
	for _, ip := range r.IPs {
		if ip.Interface != nil && *ip.Interface < len(r.Interfaces) {
			if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				name := r.Interfaces[*ip.Interface].Name
				addrs[name] = append(addrs[name], a.Unmap())
			}
		}
	}
	macs := map[string]string{}
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			macs[i.Name] = i.Mac
		}
	}
	var errs []error
	for _, n := range s.nics {
		var got []ipfamily.Family
		for _, a := range addrs[n.name] {
			got = append(got, ipfamily.Of(a))
			all = append(all, address{s.network, a})
		}
		if macs[n.name] == "" || !slices.Equal(got, s.families.Families()) {
			errs = append(errs, fmt.Errorf("interface %s has %v, want addresses of %v; all interfaces: %v", n.name, addrs[n.name], s.families.Families(), r.Interfaces))
			continue
		}
		if n.claim != nil {
			if err := n.claim.holds(addrs[n.name], macs[n.name]); err != nil {
				errs = append(errs, fmt.Errorf("%s (%s) %w", n.name, n.claim.entry, err))
			}
		}
		delete(macs, n.name)
	}
	if s.beside {
		delete(macs, "eth0")
	}
	if len(macs) > 0 {
		errs = append(errs, fmt.Errorf("unexpected interfaces %v", macs))
	}
	return all, errors.Join(errs...)
}

// there returns an error if a user's port is gone.
func (w *nicPool) there(ctx context.Context, l *lab.Lab) error {
	if w == nil {
		return nil
	}
	ports, err := l.Ports.Ports(ctx)
	for id, p := range w.ports {
		if !slices.ContainsFunc(ports, func(p portcloud.Port) bool { return p.ID == id }) {
			err = errors.Join(err, fmt.Errorf("user's port %s (%s) is gone", id, p.Name))
		}
	}
	return err
}

// watchPorts checks permanently, until stop is closed, that no port of a user disappears and no PodNIC has two ports.
func (r *round) watchPorts(l *lab.Lab, w *nicPool, stop <-chan struct{}) {
	model, ok := l.Ports.(*portcloud.Model)
	if !ok {
		return
	}
	said := map[string]bool{}
	for {
		there, of := map[string]bool{}, map[string]string{}
		for _, p := range model.Neutron.Ports() {
			there[p.ID] = true
			if other := of[p.Device]; p.Device != "" && other != "" && !said[p.Device] {
				said[p.Device] = true
				r.violate(duplicate, fmt.Sprintf("ports %s and %s belong to the same PodNIC, %s", other, p.ID, p.Device))
			}
			of[p.Device] = p.ID
		}
		for id, p := range w.ports {
			if !there[id] && !said[id] {
				said[id] = true
				r.violate(leak, fmt.Sprintf("user's port %s (%s) is gone", id, p.Name))
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(200 * time.Millisecond): // check interval
		}
	}
}

// tryNICs runs CHECK on each pod of a lab at rest, and checks that pods of a VPC reach each other.
func (r *round) tryNICs(ctx context.Context, l *lab.Lab) {
	before := map[string]*node.Pod{} // by VPC
	for _, n := range l.Nodes() {
		for _, p := range n.Pods() {
			r.ok("CHECK of "+n.Name+"/"+p.Name, n.CheckPod(ctx, p.Name))
			vpc := p.Annotations[v1alpha1.AnnotationVPC]
			if from := before[vpc]; from != nil {
				err := answers(ctx, from, p)
				if err != nil {
					err = fmt.Errorf("%w\n%s\n%s", err, network(ctx, from), network(ctx, p))
				}
				r.ok(fmt.Sprintf("%s/%s reaches %s/%s", from.Node, from.Name, n.Name, p.Name), err)
			}
			before[vpc] = p
		}
	}
}

// answers waits until a pod gets replies from another, in each family that both have.
func answers(ctx context.Context, from, to *node.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, a := range to.Addrs {
		if !slices.ContainsFunc(from.Addrs, func(own netip.Addr) bool { return own.Is4() == a.Is4() }) {
			continue
		}
		err := poll.Until(ctx, func() error {
			once, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, err := from.Ask(once, "udp", a, "hello")
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// network describes a pod's addresses, neighbors, rules and routes.
func network(ctx context.Context, p *node.Pod) string {
	const show = "ip -brief address; ip neighbor; ip rule; ip route show table all type unicast"
	out, err := exec.CommandContext(ctx, "nsenter", "--net="+p.Netns(), "sh", "-c", show).CombinedOutput()
	if err != nil {
		out = fmt.Append(out, err)
	}
	return fmt.Sprintf("network of %s/%s:\n%s", p.Node, p.Name, out)
}

// onlyUsers waits until pods have no PodNICs and, after deleting users' PodNICs, only users' ports are left, unbound.
func onlyUsers(ctx context.Context, l *lab.Lab) error {
	if err := noPorts(ctx, l); err != nil {
		return err
	}
	if err := poll.Until(ctx, func() error {
		return l.Kube.Client.DeleteAllOf(ctx, &v1alpha1.PodNIC{}, client.InNamespace(metav1.NamespaceDefault))
	}); err != nil {
		return err
	}
	return poll.Until(ctx, func() error {
		nics, err := l.Kube.PodNICs(ctx)
		if err != nil {
			return err
		}
		ports, err := l.Ports.Ports(ctx)
		if err != nil {
			return err
		}
		for _, p := range ports {
			if p.Owner != "" || p.Device != "" || p.Host != "" || !strings.HasPrefix(p.Name, "given-") {
				err = errors.Join(err, fmt.Errorf("port %s (%s) is left with device %q, owner %q and host %q", p.ID, p.Name, p.Device, p.Owner, p.Host))
			}
		}
		return errors.Join(err, harness.Equal("PodNICs", len(nics), 0))
	})
}

// hybrid is the node whose agent requires a Linux bridge for each port.
const hybrid = "node-3"

// setHybrid configures the agent of a node that joined, if it is node hybrid.
func setHybrid(l *lab.Lab, name string) {
	if model, ok := l.Ports.(*portcloud.Model); ok && name == hybrid {
		model.Neutron.AddHost(name, neutronfake.Host{Agent: true, Hybrid: true})
	}
}

// TestSoakDrawsNICs checks that pods have one to four NICs, that no claim has two pods, and that claims are returned.
func TestSoakDrawsNICs(t *testing.T) {
	w := &nicPool{first: true, vpcs: twoVPCs(), free: map[string][]*claim{}}
	for _, v := range w.vpcs {
		for i := range 6 {
			w.free[v.Name] = append(w.free[v.Name], &claim{vpc: v.Name, entry: fmt.Sprintf("nic: a-%d", i)})
		}
	}
	dice := rand.New(rand.NewPCG(1, 1))
	counts, held := map[int]int{}, map[*claim]bool{}
	var drawn []shape
	for range 200 {
		s := w.draw(dice)
		counts[len(s.nics)]++
		for _, n := range s.nics {
			if n.claim == nil {
				continue
			}
			if held[n.claim] || n.claim.vpc != s.network {
				t.Fatalf("claim %+v was drawn twice, or for another VPC", n.claim)
			}
			held[n.claim] = true
		}
		if drawn = append(drawn, s); len(drawn) > 10 {
			for _, n := range drawn[0].nics {
				delete(held, n.claim)
			}
			w.back(drawn[0])
			drawn = drawn[1:]
		}
	}
	for n := 1; n <= maxNICs; n++ {
		if counts[n] < 20 {
			t.Errorf("%d of 200 pods have %d NICs, want at least 20", counts[n], n)
		}
	}
	for _, s := range drawn {
		w.back(s)
	}
	for _, v := range w.vpcs {
		if n := len(w.free[v.Name]); n != 6 {
			t.Errorf("%d claims were returned in %s, want 6", n, v.Name)
		}
	}
}
