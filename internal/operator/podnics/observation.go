package podnics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

// scene is what is true of a PodNIC at one moment, besides its port.
type scene struct {
	o       *v1alpha1.PodNIC
	pod     *corev1.Pod    // that lives and is to have it; nil: none
	nic     nicrequest.NIC // as that pod means it
	opened  Opened
	shut    error // why the VPC is not open
	now     assignment
	next    assignment // what now is to become, once no node holds it
	first   bool       // it is the pod's first interface, by whose address Kubernetes knows the pod
	host    string     // where that is
	noHost  string     // why that is not known, or not to be
	full    bool       // the node has as many NICs as it may
	held    bool
	until   time.Time // when held is over at the latest; zero: not by itself
	refuse  error     // why no port is made
	limits  nicrequest.Limits
	denied  error // what its namespace may not have of it; a port that it has already stays
	crowded error // why there is no place for it among those of its namespace
	want    nicplan.Want
	anew    []vpcport.NewAddress // those of a new port of a NIC that never had one
}

// assignment is which pod has a NIC, and how.
type assignment struct {
	pod          v1alpha1.PodReference // zero: none
	name         string
	defaultRoute bool
	node         string
}

// assigned is what a PodNIC's status says.
func assigned(o *v1alpha1.PodNIC) assignment {
	a := assignment{name: o.Status.Interface, defaultRoute: o.Status.DefaultRoute, node: o.Status.NodeName}
	if o.Status.Pod != nil {
		a.pod = *o.Status.Pod
	}
	return a
}

// errTrails is that of a cache that does not show yet what is known.
var errTrails = fmt.Errorf("the cache trails")

// look finds out what is true of a PodNIC.
func (c *Controller) look(ctx context.Context, o *v1alpha1.PodNIC, n nic) (*scene, error) {
	s := &scene{o: o, now: assigned(o)}
	s.opened, s.shut = c.o.Networks.Of(o.Spec.VPC)
	var err error
	if o.Spec.Pod != nil {
		err = c.lookAtPod(ctx, s)
	} else {
		err = c.lookForHolder(ctx, s, n)
	}
	if err != nil {
		return nil, err
	}
	s.first = s.next.name == c.o.First.Name
	node, err := c.node(ctx, s.next.node)
	if err != nil {
		return nil, err
	}
	if s.next.node != "" {
		s.host, s.noHost = hostOf(node, s.next.node, s.opened.Spec)
	}
	if err := c.lookForPlace(ctx, s); err != nil {
		return nil, err
	}
	holder := node
	if s.now.node != s.next.node {
		if holder, err = c.node(ctx, s.now.node); err != nil {
			return nil, err
		}
	}
	idle := n.idle
	if idle.IsZero() && (s.pod == nil || s.now.pod.UID != "" && s.now.pod.UID != string(s.pod.UID)) {
		idle = c.now()
	}
	s.held, s.until = held(o.Status.Node, o.Status.PortID, holder, idle, c.now(), c.o.UnplugGrace)
	ns := c.namespace(ctx, o.Namespace)
	if s.shut == nil {
		s.limits, s.denied = nicrequest.LimitsOf(s.opened.Spec, ns.Name, ns.Labels)
		s.denied = cmp.Or(allows(s.opened.Spec, o.Spec.VPC, ns), s.denied, s.beyond(c.o.Cluster, n))
	}
	s.desire(c.o.Cluster, n)
	if s.want.Yields, err = c.yields(ctx, o, n); err != nil {
		return nil, err
	}
	if s.refuse == nil && s.shut == nil {
		s.refuse = cmp.Or(c.ending(ctx, o.Spec.VPC), s.denied)
	}
	return s, nil
}

// beyond is what a NIC asks for, or its port has, that its namespace may not have.
func (s *scene) beyond(cluster string, n nic) error {
	asked := nicOf(s.o.Spec)
	asked.Index = s.nic.Index
	if len(asked.Addresses) == 0 {
		for _, a := range s.o.Status.Addresses {
			asked.Addresses = append(asked.Addresses, nicrequest.Address{Subnet: a.Subnet})
		}
	}
	if p, tag := n.have.Port, vpcport.NamespaceTag(cluster, s.o.Namespace); p != nil && p.ID == s.o.Spec.PortID && p.ID == n.have.Recorded && !slices.Contains(p.Tags, tag) {
		return fmt.Errorf("spec.portID: port %s does not have the tag %s, by which its owner gives it to the namespace", p.ID, tag)
	}
	return s.network().CheckLimits(asked, s.o.Spec.Pod == nil).Err()
}

// ending is an error while a VPC is being deleted: it goes once it has no NICs, and gets
// no new ones.
func (c *Controller) ending(ctx context.Context, vpc string) error {
	if c.vpc(ctx, vpc).DeletionTimestamp != nil {
		return fmt.Errorf("VPC %s is being deleted", vpc)
	}
	return nil
}

// vpc is a VPC as it is known; empty without one.
func (c *Controller) vpc(ctx context.Context, name string) *v1alpha1.VPC {
	o := &v1alpha1.VPC{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: name}, o, client.UnsafeDisableDeepCopy); err != nil {
		return &v1alpha1.VPC{}
	}
	return o
}

// lookAtPod finds the one pod that a PodNIC is for.
func (c *Controller) lookAtPod(ctx context.Context, s *scene) error {
	ref := s.o.Spec.Pod
	p := &corev1.Pod{}
	err := client.IgnoreNotFound(c.client.Get(ctx, client.ObjectKey{Namespace: s.o.Namespace, Name: ref.Name}, p))
	if err != nil {
		return fmt.Errorf("read pod %s/%s from the cache: %w", s.o.Namespace, ref.Name, err)
	}
	if string(p.UID) != ref.UID {
		s.next = s.now // it is deleted, or the cache trails: nothing is changed for that
		return nil
	}
	w, err := c.wishNow(ctx, p, s.o.Spec.VPC)
	if err != nil {
		return err
	}
	s.pod, s.nic = p, nicOf(s.o.Spec)
	if n, ok := named(w.nics, s.o.Spec.Interface); ok {
		s.nic.Index, s.nic.DefaultRoute = n.Index, n.DefaultRoute
	}
	s.next = assignment{pod: *ref, name: s.o.Spec.Interface, node: p.Spec.NodeName}
	s.next.defaultRoute = s.leads(p, w.first, hasDefaultRoute(w.nics, s.nic, w.first))
	return nil
}

// leads tells whether a pod's packets to elsewhere are to leave by the NIC. That of a pod that
// runs stays where it is, whatever its annotation says by now; the PodNIC of the first
// interface may be one that was made again.
func (s *scene) leads(p *corev1.Pod, first nicrequest.First, says bool) bool {
	switch {
	case p.Status.Phase != corev1.PodRunning:
		return says
	case s.now.pod.UID == string(p.UID):
		return s.now.defaultRoute
	}
	return says && first.IsNIC(s.next.name)
}

// lookForHolder finds the pod that has, or is to have, a PodNIC that pods name.
func (c *Controller) lookForHolder(ctx context.Context, s *scene, n nic) error {
	list := &corev1.PodList{}
	if err := c.client.List(ctx, list, client.InNamespace(s.o.Namespace), client.MatchingFields{byObject: s.o.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods that name PodNIC %s/%s: %w", s.o.Namespace, s.o.Name, err)
	}
	namespaceVPC := c.namespaceVPC(ctx, s.o.Namespace)
	has := s.o.Status.Pod
	var candidates []*corev1.Pod
	wishes := map[*corev1.Pod]wish{}
	for i := range list.Items {
		p, vpc := &list.Items[i], namespaceVPC
		holds := has != nil && string(p.UID) == has.UID
		if holds {
			vpc = s.o.Spec.VPC // what the namespace says now is for pods that come
		}
		w, err := c.wishNow(ctx, p, vpc)
		if err != nil {
			return err
		}
		switch {
		case len(w.errs) == 0 && w.vpc == s.o.Spec.VPC:
			candidates = append(candidates, p)
			wishes[p] = w
		case holds:
			s.stays(p)
			return nil
		}
	}
	p := chooseHolder(has, candidates)
	if has != nil && (p == nil || string(p.UID) != has.UID) && n.gone != has.UID {
		holder, err := c.confirmGone(ctx, s.o, *has)
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
	s.goesTo(p, wishes[p])
	return nil
}

// goesTo gives a PodNIC to the pod that names it.
func (s *scene) goesTo(p *corev1.Pod, w wish) {
	for _, n := range w.nics {
		if n.Object == s.o.Name {
			s.nic = n
		}
	}
	s.pod = p
	s.next = assignment{
		pod: v1alpha1.PodReference{Name: p.Name, UID: string(p.UID)}, name: s.nic.Name, node: p.Spec.NodeName,
	}
	s.next.defaultRoute = s.leads(p, w.first, hasDefaultRoute(w.nics, s.nic, w.first))
}

// isClaimed tells whether a pod is to have a PodNIC that a user made, and none has it yet.
func (s *scene) isClaimed() bool {
	return s.o.Spec.Pod == nil && s.now.pod.UID == "" && s.next.pod.UID != ""
}

// stays leaves a PodNIC to the pod that has it, whose annotations by now ask for what is
// refused.
func (s *scene) stays(p *corev1.Pod) {
	s.pod, s.next = p, s.now
	s.next.node = p.Spec.NodeName
}

// confirmGone finds whether a pod that had a PodNIC has it no more. It returns the pod if
// that lives and what it asks for cannot be read; the cache that trails is an error.
func (c *Controller) confirmGone(ctx context.Context, o *v1alpha1.PodNIC, has v1alpha1.PodReference) (*corev1.Pod, error) {
	over, p, err := c.over(ctx, o.Namespace, has)
	if err != nil {
		return nil, err
	}
	if !over {
		if slices.Contains(namedObjects(p), o.Name) {
			return nil, errTrails
		}
		if _, errs := nicrequest.Parse(p.Annotations[v1alpha1.AnnotationNICs]); len(errs) > 0 {
			return p, nil
		}
	}
	c.book.edit(o.UID, func(n *nic) { n.gone = has.UID })
	return nil, nil
}

// lookForPlace finds whether the node has as many NICs of the VPC as it may: those that
// are bound there already, and of the others those that were made before.
func (c *Controller) lookForPlace(ctx context.Context, s *scene) error {
	most := s.opened.Spec.MaxNICsPerNode
	if most == nil || s.host == "" || s.o.Status.Host == s.host {
		return nil
	}
	list := &v1alpha1.PodNICList{}
	if err := c.client.List(ctx, list, client.MatchingFields{byNode: s.next.node}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list PodNICs of node %s: %w", s.next.node, err)
	}
	before := 0
	for i := range list.Items {
		other := &list.Items[i]
		older := cmp.Or(other.CreationTimestamp.Compare(s.o.CreationTimestamp.Time), cmp.Compare(other.UID, s.o.UID)) < 0
		if other.Spec.VPC == s.o.Spec.VPC && other.UID != s.o.UID && (other.Status.Host == s.host || older) {
			before++
		}
	}
	if before >= int(*most) {
		s.full, s.host = true, ""
		s.noHost = fmt.Sprintf("node %s has %d NICs in VPC %s, which is as many as it may (spec.maxNICsPerNode of the VPC)", s.next.node, *most, s.o.Spec.VPC)
	}
	return nil
}

// node is a Node as it is known; nil without one.
func (c *Controller) node(ctx context.Context, name string) (*corev1.Node, error) {
	if name == "" {
		return nil, nil
	}
	n := &corev1.Node{}
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, n, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Node %s from the cache: %w", name, err)
	}
	return n, nil
}

// desire is what is asked of the provider.
func (s *scene) desire(cluster string, n nic) {
	uid := string(s.o.UID)
	w := nicplan.Want{
		Cluster: cluster, Device: vpcport.Device(cluster, uid), Name: portName(uid, s.o.Namespace, s.o.Name), Given: s.o.Spec.PortID,
		Host: s.host, Over: s.o.DeletionTimestamp != nil, Held: s.held, Leaving: s.now.node != s.next.node,
	}
	if w.Host == "" && n.have.Port != nil && (s.pod == nil && s.o.Spec.Pod != nil || s.noHost != "") {
		w.Host = n.have.Port.Host // where its node is, nobody says just now
	}
	defer func() { s.want = w }()
	if s.shut != nil {
		return
	}
	traits := s.opened.Provider.Traits()
	w.Network, w.Idempotent = s.opened.Network.ID, traits.Idempotent
	if w.Given != "" {
		w.Tag = vpcport.NamespaceTag(cluster, s.o.Namespace)
		return
	}
	if s.opened.Spec.PortMAC != v1alpha1.PortMACProvider && traits.ChosenMAC {
		w.MAC = vpcport.DerivedMAC(cluster, uid, n.try)
	}
	w.Groups = s.o.Spec.SecurityGroups
	if w.Groups == nil {
		w.Groups = s.opened.Spec.DefaultSecurityGroups
	}
	if s.denied != nil && n.have.Port != nil {
		w.Groups = nil // its port keeps those that it has
	}
	s.anew, s.refuse = s.asked()
	if before := s.before(n); len(before) > 0 {
		w.Addresses, s.refuse = before, nil
	} else {
		w.Addresses = s.anew
	}
	if traits.NeedsHost && len(w.Addresses) == 0 {
		w.Subnets = s.network().Among()
	}
	if s.refuse == nil && traits.NeedsHost && s.noHost != "" {
		s.refuse = errors.New(s.noHost)
	}
}

// portName is the name of a port that Berth makes for a PodNIC. It begins with the UID,
// which nobody knows before the PodNIC is there: by that the sweep knows it from a port that a
// user made, whatever that is called. The rest is for people, and may be cut by a provider.
func portName(uid, namespace, name string) string {
	return portPrefix(uid) + namespace + "/" + name
}

func portPrefix(uid string) string { return "berth/" + uid + "/" }

// before are the addresses that the PodNIC had, which a new port is to have again; none: those
// that are asked for.
func (s *scene) before(n nic) (before []vpcport.NewAddress) {
	if n.anew && s.o.Spec.Pod != nil { // one that outlives pods waits for its own
		return nil
	}
	for _, a := range s.o.Status.Addresses {
		if p, err := netip.ParsePrefix(a.CIDR); err == nil && a.Subnet != "" {
			before = append(before, vpcport.NewAddress{SubnetID: a.Subnet, IP: p.Addr()})
		}
	}
	return before
}

// asked are the addresses that are asked for.
func (s *scene) asked() ([]vpcport.NewAddress, error) {
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

// details are errors without the fields of a pod.
func details(errs nicrequest.Errors) string {
	texts := make([]string, len(errs))
	for i, e := range errs {
		texts[i] = e.Detail
	}
	return strings.Join(texts, "; ")
}

// network is what the NIC is held against.
func (s *scene) network() nicrequest.Network {
	of := s.opened.Spec
	return nicrequest.Network{
		VPC: s.o.Spec.VPC, Subnets: s.opened.Network.Subnets, Default: of.DefaultSubnets, Limits: s.limits,
		Lends: of.Provider == v1alpha1.ProviderAlcor, Zones: of.Provider == v1alpha1.ProviderEC2,
	}
}
