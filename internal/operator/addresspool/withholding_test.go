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
		t.Error(got)
	}
	for i := range 100 {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.2.1.%d", i)})
	}
	if got := nodeAddresses(n); len(got) != maxNodeAddresses || got[7] != netip.MustParseAddr("10.2.1.4") {
		t.Errorf("a node that lists a hundred keeps %v from pods", got)
	}
}

func TestWithheld(t *testing.T) {
	for name, tc := range map[string]struct {
		block  string
		others string // of nodes, or of Services
		want   string
		full   bool // no pod can have an address of it
	}{
		"nobody":                     {block: "10.2.0.0/29"},
		"a node elsewhere":           {block: "10.2.0.0/29", others: "10.2.0.8 10.1.255.255"},
		"a node":                     {block: "10.2.0.0/29", others: "10.2.0.2", want: "10.2.0.2/32"},
		"first and last":             {block: "10.2.0.0/29", others: "10.2.0.0 10.2.0.7", want: "10.2.0.0/32 10.2.0.7/32"},
		"a node of both families":    {block: "10.2.0.0/30+fd02::/126", others: "10.2.0.2 fd02::3", want: "10.2.0.2/32 fd02::3/128"},
		"both families, all places":  {block: "10.2.0.0/31+fd02::/127", others: "10.2.0.0 fd02::1", want: "10.2.0.0/32 fd02::1/128", full: true},
		"both families, one place":   {block: "10.2.0.0/31+fd02::/127", others: "10.2.0.1 fd02::1", want: "10.2.0.1/32 fd02::1/128"},
		"a block of one":             {block: "10.2.0.2/32", others: "10.2.0.2", want: "10.2.0.2/32", full: true},
		"a block of one of IPv6":     {block: "fd02::2/128", others: "fd02::2", want: "fd02::2/128", full: true},
		"Services have more":         {block: "10.2.0.0/29", others: "10.0.0.0/8 10.2.0.2", want: "10.2.0.0/29 10.2.0.2/32", full: true},
		"Services have a half":       {block: "10.2.0.0/29", others: "10.2.0.4/30 10.2.0.5", want: "10.2.0.4/30 10.2.0.5/32"},
		"half of Services, and more": {block: "10.2.0.0/30", others: "10.2.0.2/31 10.2.0.0 10.2.0.1", want: "10.2.0.2/31 10.2.0.0/32 10.2.0.1/32", full: true},
		"Services of the other":      {block: "10.2.0.0/30+fd02::/126", others: "fd02::/112", want: "fd02::/126", full: true},
		"a large block":              {block: "10.2.0.0/16", others: "10.2.77.3", want: "10.2.77.3/32"},
	} {
		t.Run(name, func(t *testing.T) {
			o, b := occupiedBy(tc.others), pieceAt(tc.block)
			out := o.withheldOf(b)
			var got []string
			for _, w := range out {
				got = append(got, w.CIDR)
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("withheld: %v, want %s", got, tc.want)
			}
			if hasRoom(b, out) == tc.full {
				t.Errorf("room: %t", !tc.full)
			}
		})
	}
	var many []string
	for i := range v1alpha1.MaxWithheld + 1 {
		many = append(many, fmt.Sprintf("10.2.0.%d", i))
	}
	b := pieceAt("10.2.0.0/24+fd02::/120")
	if out := occupiedBy(strings.Join(many, " ")).withheldOf(b); len(out) != 1 || out[0].CIDR != "10.2.0.0/24" || hasRoom(b, out) {
		t.Errorf("of a block with too many: %v", out)
	}
}

// occupiedBy has ranges of Services, and addresses of a node each.
func occupiedBy(others string) *occupied {
	o := newOccupied()
	for i, text := range strings.Fields(others) {
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

// Two nodes may say that they have one address; it is free when neither does.
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
			t.Errorf("step %d: changed %v", i, changed)
		}
		var got []string
		for _, r := range o.within(netip.MustParsePrefix("10.2.0.0/24")) {
			got = append(got, r.String())
		}
		if strings.Join(got, ", ") != step.want {
			t.Errorf("step %d: %v, want %s", i, got, step.want)
		}
	}
	if len(o.owners) != 1 || len(o.sorted) != 1 {
		t.Errorf("left: %+v", o)
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
		{"b", addrs("10.2.0.9"), time.Second, addressesEvery - time.Second}, // it had one before
	} {
		if got := o.wait(tc.node, tc.addresses, t0.Add(tc.after)); got != tc.want {
			t.Errorf("%s gets %v after %v: in %v, want %v", tc.node, tc.addresses, tc.after, got, tc.want)
		}
	}
}

// A pool may have addresses of nodes, also of those that come later, and lie: their
// blocks are reported, and the pool says so.
func TestAddressesOfNodes(t *testing.T) {
	harness.KubeClean(t)
	withAddresses(t, "n", "10.2.0.1", "10.2.0.8")
	_, end := start(t, Options{Grace: time.Hour})
	makePool(t, "p", 2, "10.2.0.0/27")
	withheldIs(t, given(t, "r0", "n", "p").Name, "10.2.0.1/32 Node n")
	poolIs(t, "p", "it is reported", says("no pod gets 10.2.0.1 of Node n, 10.2.0.8 of Node n: "))
	controllers.AwaitEvent(t, poolNamed("p"), reasonUsedElsewhere)
	withAddresses(t, "late", "10.2.0.3", "10.2.0.5")
	withheldIs(t, "p-0", "10.2.0.1/32 Node n", "10.2.0.3/32 Node late")
	withheldIs(t, given(t, "r1", "n", "p").Name, "10.2.0.5/32 Node late")
	poolIs(t, "p", "it is reported", says("10.2.0.5 of Node late"))

	c := harness.KubeClient(t)
	harness.OK(t, c.Delete(t.Context(), nodeNamed("late")))
	withheldIs(t, "p-0", "10.2.0.1/32 Node n")
	withheldIs(t, "p-1")

	// A node with a block keeps its addresses while its Node is missing.
	harness.OK(t, c.Delete(t.Context(), nodeNamed("n")))
	withheldIs(t, given(t, "r2", "n", "p").Name, "10.2.0.8/32 Node n")

	// Blocks of one address that a node has are not given.
	withAddresses(t, "m", "10.3.0.0", "10.3.0.2")
	poolIs(t, "p", "unchanged", says("10.2.0.8 of Node n: "))
	makePool(t, "q", 0, "10.3.0.0/30")
	for i, want := range []string{"q-1", "q-3"} {
		harness.OK(t, controllers.Same("the block", given(t, fmt.Sprint("q", i), "m", "q").Name, want))
	}
	ask(t, "q2", "m", "q")
	failed(t, "q2", v1alpha1.ReasonPoolExhausted, "all 4 blocks")
	poolIs(t, "q", "it has two, and none free", controllers.If(func(p *v1alpha1.AddressPool) bool {
		return p.Status.Blocks == v1alpha1.PoolCounts{Total: 4, Allocated: 2}
	}))

	// The next operator cannot read what a missing Node had, except from blocks.
	end()
	o, _ := start(t, Options{Grace: time.Hour})
	stillWithheld(t, o, "p-0", "10.2.0.1/32 Node n")
	stillWithheld(t, o, "p-2", "10.2.0.8/32 Node n")
	stillWithheld(t, o, "p-1")
}

// A pool that overlaps the ranges of Services is refused: at admission, and by the
// operator where that did not see it. One that had its subnets before keeps them.
func TestAddressesOfServices(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	c := harness.KubeClient(t)
	services := &networkingv1.ServiceCIDRList{}
	eventually(t, "the API server has its own ServiceCIDR", func(c client.Client) error {
		if err := c.List(t.Context(), services); err != nil || len(services.Items) > 0 {
			return err
		}
		return fmt.Errorf("none")
	})
	o, end := start(t, Options{})
	withoutPolicy(t, "berth-pools-do-not-overlap-services")
	makeOverlapping(t, "over", 0, services.Items[0].Spec.CIDRs[0])
	poolIs(t, "over", "it is refused", condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolOverlaps))

	makePool(t, "p", 2, "10.222.0.0/29")
	b := given(t, "r0", "n", "p")
	more := &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.222.0.0/30"}}}
	more.Name = "more"
	harness.OK(t, c.Create(t.Context(), more))
	t.Cleanup(func() { harness.OK(t, c.Delete(context.Background(), more)) })
	makePool(t, "other", 2, "10.223.0.0/29") // the ranges are read for it, too
	poolIs(t, "other", "it is accepted", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady))
	harness.OK(t, o.sweep(t.Context()))
	withheldIs(t, b.Name, "10.222.0.0/30 ServiceCIDR more")
	poolIs(t, "p", "it is reported", says("10.222.0.0/30 of ServiceCIDR more"))

	// An operator that cannot read the ranges goes on with what blocks say, and accepts
	// no subnet.
	end()
	o, _ = start(t, Options{}, harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/servicecidrs") {
			return nil, errors.New("the test does not send this")
		}
		return next.RoundTrip(r)
	}))
	given(t, "r1", "n", "p")
	harness.OK(t, o.sweep(t.Context()))
	stillWithheld(t, o, b.Name, "10.222.0.0/30 ServiceCIDR more")
	makePool(t, "later", 2, "10.224.0.0/29")
	poolIs(t, "later", "it waits", condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolOverlaps))
}

// stillWithheld is withheldIs after an operator has reconciled the block.
func stillWithheld(t *testing.T, o *Controller, name string, want ...string) {
	t.Helper()
	_, err := o.inherited.before(o.withholding.reconcile)(t.Context(), queue.Request(name))
	harness.OK(t, err)
	withheldIs(t, name, want...)
}

// withAddresses makes a Node as its kubelet does.
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

// withheldIs waits until a block says what is withheld of it: each a CIDR and its owner.
func withheldIs(t *testing.T, name string, want ...string) {
	t.Helper()
	controllers.AwaitValue(t, "what is withheld of "+name, func() (got []string) {
		for _, w := range controllers.Get[v1alpha1.AddressBlock](t, client.ObjectKey{Name: name}).Withheld {
			got = append(got, w.CIDR+" "+w.Owner)
		}
		return got
	}, want)
}

// says wants the condition AddressesWithheld of a pool to have some words.
func says(words string) func(*v1alpha1.AddressPool) error {
	return condition(v1alpha1.ConditionWithheld, metav1.ConditionTrue, reasonUsedElsewhere, words)
}
