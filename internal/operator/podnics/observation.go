package podnics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

// observation is a snapshot of a PodNIC and everything related, and the resulting desired state of its NIC.
type observation struct {
	o       *v1alpha1.PodNIC
	pod     *corev1.Pod    // the live pod that is to have it, or nil
	nic     nicrequest.NIC // the NIC as requested by that pod
	opened  Opened
	closed  error // why the VPC's provider is not open
	now     assignment
	next    assignment // the assignment that replaces now once no node holds the port
	first   bool       // whether it is the pod's first interface, whose address Kubernetes shows
	host    nodeHost   // the host of next's node
	hold    hold
	limits  nicrequest.Limits
	denied  error // what the namespace is not allowed; an existing port stays
	refused error // why no port is created
	full    error // why it exceeds the namespace's quota
	desired nicplan.Desired
}

// assignment says which pod has a NIC, and how.
type assignment struct {
	pod          v1alpha1.PodReference // zero if no pod has it
	name         string
	defaultRoute bool
	node         string
}

// assigned returns the assignment in a PodNIC's status.
func assigned(st v1alpha1.PodNICStatus) assignment {
	a := assignment{name: st.Interface, defaultRoute: st.DefaultRoute, node: st.NodeName}
	if st.Pod != nil {
		a.pod = *st.Pod
	}
	return a
}

// errStale means that the cache does not show yet what is already known.
var errStale = errors.New("the cache is stale")

// observer takes observations of PodNICs.
type observer struct {
	o       Options
	api     *kubeAPI
	history *podHistory
	states  *nicStates
}

// observe takes an observation of a PodNIC. It returns errStale while the cache is behind.
func (v *observer) observe(ctx context.Context, o *v1alpha1.PodNIC, n nic) (*observation, error) {
	s := &observation{o: o, now: assigned(o.Status)}
	s.opened, s.closed = v.o.Networks.Of(o.Spec.VPC)
	find := v.findHolder
	if o.Spec.Pod != nil {
		find = v.findPod
	}
	if err := find(ctx, s, n); err != nil {
		return nil, err
	}
	s.first = s.next.name == v.o.First.Name
	if err := v.observeNode(ctx, s, n); err != nil {
		return nil, err
	}
	ns := v.api.namespace(ctx, o.Namespace)
	if s.closed == nil {
		s.limits, s.denied = nicrequest.LimitsOf(s.opened.Spec, ns.Name, ns.Labels)
		s.denied = cmp.Or(allows(s.opened.Spec, o.Spec.VPC, ns), s.denied, s.beyond(v.o.Cluster, n))
	}
	s.desire(v.o.Cluster, n)
	var err error
	if s.desired.Yields, err = v.yields(ctx, o, n); err != nil {
		return nil, err
	}
	if s.refused == nil && s.closed == nil {
		s.refused = cmp.Or(v.api.ending(ctx, o.Spec.VPC), s.denied)
	}
	return s, nil
}

// constraints returns what forbids or delays the NIC's next step now.
func (v *observer) constraints(ctx context.Context, s *observation, n nic) nicplan.Constraints {
	c := nicplan.Constraints{
		Now: v.o.Clock.Now(), Closed: s.closed != nil, Claimed: s.isClaimed(), Refused: s.refused != nil,
		NodeFull: s.host.full, HeldUntil: s.hold.until, Warm: s.mayTake(), UsedBy: v.usedBy(ctx, s.o, n.observed.Port),
	}
	if s.closed == nil {
		traits := s.opened.Provider.Traits()
		c.NeedsHost = traits.NeedsHost
		if s.desired.Over {
			c.CoolUntil = coolUntil(s.o.DeletionTimestamp.Time, s.o.Status.Node, s.o.Status.PortID, v.o.UnplugGrace, traits.Cooling)
		}
	}
	if s.unscheduled() {
		c.Scheduling = v.states.scheduling(n)
	}
	return c
}

// unscheduled reports whether the pod that is to have the NIC has no node yet.
func (s *observation) unscheduled() bool { return s.pod != nil && s.next.node == "" }

// usedBy returns the PodNIC of this cluster that has a port, or "" if there is none or it is the NIC's own.
func (v *observer) usedBy(ctx context.Context, o *v1alpha1.PodNIC, p *vpcport.Port) string {
	if p == nil {
		return ""
	}
	uid, ours := vpcport.DeviceUID(v.o.Cluster, p.Device)
	if !ours || uid == string(o.UID) {
		return ""
	}
	list, err := objects.List[v1alpha1.PodNICList](ctx, v.api.client, client.MatchingFields{byUID: uid})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	return list.Items[0].Namespace + "/" + list.Items[0].Name
}

// observeNode determines where the NIC's port is to be bound, and whether a node holds it.
func (v *observer) observeNode(ctx context.Context, s *observation, n nic) error {
	node, err := v.api.node(ctx, s.next.node)
	if err != nil {
		return err
	}
	if s.next.node != "" {
		s.host.name, s.host.why = hostOf(node, s.next.node, s.opened.Spec)
	}
	if err := v.observeRoom(ctx, s); err != nil {
		return err
	}
	holder := node
	if s.now.node != s.next.node {
		if holder, err = v.api.node(ctx, s.now.node); err != nil {
			return err
		}
	}
	idle, now := n.idle, v.o.Clock.Now()
	if idle.IsZero() && s.isIdle() {
		idle = now
	}
	s.hold = holdOf(s.o.Status.Node, s.o.Status.PortID, holder, idle, now, v.o.UnplugGrace)
	return nil
}

// isIdle reports whether no live pod has the NIC.
func (s *observation) isIdle() bool {
	return s.pod == nil || s.now.pod.UID != "" && s.now.pod.UID != string(s.pod.UID)
}

// beyond returns an error if a NIC requests, or its port has, something that its namespace may not have.
func (s *observation) beyond(cluster string, n nic) error {
	asked := nicOf(s.o.Spec)
	asked.Index = s.nic.Index
	if len(asked.Addresses) == 0 {
		for _, a := range s.o.Status.Addresses {
			asked.Addresses = append(asked.Addresses, nicrequest.Address{Subnet: a.Subnet})
		}
	}
	if p, tag := n.observed.Port, vpcport.NamespaceTag(cluster, s.o.Namespace); p != nil && p.ID == s.o.Spec.PortID && p.ID == n.observed.Recorded && !slices.Contains(p.Tags, tag) {
		return fmt.Errorf("spec.portID: port %s does not have the tag %s, by which its owner gives it to the namespace", p.ID, tag)
	}
	return s.network().CheckLimits(asked, s.o.Spec.Pod == nil).Err()
}

// findPod finds the one pod that a PodNIC was created for.
func (v *observer) findPod(ctx context.Context, s *observation, _ nic) error {
	ref := s.o.Spec.Pod
	p, err := objects.Get[corev1.Pod](ctx, v.api.client, client.ObjectKey{Namespace: s.o.Namespace, Name: ref.Name}, objects.Shared)
	if err != nil {
		return err
	}
	if p == nil || string(p.UID) != ref.UID {
		s.next = s.now // deleted, or the cache is stale: nothing changes because of that
		return nil
	}
	r, err := v.history.request(ctx, p, s.o.Spec.VPC)
	if err != nil {
		return err
	}
	s.pod, s.nic = p, nicOf(s.o.Spec)
	if n, ok := named(r.nics, s.o.Spec.Interface); ok {
		s.nic.Index, s.nic.DefaultRoute = n.Index, n.DefaultRoute
	}
	s.next = assignment{pod: *ref, name: s.o.Spec.Interface, node: p.Spec.NodeName}
	s.next.defaultRoute = s.leads(p, r.first, hasDefaultRoute(r.nics, s.nic, r.first))
	return nil
}

// leads reports whether the NIC is to have its pod's default route. In a running pod the default route stays where it is, whatever
// the annotation says now. The PodNIC of the first interface may have been recreated.
func (s *observation) leads(p *corev1.Pod, first nicrequest.First, says bool) bool {
	switch {
	case p.Status.Phase != corev1.PodRunning:
		return says
	case s.now.pod.UID == string(p.UID):
		return s.now.defaultRoute
	}
	return says && first.IsNIC(s.next.name)
}

// findHolder finds the pod that has, or is to have, a PodNIC that pods name.
func (v *observer) findHolder(ctx context.Context, s *observation, n nic) error {
	list, err := objects.List[corev1.PodList](ctx, v.api.client, client.InNamespace(s.o.Namespace), client.MatchingFields{byObject: s.o.Name})
	if err != nil {
		return fmt.Errorf("list pods that name PodNIC %s/%s: %w", s.o.Namespace, s.o.Name, err)
	}
	namespaceVPC := v.api.namespaceVPC(ctx, s.o.Namespace)
	has := s.o.Status.Pod
	var candidates []*corev1.Pod
	requests := map[*corev1.Pod]request{}
	for i := range list.Items {
		p, vpc := &list.Items[i], namespaceVPC
		holds := has != nil && string(p.UID) == has.UID
		if holds {
			vpc = s.o.Spec.VPC // a changed VPC of the namespace applies only to new pods
		}
		r, err := v.history.request(ctx, p, vpc)
		if err != nil {
			return err
		}
		switch {
		case len(r.errs) == 0 && r.vpc == s.o.Spec.VPC:
			candidates = append(candidates, p)
			requests[p] = r
		case holds:
			s.stays(p)
			return nil
		}
	}
	p := chooseHolder(has, candidates)
	if has != nil && (p == nil || string(p.UID) != has.UID) && n.gone != has.UID {
		holder, err := v.confirmGone(ctx, s.o, *has)
		if err != nil {
			return err
		}
		if holder != nil {
			s.stays(holder)
			return nil
		}
	}
	if p == nil || s.o.DeletionTimestamp != nil && (has == nil || string(p.UID) != has.UID) {
		return nil
	}
	s.goesTo(p, requests[p])
	return nil
}

// goesTo assigns a PodNIC to a pod that names it.
func (s *observation) goesTo(p *corev1.Pod, r request) {
	for _, n := range r.nics {
		if n.Object == s.o.Name {
			s.nic = n
		}
	}
	s.pod = p
	s.next = assignment{
		pod: v1alpha1.PodReference{Name: p.Name, UID: string(p.UID)}, name: s.nic.Name, node: p.Spec.NodeName,
	}
	s.next.defaultRoute = s.leads(p, r.first, hasDefaultRoute(r.nics, s.nic, r.first))
}

// isClaimed reports whether a user's PodNIC without a pod is to be assigned to one.
func (s *observation) isClaimed() bool {
	return s.o.Spec.Pod == nil && s.now.pod.UID == "" && s.next.pod.UID != ""
}

// stays leaves a PodNIC with the pod that has it although the pod's annotations are now rejected.
func (s *observation) stays(p *corev1.Pod) {
	s.pod, s.next = p, s.now
	s.next.node = p.Spec.NodeName
}

// confirmGone asks the API server whether a pod that had a PodNIC still has it. It returns the pod if it is alive and its
// annotation cannot be read. It returns errStale if the pod does have the PodNIC.
func (v *observer) confirmGone(ctx context.Context, o *v1alpha1.PodNIC, has v1alpha1.PodReference) (*corev1.Pod, error) {
	over, p, err := v.api.isOver(ctx, o.Namespace, has)
	if err != nil {
		return nil, err
	}
	if !over {
		if slices.Contains(namedObjects(p), o.Name) {
			return nil, errStale
		}
		if _, errs := nicrequest.Parse(p.Annotations[v1alpha1.AnnotationNICs]); len(errs) > 0 {
			return p, nil
		}
	}
	v.states.edit(o.UID, func(n *nic) { n.gone = has.UID })
	return nil, nil
}

// observeRoom determines whether the node has the maximum number of NICs of the VPC. NICs that are bound there count, and of the
// others the older ones.
func (v *observer) observeRoom(ctx context.Context, s *observation) error {
	most := s.opened.Spec.MaxNICsPerNode
	if most == nil || s.host.name == "" || s.o.Status.Host == s.host.name {
		return nil
	}
	list, err := objects.List[v1alpha1.PodNICList](ctx, v.api.client, client.MatchingFields{byNode: s.next.node})
	if err != nil {
		return fmt.Errorf("list PodNICs of node %s: %w", s.next.node, err)
	}
	before := 0
	for i := range list.Items {
		other := &list.Items[i]
		older := cmp.Or(other.CreationTimestamp.Compare(s.o.CreationTimestamp.Time), cmp.Compare(other.UID, s.o.UID)) < 0
		if other.Spec.VPC == s.o.Spec.VPC && other.UID != s.o.UID && (other.Status.Host == s.host.name || older) {
			before++
		}
	}
	if before >= int(*most) {
		s.host.full, s.host.name = true, ""
		s.host.why = fmt.Sprintf("node %s has %d NICs in VPC %s, the most that spec.maxNICsPerNode of the VPC allows", s.next.node, *most, s.o.Spec.VPC)
	}
	return nil
}

// warms reports whether the VPC has warm ports.
func (s *observation) warms() bool { return s.closed == nil && s.opened.Provider.Traits().Warm }

// mayTake reports whether a warm port would do. This is the case for NICs that were created for a live pod.
func (s *observation) mayTake() bool {
	return s.warms() && s.desired.Given == "" && s.o.Spec.Pod != nil && s.pod != nil && !s.desired.Over && s.refused == nil
}

// yields reports whether a NIC gives up a warm port that it took and that does not have its mark yet, because a replaced operator
// may have recorded it for another NIC too. The port stays with the NIC whose node has it plugged, otherwise with one that is not
// being deleted, otherwise with the older one.
func (v *observer) yields(ctx context.Context, o *v1alpha1.PodNIC, n nic) (bool, error) {
	p := n.observed.Port
	if p == nil {
		return false, nil
	}
	if _, warm := p.WarmVPC(v.o.Cluster); !warm {
		return false, nil
	}
	list, err := objects.List[v1alpha1.PodNICList](ctx, v.api.client, client.MatchingFields{byPort: p.ID})
	if err != nil {
		return false, fmt.Errorf("list PodNICs with port %s: %w", p.ID, err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.UID != o.UID && precedes(other, o, p.ID) {
			return true, nil
		}
	}
	return false, nil
}

// precedes reports whether a port that is recorded in two PodNICs stays with a.
func precedes(a, b *v1alpha1.PodNIC, port string) bool {
	needs := func(o *v1alpha1.PodNIC) int {
		switch says := o.Status.Node; {
		case says != nil && says.PortID == port && says.State == v1alpha1.NodePlugged:
			return 0
		case o.DeletionTimestamp == nil:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(needs(a), needs(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0
}

func (s *observation) desire(cluster string, n nic) {
	uid := string(s.o.UID)
	d := nicplan.Desired{
		Port:  vpcport.NewPort{Device: vpcport.Device(cluster, uid), Name: vpcport.PortName(uid, s.o.Namespace, s.o.Name), Host: s.host.name},
		Given: s.o.Spec.PortID, Cluster: cluster, Over: s.o.DeletionTimestamp != nil, Held: s.hold.held, Leaving: s.now.node != s.next.node,
	}
	port := &d.Port
	if port.Host == "" && n.observed.Port != nil && (s.pod == nil && s.o.Spec.Pod != nil || s.host.why != "") {
		port.Host = n.observed.Port.Host // keep the host while it is unknown where the node is
	}
	defer func() { s.desired = d }()
	if s.closed != nil {
		return
	}
	traits := s.opened.Provider.Traits()
	port.NetworkID, d.Idempotent = s.opened.Network.ID, traits.Idempotent
	if d.Given != "" {
		d.Tag = vpcport.NamespaceTag(cluster, s.o.Namespace)
		return
	}
	if s.opened.Spec.PortMAC != v1alpha1.PortMACProvider && traits.ChosenMAC {
		port.MAC = vpcport.DerivedMAC(cluster, uid, n.history.macs)
	}
	port.Groups = s.o.Spec.SecurityGroups
	if port.Groups == nil {
		port.Groups = s.opened.Spec.DefaultSecurityGroups
	}
	if s.denied != nil && n.observed.Port != nil {
		port.Groups = nil // its port keeps its addresses
	}
	port.Addresses, s.refused = s.asked()
	if before := s.before(n); len(before) > 0 {
		port.Addresses, s.refused = before, nil
	}
	if traits.NeedsHost && len(port.Addresses) == 0 {
		port.Subnets = s.network().Among()
	}
	if s.refused == nil && traits.NeedsHost && s.host.why != "" {
		s.refused = errors.New(s.host.why)
	}
}

// before returns the addresses that the PodNIC had, which a new port is to have again. If there are none, the port gets those in the
// spec.
func (s *observation) before(n nic) (before []vpcport.NewAddress) {
	if n.history.readdr && s.o.Spec.Pod != nil { // a PodNIC that outlives pods waits for its own addresses
		return nil
	}
	for _, a := range s.o.Status.Addresses {
		if p, err := netip.ParsePrefix(a.CIDR); err == nil && a.Subnet != "" {
			before = append(before, vpcport.NewAddress{SubnetID: a.Subnet, IP: p.Addr()})
		}
	}
	return before
}

// asked returns the addresses that the spec requests.
func (s *observation) asked() ([]vpcport.NewAddress, error) {
	asked := nicOf(s.o.Spec)
	asked.Index = s.nic.Index
	resolved, errs := nicrequest.Resolve([]nicrequest.NIC{asked}, s.network())
	if err := errs.Err(); err != nil {
		if s.o.Spec.Pod == nil {
			err = fmt.Errorf("spec.addresses: %s", details(errs))
		}
		return nil, err
	}
	var out []vpcport.NewAddress
	for _, a := range resolved[0].Addresses {
		out = append(out, vpcport.NewAddress{SubnetID: a.Subnet, IP: a.IP})
	}
	return out, nil
}

// details returns the texts of errors without the names of a pod's fields.
func details(errs nicrequest.Errors) string {
	texts := make([]string, len(errs))
	for i, e := range errs {
		texts[i] = e.Detail
	}
	return strings.Join(texts, "; ")
}

// network returns the network that the NIC is checked against.
func (s *observation) network() nicrequest.Network {
	of := s.opened.Spec
	return nicrequest.Network{
		VPC: s.o.Spec.VPC, Subnets: s.opened.Network.Subnets, Default: of.DefaultSubnets, Limits: s.limits,
		Lends: of.Provider == v1alpha1.ProviderAlcor, Zones: of.Provider == v1alpha1.ProviderEC2,
	}
}
