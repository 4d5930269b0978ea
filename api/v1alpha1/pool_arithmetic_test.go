package v1alpha1_test

import (
	"net/netip"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

// The API server accepts exactly the pools from which blocks can be allocated: the CRD's rules and
// package block agree.
func TestRulesAgreeWithArithmetic(t *testing.T) {
	c := clean(t)
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		bits, subnets := randomPool(t)
		_, err := block.Parse(bits, subnets)
		answer := c.Create(t.Context(), asObject(bits, subnets), client.DryRunAll)
		if answer != nil && !apierrors.IsInvalid(answer) {
			t.Fatal(answer)
		}
		if (err == nil) != (answer == nil) {
			t.Fatalf("bits %d, subnets %v\nthe arithmetic says %v\nthe API server says %v", bits, subnets, err, answer)
		}
		if err == nil {
			accepted++
		} else {
			refused++
		}
	})
	if accepted < 10 || refused < 10 {
		t.Errorf("%d pools were accepted and %d refused: too few of a kind to compare", accepted, refused)
	}
}

// randomPool returns a pool that is valid more often than a uniformly random one.
func randomPool(t *rapid.T) (bits int, subnets []block.Subnet) {
	often := func(what string) bool { return rapid.IntRange(0, 19).Draw(t, what) > 0 }
	bits = rapid.IntRange(0, 4).Draw(t, "bits")
	if !often("sensible bits") {
		bits = rapid.SampledFrom([]int{-1, 16, 17, 33, 1 << 30}).Draw(t, "odd bits")
	}
	v4, v6 := rapid.Bool().Draw(t, "IPv4"), rapid.Bool().Draw(t, "IPv6")
	for range rapid.IntRange(1, 3).Draw(t, "subnets") {
		if !often("the same families") {
			v4, v6 = !v4, rapid.Bool().Draw(t, "IPv6")
		}
		size := rapid.IntRange(3, 8).Draw(t, "size")
		at := byte(rapid.IntRange(0, 40).Draw(t, "third byte"))
		subnet := block.Subnet{}
		prefix := func(a netip.Addr, size int) netip.Prefix {
			p := netip.PrefixFrom(a, a.BitLen()-size)
			if often("no host bits") {
				return p.Masked()
			}
			return p
		}
		if v4 {
			subnet.IPv4 = prefix(netip.AddrFrom4([4]byte{10, 0, at, 17}), size)
		}
		if v6 {
			if !often("as many addresses") {
				size++
			}
			subnet.IPv6 = prefix(netip.AddrFrom16([16]byte{0xfd, 14: at, 15: 17}), size)
		}
		subnets = append(subnets, subnet)
	}
	return bits, subnets
}

func asObject(bits int, subnets []block.Subnet) *v1alpha1.AddressPool {
	size := int32(bits)
	p := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.AddressPoolSpec{BlockSizeBits: &size}}
	text := func(p netip.Prefix) string {
		if !p.IsValid() {
			return ""
		}
		return p.String()
	}
	for _, s := range subnets {
		p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.PoolSubnet{IPv4: text(s.IPv4), IPv6: text(s.IPv6)})
	}
	return p
}
