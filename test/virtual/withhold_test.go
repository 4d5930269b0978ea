package virtual

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

// TestPoolWithholdsAddressesOfNodes has a pool with the address of a node: no pod gets it. Another
// node joins with the address of a running pod: the pod keeps it, pod and pool report it, and no
// further pod gets it.
func TestPoolWithholdsAddressesOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, append(quick, "--ipam=pool")...)
		c := newCluster(t, n.log, "--ipam=pool")
		c.addNode(n)
		c.addPool(v1alpha1.DefaultPool, "10.2.0.0/29", "")
		joins := func(name, address string) {
			o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			check(t, c.admin.Create(t.Context(), o))
			o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
			check(t, c.admin.Status().Update(t.Context(), o))
		}
		joins("node-2", "10.2.0.2")
		c.start()
		n.start()
		n.pods.each(0, 3, n.pods.add)
		n.pods.wantFree("10.2.0.2")
		joined := n.pods.live["pod-0"].addresses[0]
		joins("node-3", joined.String())
		await(t, func() error { return c.reportsShared(joined) })
		if err := n.pods.del("pod-0"); err != nil {
			t.Fatal(err)
		}
		n.pods.each(3, 7, n.pods.add) // all that is left of the pool
		n.pods.wantFree("10.2.0.2", joined.String())
		n.close()
		c.close()
	})
}

// wantFree checks that no pod has an address.
func (p *pods) wantFree(addresses ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addresses {
		if pod, taken := p.owner[netip.MustParseAddr(a)]; taken {
			p.node.t.Errorf("%s has %s, which a node has", pod, a)
		}
	}
}

// reportsShared expects pod-0 and its pool to report that node-3 has its address too.
func (c *cluster) reportsShared(a netip.Addr) error {
	var events eventsv1.EventList
	p := &v1alpha1.AddressPool{}
	if err := c.admin.Get(c.t.Context(), client.ObjectKey{Name: v1alpha1.DefaultPool}, p); err != nil {
		return err
	}
	if m := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionWithheld); m == nil || m.Status != metav1.ConditionTrue || !strings.Contains(m.Message, a.String()+" of Node node-3") {
		return fmt.Errorf("the pool says %v", m)
	}
	if err := c.admin.List(c.t.Context(), &events); err != nil {
		return err
	}
	for _, e := range events.Items {
		if e.Reason == "AddressShared" && e.Regarding.Name == "pod-0" && strings.Contains(e.Note, "Node node-3") {
			return nil
		}
	}
	return fmt.Errorf("%d other events", len(events.Items))
}
