package virtual

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/vpcport"
)

const vpcName = "blue"

// nics are the NICs of a node's pods, ports of one VPC.
type nics struct {
	*node
	c     *cluster
	first nicrequest.First
	asks  map[string]string // the annotation with the NICs, by pod
	ports func() []port     // Berth's ports at the provider
}

// port is a port at a provider.
type port struct {
	id, device string
	address    netip.Addr
}

// withNICs makes a node whose pods ask for NICs in a VPC.
func withNICs(n *node, c *cluster, first nicrequest.First, spec v1alpha1.VPCSpec, asks map[string]string) *nics {
	m := &nics{node: n, c: c, first: first, asks: asks}
	c.addNode(n)
	n.pods.object, n.pods.describe = m.object, m.describe
	spec.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{"default"}}
	check(n.t, c.admin.Create(n.t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: vpcName}, Spec: spec}))
	return m
}

// object creates or deletes a Pod.
func (m *nics) object(name string, exists bool) error {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{v1alpha1.AnnotationVPC: vpcName, v1alpha1.AnnotationNICs: m.asks[name]}},
		Spec:       corev1.PodSpec{NodeName: nodeName},
	}
	if exists {
		return m.c.admin.Create(m.t.Context(), o)
	}
	return client.IgnoreNotFound(m.c.admin.Delete(m.t.Context(), o)) // after a forced deletion there is none
}

// describe adds a pod's UID and annotations to an ADD.
func (m *nics) describe(r *rpc.AddRequest) error {
	o := &corev1.Pod{}
	if err := m.c.admin.Get(m.t.Context(), client.ObjectKey{Namespace: "default", Name: r.GetPod().GetName()}, o); err != nil {
		return err
	}
	r.Pod.Uid, r.Annotations = string(o.UID), &rpc.Annotations{All: o.Annotations}
	return nil
}

// annotate changes the NICs that a running pod asks for.
func (m *nics) annotate(pod, asks string) {
	m.t.Helper()
	m.asks[pod] = asks
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}}
	patch := func(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }
	check(m.t, m.c.admin.Status().Patch(m.t.Context(), o, patch(`{"status":{"phase":"Running"}}`)))
	check(m.t, m.c.admin.Patch(m.t.Context(), o, patch(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationNICs, asks))))
}

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

// agree compares the records, the plugged ports, the PodNICs, the provider's ports, the pods'
// annotations and the replies to ADDs.
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
	return cmp.Or(err, unready, nobodys, inactive, m.repliesAgree(records),
		same("NICs with PodNICs", names(active), asked),
		same("NICs in records", recorded, active),
		same("plugged NICs", plugged, recorded),
		same("ports", m.atProvider(list.Items), has),
		m.pods.call(func(ctx context.Context, client rpc.NodeClient) error {
			_, err := client.Status(ctx, &rpc.StatusRequest{})
			return err
		}))
}

// line is a NIC in a comparison.
func line(pod, ifName, port string, address netip.Addr) string {
	return fmt.Sprintf("%s/%s %s %s", pod, ifName, port, address)
}

// names are the pods and interfaces of lines.
func names(lines []string) (out []string) {
	for _, l := range lines {
		name, _, _ := strings.Cut(l, " ")
		out = append(out, name)
	}
	return out
}

// asked are the NICs that live pods ask for.
func (m *nics) asked() (out []string, err error) {
	m.pods.mu.Lock()
	defer m.pods.mu.Unlock()
	for pod := range m.pods.live {
		list, errs := nicrequest.Pod{Annotations: map[string]string{v1alpha1.AnnotationNICs: m.asks[pod]}}.NICs(m.first, 0)
		err = cmp.Or(err, errs.Err())
		for _, n := range list {
			out = append(out, pod+"/"+n.Name)
		}
	}
	slices.Sort(out)
	return out, err
}

// repliesAgree compares the records with the addresses in the replies to ADDs.
func (m *nics) repliesAgree(records []attachment.Record) error {
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

// inPodNICs are the NICs of all PodNICs, and those of PodNICs with a pod, which must be active.
func inPodNICs(list []v1alpha1.PodNIC) (all, active []string, err error) {
	for i := range list {
		o := &list[i]
		if o.DeletionTimestamp != nil {
			return nil, nil, fmt.Errorf("PodNIC %s is there still: %+v", o.Name, o.Status)
		}
		pod, says := "", o.Status.Node
		ok := o.Spec.Pod == nil && o.Status.Phase == v1alpha1.PhaseCreated
		if o.Status.Pod != nil {
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

// atProvider are the NICs of all ports.
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
