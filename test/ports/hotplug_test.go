package ports

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// annotate changes the NICs that a running pod requests.
func (b *bench) annotate(p *node.Pod, nics string) {
	b.Helper()
	harness.OK(b.T, b.Kube.AnnotatePod(harness.Deadline(b.T, harness.Patience), p, v1alpha1.AnnotationNICs, nics))
}

// find returns the PodNIC of an interface of a pod, or nil.
func (b *bench) find(p *node.Pod, link string) (*v1alpha1.PodNIC, error) {
	all, err := b.Kube.PodNICs(b.Context())
	for i := range all {
		if n := &all[i]; n.Status.Pod != nil && n.Status.Pod.UID == p.UID && n.Status.Interface == link {
			return n, err
		}
	}
	return nil, err
}

// plugged waits until the PodNIC of an interface is Plugged.
func (b *bench) plugged(p *node.Pod, link string) *v1alpha1.PodNIC {
	b.Helper()
	return b.says(p, link, metav1.ConditionTrue, "Plugged", "by node "+p.Node)
}

// says waits until the condition Plugged of an interface's PodNIC has a status, a reason and some words.
func (b *bench) says(p *node.Pod, link string, status metav1.ConditionStatus, reason string, words ...string) (nic *v1alpha1.PodNIC) {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, fmt.Sprintf("%s of pod %s is %s", link, p.Name, reason), func() (err error) {
		if nic, err = b.find(p, link); err != nil || nic == nil {
			return errors.Join(err, errors.New("it has no PodNIC"))
		}
		c := meta.FindStatusCondition(nic.Status.Conditions, v1alpha1.ConditionPlugged)
		if c == nil || c.Status != status || c.Reason != reason || !harness.Says(c.Message, words...) {
			return fmt.Errorf("it says %+v of %+v", nic.Status.Conditions, nic.Status.Node)
		}
		return nil
	})
	return nic
}

// gone waits until an interface of a pod and its PodNIC are gone.
func (b *bench) gone(p *node.Pod, link string) {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, fmt.Sprintf("%s of pod %s is gone", link, p.Name), func() error {
		nic, err := b.find(p, link)
		if err != nil || nic != nil {
			return fmt.Errorf("there is %+v: %w", nic, err)
		}
		return harness.Equal("interfaces of the name", b.index(p, link), 0)
	})
}

// index is the index of an interface in a pod, or 0.
func (b *bench) index(p *node.Pod, name string) (index int) {
	b.Helper()
	harness.OK(b.T, ns.Netlink(p.Netns(), func(h *netlink.Handle) error {
		l, err := h.LinkByName(name)
		if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
			return nil
		}
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	}))
	return index
}

// answers waits until a pod gets an answer from an address.
func (b *bench) answers(from *node.Pod, at string) {
	b.Helper()
	harness.Eventually(b.T, time.Minute, from.Name+" reaches "+at, func() error { return ask(b.Context(), from, at) })
}

func ask(ctx context.Context, from *node.Pod, at string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := from.Ask(ctx, "tcp", netip.MustParseAddr(at), "hello")
	return err
}

// hotPlugAgain adds a NIC to a running pod, removes it, and adds another NIC of that name and one more.
func (b *bench) hotPlugAgain() {
	ctx := harness.Deadline(b.T, harness.Patience)
	p, near, far := b.add(b.a, "grows", ""), b.add(b.b, "near", ""), b.add(b.b, "far", "[{subnet: subnet-2}]")
	first, before := b.index(p, "eth0"), b.nic(p, "eth0")
	b.annotate(p, "[{}, {name: eth1, subnet: subnet-2, ip: 192.168.1.40}]")
	nic := b.plugged(p, "eth1")
	b.answers(p, far.Addr().String())
	harness.OK(b.T, b.a.CheckPod(ctx, "grows")) // the runtime's copy of the result lacks the NIC
	b.annotate(p, "[{}]")
	b.gone(p, "eth1")
	harness.Settle(b.T, b.Lab)
	harness.OK(b.T, b.a.CheckPod(ctx, "grows"))
	b.annotate(p, "[{}, {name: eth1, subnet: subnet-2, ip: 192.168.1.41}, {name: storage}]")
	if again := b.plugged(p, "eth1"); again.UID == nic.UID {
		b.Errorf("it is the PodNIC of before: %+v", again)
	}
	b.plugged(p, "storage")
	b.answers(far, "192.168.1.41")
	b.answers(near, p.Addr().String())
	harness.OK(b.T, b.a.CheckPod(ctx, "grows"))
	if after := b.nic(p, "eth0"); after.UID != before.UID || after.Status.PortID != before.Status.PortID || b.index(p, "eth0") != first {
		b.Errorf("its first interface was %d of %+v, is %d of %+v", first, before.Status, b.index(p, "eth0"), after.Status)
	}
	b.clear()
}

// hotPlugRefused edits a NIC of a running pod, and adds one that cannot be plugged: Events on the pod
// say so, and it keeps what it has.
func (b *bench) hotPlugRefused() {
	p := b.add(b.a, "stays", "[{subnet: subnet-1}]")
	before := b.nic(p, "eth0")
	b.annotate(p, "[{subnet: subnet-2}]")
	b.event(p, "NICsRefused", "eth0 cannot be changed while the pod has it")
	b.annotate(p, "[{subnet: subnet-1}, {name: eth1, subnet: subnet-2, defaultRoute: true}]")
	b.event(p, "NICsRefused", "[1].defaultRoute", "is added")

	// Somebody in the pod has the name already.
	stranger := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "stranger"}
	harness.OK(b.T, ns.Netlink(p.Netns(), func(h *netlink.Handle) error {
		return h.LinkAdd(stranger)
	}))
	b.annotate(p, "[{subnet: subnet-1}, {name: eth1, subnet: subnet-2}]")
	b.says(p, "eth1", metav1.ConditionFalse, "InterfaceExists", "remove that interface from the pod")
	b.event(p, "InterfaceExists", "NIC eth1")
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "stays"))
	harness.OK(b.T, ns.Netlink(p.Netns(), func(h *netlink.Handle) error {
		return h.LinkDel(stranger)
	}))
	b.plugged(p, "eth1") // it was tried again

	if after := b.nic(p, "eth0"); after.UID != before.UID || after.Status.PortID != before.Status.PortID || !after.Status.DefaultRoute {
		b.Errorf("eth0 was %+v, is %+v", before.Status, after.Status)
	}
	b.clear()
}

// event waits until a pod has an Event with a reason and some words.
func (b *bench) event(p *node.Pod, reason string, words ...string) {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, "the Event "+reason, func() error {
		list := &corev1.EventList{}
		if err := b.Kube.Client.List(b.Context(), list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.InvolvedObject.Name != p.ObjectName {
				continue
			}
			if e.Reason == reason && harness.Says(e.Message, words...) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are %s", strings.Join(seen, "\n"))
	})
}

// hotPlugOfUsersNICs moves a user's PodNIC from one running pod to another.
func (b *bench) hotPlugOfUsersNICs() {
	ctx := harness.Deadline(b.T, harness.Patience)
	nic := &v1alpha1.PodNIC{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "floating"},
		Spec:       v1alpha1.PodNICSpec{VPC: b.VPCs[0].Name, Addresses: []v1alpha1.NICAddress{{Subnet: "subnet-2", IP: "192.168.1.60"}}},
	}
	harness.OK(b.T, b.Kube.Client.Create(ctx, nic))
	one, two, far := b.add(b.a, "one", ""), b.add(b.b, "two", ""), b.add(b.b, "far", "[{subnet: subnet-2}]")
	var port string
	for _, step := range []struct{ to, from *node.Pod }{{one, two}, {two, one}, {one, two}} {
		b.annotate(step.from, "[{}]")
		b.annotate(step.to, "[{}, {name: vip, nic: floating}]")
		has := b.plugged(step.to, "vip")
		if port != "" && has.Status.PortID != port {
			b.Errorf("it has port %s, had %s", has.Status.PortID, port)
		}
		port = has.Status.PortID
		b.answers(far, "192.168.1.60")
		harness.Settle(b.T, b.Lab)
	}
	harness.RemoveAll(b.T, b.a)
	harness.RemoveAll(b.T, b.b)
	harness.OK(b.T, b.Kube.Client.Delete(ctx, nic))
	b.empty()
}

// hotPlugWhileKilled adds and removes NICs while berthd is killed again and again: in the end all pods have the NICs
// that they request.
func (b *bench) hotPlugWhileKilled() {
	const pods, rounds = 3, 8
	var all []*node.Pod
	for i := range pods {
		all = append(all, b.add(b.a, fmt.Sprintf("killed-%d", i), ""))
	}
	far := b.add(b.b, "far", "[{subnet: subnet-2}]")
	for round := range rounds {
		for i, p := range all {
			nics := "[{}]"
			if (round+i)%2 == 0 {
				nics = fmt.Sprintf("[{}, {name: eth1, subnet: subnet-2, ip: 192.168.1.%d}, {name: eth2}]", 70+i)
			}
			b.annotate(p, nics)
		}
		harness.OK(b.T, b.a.Kill())
		harness.OK(b.T, b.a.Start())
		harness.OK(b.T, b.a.WaitReady(harness.Deadline(b.T, harness.Patience)))
	}
	for i, p := range all {
		b.annotate(p, fmt.Sprintf("[{}, {name: eth1, subnet: subnet-2, ip: 192.168.1.%d}]", 70+i))
	}
	for i, p := range all {
		b.plugged(p, "eth1")
		b.gone(p, "eth2")
		b.answers(far, fmt.Sprintf("192.168.1.%d", 70+i))
	}
	b.clear()
}

// addressesThatChange gives ports other addresses at the provider: a further NIC gets
// them, and for the first NIC a condition and an Event say so.
func (b *bench) addressesThatChange() {
	p, far := b.add(b.a, "moves", "[{}, {name: eth1, subnet: subnet-2, ip: 192.168.1.90}]"), b.add(b.b, "far", "[{subnet: subnet-2}]")
	b.answers(far, "192.168.1.90")
	move := func(nic *v1alpha1.PodNIC, to string) {
		b.model.Neutron.Edit(nic.Status.PortID, func(port *neutronfake.Port) { port.FixedIPs[0].IP = netip.MustParseAddr(to) })
	}
	index := b.index(p, "eth1")
	move(b.nic(p, "eth1"), "192.168.1.91")
	harness.Eventually(b.T, time.Minute, "eth1 has its port's address", func() error {
		if got := addresses(b.nic(p, "eth1")); got != "192.168.1.91" {
			return errors.New("its PodNIC has " + got)
		}
		return nil
	})
	b.answers(far, "192.168.1.91")
	if b.index(p, "eth1") != index {
		b.Error("it was plugged anew, and not changed in place")
	}
	harness.Settle(b.T, b.Lab)
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "moves"))

	was := p.Addr().String()
	move(b.nic(p, "eth0"), "192.168.0.99")
	b.says(p, "eth0", metav1.ConditionFalse, "AddressChanged", "192.168.0.99/24", was, "recreate the pod")
	b.event(p, "AddressChanged", "NIC eth0")
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "moves"))
	move(b.nic(p, "eth0"), was)
	b.plugged(p, "eth0")
	b.clear()
}
