package addresspool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestNodeAddresses(t *testing.T) {
	n := &corev1.Node{}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "10.9.9.9"}, {Type: corev1.NodeInternalIP, Address: "10.2.0.2"},
		{Type: corev1.NodeExternalIP, Address: "10.2.0.2"}, {Type: corev1.NodeInternalIP, Address: "::ffff:10.2.0.3"},
		{Type: corev1.NodeInternalIP, Address: "fe80::1%eth0"}, {Type: corev1.NodeInternalIP, Address: "nonsense"},
	}
	if got := fmt.Sprint(nodeAddresses(n)); got != "[10.2.0.2 10.2.0.3 fe80::1]" {
		t.Errorf("nodeAddresses() = %s, want the IP addresses without duplicates", got)
	}
	for i := range 100 {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.2.1.%d", i)})
	}
	if got := nodeAddresses(n); len(got) != maxNodeAddresses || got[7] != netip.MustParseAddr("10.2.1.4") {
		t.Errorf("nodeAddresses() of a node with a hundred addresses = %v, want the first 8", got)
	}
}

func TestWithheld(t *testing.T) {
	for name, tc := range map[string]struct {
		block  string
		others string // addresses of nodes, CIDRs of Services, and ranges that the pool reserves as +CIDR
		want   string
		full   bool // whether no address is left for a pod
	}{
		"no addresses in use":                    {block: "10.2.0.0/29"},
		"node outside the block":                 {block: "10.2.0.0/29", others: "10.2.0.8 10.1.255.255"},
		"node in the block":                      {block: "10.2.0.0/29", others: "10.2.0.2", want: "10.2.0.2/32"},
		"first and last address":                 {block: "10.2.0.0/29", others: "10.2.0.0 10.2.0.7", want: "10.2.0.0/32 10.2.0.7/32"},
		"dual-stack node":                        {block: "10.2.0.0/30+fd02::/126", others: "10.2.0.2 fd02::3", want: "10.2.0.2/32 fd02::3/128"},
		"dual-stack, all positions withheld":     {block: "10.2.0.0/31+fd02::/127", others: "10.2.0.0 fd02::1", want: "10.2.0.0/32 fd02::1/128", full: true},
		"dual-stack, one position withheld":      {block: "10.2.0.0/31+fd02::/127", others: "10.2.0.1 fd02::1", want: "10.2.0.1/32 fd02::1/128"},
		"block of one address":                   {block: "10.2.0.2/32", others: "10.2.0.2", want: "10.2.0.2/32", full: true},
		"block of one IPv6 address":              {block: "fd02::2/128", others: "fd02::2", want: "fd02::2/128", full: true},
		"Service range contains the block":       {block: "10.2.0.0/29", others: "10.0.0.0/8 10.2.0.2", want: "10.2.0.0/29 10.2.0.2/32", full: true},
		"Service range is half of the block":     {block: "10.2.0.0/29", others: "10.2.0.4/30 10.2.0.5", want: "10.2.0.4/30 10.2.0.5/32"},
		"Service range and nodes fill the block": {block: "10.2.0.0/30", others: "10.2.0.2/31 10.2.0.0 10.2.0.1", want: "10.2.0.2/31 10.2.0.0/32 10.2.0.1/32", full: true},
		"IPv6 Service range":                     {block: "10.2.0.0/30+fd02::/126", others: "fd02::/112", want: "fd02::/126", full: true},
		"reserved address and node":              {block: "10.2.0.0/29", others: "10.2.0.2 +10.2.0.5/32", want: "10.2.0.5/32 10.2.0.2/32"},
		"reserved range contains the block":      {block: "10.2.0.0/29", others: "+10.2.0.0/24", want: "10.2.0.0/29", full: true},
		"reserved halves":                        {block: "10.2.0.0/30+fd02::/126", others: "+10.2.0.0/31 +fd02::2/127", want: "10.2.0.0/31 fd02::2/127", full: true},
		"reserved range with a range inside":     {block: "10.2.0.0/29", others: "+10.2.0.4/32 +10.2.0.4/30 +nonsense", want: "10.2.0.4/30"},
		"large block":                            {block: "10.2.0.0/16", others: "10.2.77.3", want: "10.2.77.3/32"},
	} {
		t.Run(name, func(t *testing.T) {
			o, b := occupiedBy(tc.others), pieceAt(tc.block)
			out := o.withheldOf("p", b)
			var got []string
			for _, w := range out {
				got = append(got, w.CIDR)
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("withheldOf() = %v, want %s", got, tc.want)
			}
			if hasRoom(b, out) == tc.full {
				t.Errorf("hasRoom() = %t", !tc.full)
			}
		})
	}
	var many []string
	for i := range v1alpha1.MaxWithheld + 1 {
		many = append(many, fmt.Sprintf("10.2.0.%d", i))
	}
	b := pieceAt("10.2.0.0/24+fd02::/120")
	if out := occupiedBy(strings.Join(many, " ")).withheldOf("p", b); len(out) != 1 || out[0].CIDR != "10.2.0.0/24" || hasRoom(b, out) {
		t.Errorf("withheldOf() with more than MaxWithheld addresses = %v, want the whole block", out)
	}
}

// occupiedBy returns the state with these Service ranges and node addresses, one node each.
func occupiedBy(others string) *occupied {
	o := newOccupied()
	reserving := newPool("p", 0, "10.2.0.0/16")
	defer func() { o.reserve("p", reservedRanges(reserving)) }()
	o.reserve("other", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")})
	for i, text := range strings.Fields(others) {
		if c, ok := strings.CutPrefix(text, "+"); ok {
			reserving.Spec.Reserved = append(reserving.Spec.Reserved, c)
			continue
		}
		if c, err := netip.ParsePrefix(text); err == nil {
			o.ranges = append(o.ranges, ownedRange{Prefix: c, other: "ServiceCIDR s"})
			continue
		}
		o.set(fmt.Sprintf("n%d", i), []netip.Addr{netip.MustParseAddr(text)}, t0)
	}
	return o
}

func pieceAt(cidrs string) block.Block {
	v4, v6, _ := strings.Cut(cidrs, "+")
	if strings.Contains(v4, ":") {
		v4, v6 = "", v4
	}
	return piece(&v1alpha1.AddressBlock{IPv4: v4, IPv6: v6})
}

// Two nodes may report the same address; it is free when neither does.
func TestOccupied(t *testing.T) {
	o := newOccupied()
	addrs := func(texts ...string) (out []netip.Addr) {
		for _, s := range texts {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	for i, step := range []struct {
		node      string
		addresses []netip.Addr
		changed   int
		want      string
	}{
		{"b", addrs("10.2.0.9", "10.2.0.2"), 2, "10.2.0.2 of Node b, 10.2.0.9 of Node b"},
		{"a", addrs("10.2.0.2"), 1, "10.2.0.2 of Node a, 10.2.0.9 of Node b"},
		{"b", addrs("10.2.0.3", "10.2.0.9"), 2, "10.2.0.2 of Node a, 10.2.0.3 of Node b, 10.2.0.9 of Node b"},
		{"b", nil, 2, "10.2.0.2 of Node a"},
		{"a", addrs("10.3.0.1"), 2, ""},
	} {
		if changed := o.set(step.node, step.addresses, t0); len(changed) != step.changed {
			t.Errorf("step %d: set() = %v, want %d changes", i, changed, step.changed)
		}
		var got []string
		for _, r := range o.within(netip.MustParsePrefix("10.2.0.0/24")) {
			got = append(got, r.String())
		}
		if strings.Join(got, ", ") != step.want {
			t.Errorf("step %d: within() = %v, want %s", i, got, step.want)
		}
	}
	if len(o.owners) != 1 || len(o.sorted) != 1 {
		t.Errorf("occupied = %+v, want one address left", o)
	}
	for _, tc := range []struct {
		node      string
		addresses []netip.Addr
		after     time.Duration
		want      time.Duration
	}{
		{"new", addrs("10.2.0.1"), 0, 0},
		{"a", addrs("10.3.0.1", "10.3.0.2"), 4 * time.Second, addressesEvery - 4*time.Second},
		{"a", addrs("10.3.0.1", "10.3.0.2"), addressesEvery, 0},
		{"a", addrs("10.3.0.1"), 0, 0},
		{"a", nil, 0, 0},
		{"b", addrs("10.2.0.9"), time.Second, addressesEvery - time.Second}, // b had an address a moment ago
	} {
		if got := o.wait(tc.node, tc.addresses, t0.Add(tc.after)); got != tc.want {
			t.Errorf("wait(%s, %v) after %v = %v, want %v", tc.node, tc.addresses, tc.after, got, tc.want)
		}
	}
}

// A pool may overlap addresses of nodes, including nodes that join later and nodes that lie. The
// addresses are withheld in their blocks and reported in the pool's status.
func TestAddressesOfNodes(t *testing.T) {
	harness.KubeClean(t)
	withAddresses(t, "n", "10.2.0.1", "10.2.0.8")
	_, end := start(t, Options{Grace: time.Hour})
	makePool(t, "p", 2, "10.2.0.0/27")
	withheldIs(t, given(t, "r0", "n", "p").Name, "10.2.0.1/32 Node n")
	poolIs(t, "p", "AddressesWithheld", says("no pod gets 10.2.0.1 of Node n, 10.2.0.8 of Node n: "))
	controllers.AwaitEvent(t, poolNamed("p"), reasonUsedElsewhere)
	withAddresses(t, "late", "10.2.0.3", "10.2.0.5")
	withheldIs(t, "p-0", "10.2.0.1/32 Node n", "10.2.0.3/32 Node late")
	withheldIs(t, given(t, "r1", "n", "p").Name, "10.2.0.5/32 Node late")
	poolIs(t, "p", "AddressesWithheld", says("10.2.0.5 of Node late"))

	c := harness.KubeClient(t)
	harness.OK(t, c.Delete(t.Context(), nodeNamed("late")))
	withheldIs(t, "p-0", "10.2.0.1/32 Node n")
	withheldIs(t, "p-1")

	// A node with a block keeps its addresses withheld while its Node is missing.
	harness.OK(t, c.Delete(t.Context(), nodeNamed("n")))
	withheldIs(t, given(t, "r2", "n", "p").Name, "10.2.0.8/32 Node n")

	// A block whose only address belongs to a node is not allocated.
	withAddresses(t, "m", "10.3.0.0", "10.3.0.2")
	poolIs(t, "p", "AddressesWithheld unchanged", says("10.2.0.8 of Node n: "))
	makePool(t, "q", 0, "10.3.0.0/30")
	for i, want := range []string{"q-1", "q-3"} {
		harness.OK(t, controllers.Same("name of the block", given(t, fmt.Sprint("q", i), "m", "q").Name, want))
	}
	ask(t, "q2", "m", "q")
	failed(t, "q2", v1alpha1.ReasonPoolExhausted, "all 4 blocks")
	poolIs(t, "q", "two blocks allocated and none free", controllers.If(func(p *v1alpha1.AddressPool) bool {
		return p.Status.Blocks == v1alpha1.PoolCounts{Total: 4, Allocated: 2}
	}))

	// The next operator knows the addresses of a missing Node only from blocks.
	end()
	o, _ := start(t, Options{Grace: time.Hour})
	stillWithheld(t, o, "p-0", "10.2.0.1/32 Node n")
	stillWithheld(t, o, "p-2", "10.2.0.8/32 Node n")
	stillWithheld(t, o, "p-1")
}

// A pool that overlaps Service ranges is rejected at admission, and refused by the operator where
// admission missed the overlap. A pool whose subnets were accepted earlier keeps them.
func TestAddressesOfServices(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	c := harness.KubeClient(t)
	services := &networkingv1.ServiceCIDRList{}
	eventually(t, "default ServiceCIDR exists", func(c client.Client) error {
		if err := c.List(t.Context(), services); err != nil || len(services.Items) > 0 {
			return err
		}
		return fmt.Errorf("no ServiceCIDR exists")
	})
	o, end := start(t, Options{})
	withoutPolicy(t, "berth-pools-do-not-overlap-services")
	makeOverlapping(t, "over", 0, services.Items[0].Spec.CIDRs[0])
	poolIs(t, "over", "refused", condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolOverlaps))

	makePool(t, "p", 2, "10.222.0.0/29")
	b := given(t, "r0", "n", "p")
	more := &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.222.0.0/30"}}}
	more.Name = "more"
	harness.OK(t, c.Create(t.Context(), more))
	t.Cleanup(func() { harness.OK(t, c.Delete(context.Background(), more)) })
	makePool(t, "other", 2, "10.223.0.0/29") // accepting it reads the ranges again
	poolIs(t, "other", "accepted", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady))
	harness.OK(t, o.sweep(t.Context()))
	withheldIs(t, b.Name, "10.222.0.0/30 ServiceCIDR more")
	poolIs(t, "p", "AddressesWithheld", says("10.222.0.0/30 of ServiceCIDR more"))

	// An operator that cannot read the ranges relies on the withheld addresses in blocks, and accepts
	// no subnets.
	end()
	o, _ = start(t, Options{}, harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/servicecidrs") {
			return nil, errors.New("request dropped by the test")
		}
		return next.RoundTrip(r)
	}))
	given(t, "r1", "n", "p")
	harness.OK(t, o.sweep(t.Context()))
	stillWithheld(t, o, b.Name, "10.222.0.0/30 ServiceCIDR more")
	makePool(t, "later", 2, "10.224.0.0/29")
	poolIs(t, "later", "not accepted", condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolOverlaps))
}

// Ranges that a pool reserves are assigned to no pod: a block that is reserved as a whole is not allocated, and in
// others the node is told. Ranges can change at any time.
func TestReservedRanges(t *testing.T) {
	harness.KubeClean(t)
	withAddresses(t, "n", "10.2.0.1")
	_, end := start(t, Options{Sweep: time.Hour})
	p := newPool("p", 2, "10.2.0.0/28")
	p.Spec.Reserved = []string{"10.2.0.3/32", "10.2.0.8/29"}
	controllers.Create(t, p)
	withheldIs(t, given(t, "r0", "n", "p").Name, "10.2.0.3/32 AddressPool p", "10.2.0.1/32 Node n")
	withheldIs(t, given(t, "r1", "n", "p").Name)
	ask(t, "r2", "n", "p")
	failed(t, "r2", v1alpha1.ReasonPoolExhausted, "all 4 blocks")
	poolIs(t, "p", "AddressesWithheld without reserved ranges", says("no pod gets 10.2.0.1 of Node n: give"))

	reserve := func(ranges string) {
		t.Helper()
		harness.OK(t, harness.KubeClient(t).Patch(t.Context(), poolNamed("p"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"reserved":`+ranges+`}}`))))
	}
	reserve(`["10.2.0.4/31", "10.2.0.12/30"]`)
	withheldIs(t, "p-0", "10.2.0.1/32 Node n")
	withheldIs(t, "p-1", "10.2.0.4/31 AddressPool p")
	harness.OK(t, controllers.Same("name of the block", answered(t, "r2").Name, "p-2"))

	// The next operator knows the ranges before it looks at a block.
	end()
	o, _ := start(t, Options{Sweep: time.Hour})
	stillWithheld(t, o, "p-1", "10.2.0.4/31 AddressPool p")
	reserve("null")
	withheldIs(t, "p-1")
	harness.OK(t, controllers.Same("name of the block", given(t, "r3", "n", "p").Name, "p-3"))
}

// stillWithheld reconciles a block and then checks it as withheldIs does.
func stillWithheld(t *testing.T, o *Controller, name string, want ...string) {
	t.Helper()
	_, err := o.inherited.before(o.withholding.reconcile)(t.Context(), queue.Request(name))
	harness.OK(t, err)
	withheldIs(t, name, want...)
}

// withAddresses creates a Node and sets its addresses as a kubelet does.
func withAddresses(t *testing.T, name string, addresses ...string) {
	t.Helper()
	makeNode(t, name)
	n := nodeNamed(name)
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(n), n))
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	harness.OK(t, harness.KubeClient(t).Status().Update(t.Context(), n))
}

// withheldIs waits until a block's withheld entries are want, each a CIDR and its owner.
func withheldIs(t *testing.T, name string, want ...string) {
	t.Helper()
	controllers.AwaitValue(t, "withheld addresses of "+name, func() (got []string) {
		for _, w := range controllers.Get[v1alpha1.AddressBlock](t, client.ObjectKey{Name: name}).Withheld {
			got = append(got, w.CIDR+" "+w.Owner)
		}
		return got
	}, want)
}

// says checks that the condition AddressesWithheld of a pool contains these words.
func says(words string) func(*v1alpha1.AddressPool) error {
	return condition(v1alpha1.ConditionWithheld, metav1.ConditionTrue, reasonUsedElsewhere, words)
}
