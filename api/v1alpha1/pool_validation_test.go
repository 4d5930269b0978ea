package v1alpha1_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/test/harness"
)

// The messages that several cases expect.
const (
	fixedSize   = "blockSizeBits must be between 0 and 16"
	ipv4Text    = "ipv4 must be an IPv4 CIDR without host bits, such as 10.2.0.0/16"
	ipv6Text    = "ipv6 must be an IPv6 CIDR without host bits, such as fd01:203:405:607::/112"
	sameSize    = "ipv4 and ipv6 must have the same number of addresses: with an ipv4 /24, ipv6 must be a /120"
	sameFamily  = "subnets must all have the same families: ipv4, ipv6, or both"
	overlapIPv4 = "subnets must not overlap: the ipv4 ranges of two subnets do"
	overlapIPv6 = "subnets must not overlap: the ipv6 ranges of two subnets do"
	holdsBlock  = "subnets must each hold a block: ipv4 a /(32-blockSizeBits) or larger, ipv6 a /(128-blockSizeBits) or larger; with blockSizeBits 5, /27 and /123"

	reservedText   = "reserved must be CIDRs without host bits, such as 10.2.0.0/28 or 10.2.0.1/32"
	reservedInside = "reserved ranges must be inside a subnet of the pool"

	poolName   = "metadata.name must be at most 63 lower-case letters, digits and hyphens: it is a label of the pool's blocks"
	appendOnly = "subnets can only be appended: changing or removing one would renumber blocks that nodes have"
)

var badPools = []refusal{
	{"no spec", "null", "spec", "Required value"},
	{"subnets not set", "{}", "spec.subnets", "Required value"},
	{"an empty list of subnets", "{subnets: []}", "spec.subnets", "should have at least 1 items"},
	{"an empty subnet", "{subnets: [{ipv4: 10.0.0.0/24}, {}]}", "spec.subnets[1]", "a subnet must have ipv4, ipv6 or both"},
	{"not a CIDR", "{subnets: [{ipv4: a.b.c.d/16}]}", "spec.subnets[0].ipv4", ipv4Text},
	{"an address without a prefix length", "{subnets: [{ipv4: 10.0.0.0}]}", "spec.subnets[0].ipv4", ipv4Text},
	{"an empty CIDR", "{subnets: [{ipv4: ''}]}", "spec.subnets[0].ipv4", ipv4Text},
	{"not an IPv6 CIDR", "{subnets: [{ipv6: 'fd00::g/112'}]}", "spec.subnets[0].ipv6", ipv6Text},
	{"families swapped", "{subnets: [{ipv4: 'fd00::/112'}]}", "spec.subnets[0].ipv4", ipv4Text},
	{"families swapped in ipv6", "{subnets: [{ipv6: 10.0.0.0/24}]}", "spec.subnets[0].ipv6", ipv6Text},
	{"an IPv4-mapped IPv6 CIDR", "{subnets: [{ipv6: '::ffff:10.0.0.0/120'}]}", "spec.subnets[0].ipv6", ipv6Text},
	{"host bits", "{subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.1.0.1/24}]}", "spec.subnets[1].ipv4", ipv4Text},
	{"IPv6 host bits", "{subnets: [{ipv6: 'fd00::1/112'}]}", "spec.subnets[0].ipv6", ipv6Text},
	{"sizes differ", "{subnets: [{ipv4: 10.0.0.0/24, ipv6: 'fd00::/112'}]}", "spec.subnets[0]", sameSize},
	{"/30 with bits 5", "{blockSizeBits: 5, subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.1.0.0/30}]}", "spec.subnets", holdsBlock},
	{"/124 with bits 5", "{subnets: [{ipv6: 'fd00::/124'}]}", "spec.subnets", holdsBlock},
	{"negative bits", "{blockSizeBits: -1, subnets: [{ipv4: 10.0.0.0/24}]}", "spec.blockSizeBits", fixedSize},
	{"too many bits", "{blockSizeBits: 17, subnets: [{ipv4: 10.0.0.0/8}]}", "spec.blockSizeBits", fixedSize},
	{"bits that are not a number", "{blockSizeBits: five, subnets: [{ipv4: 10.0.0.0/8}]}", "spec.blockSizeBits", "must be of type integer"},
	{"overlap", "{subnets: [{ipv4: 10.0.0.0/16}, {ipv4: 10.1.0.0/16}, {ipv4: 10.0.1.0/24}]}", "spec.subnets", overlapIPv4},
	{"overlap, the larger one last", "{subnets: [{ipv4: 10.0.1.0/24}, {ipv4: 10.0.0.0/16}]}", "spec.subnets", overlapIPv4},
	{"the same subnet twice", "{subnets: [{ipv4: 10.0.0.0/16}, {ipv4: 10.0.0.0/16}]}", "spec.subnets", overlapIPv4},
	{"overlap in IPv6 alone", "{subnets: [{ipv4: 10.0.0.0/24, ipv6: 'fd00::/120'}, {ipv4: 10.0.1.0/24, ipv6: 'fd00:0::/120'}]}", "spec.subnets", overlapIPv6},
	{"mixed families", "{subnets: [{ipv4: 10.0.0.0/24}, {ipv6: 'fd00::/120'}]}", "spec.subnets", sameFamily},
	{"only one subnet is dual-stack", "{subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.0.1.0/24, ipv6: 'fd00::/120'}]}", "spec.subnets", sameFamily},
	{"maxBlocksPerNode of 0", "{subnets: [{ipv4: 10.0.0.0/24}], maxBlocksPerNode: 0}", "spec.maxBlocksPerNode", "maxBlocksPerNode must be between 1 and 65536"},
	{"maxBlocksPerNode above the maximum", "{subnets: [{ipv4: 10.0.0.0/24}], maxBlocksPerNode: 65537}", "spec.maxBlocksPerNode", "maxBlocksPerNode must be between 1 and 65536"},
	{"a reserved address without a prefix length", "{subnets: [{ipv4: 10.0.0.0/24}], reserved: [10.0.0.1]}", "spec.reserved", reservedText},
	{"host bits in a reserved range", "{subnets: [{ipv4: 10.0.0.0/24}], reserved: [10.0.0.0/28, 10.0.0.1/28]}", "spec.reserved", reservedText},
	{"a reserved range outside", "{subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.0.2.0/24}], reserved: [10.0.2.0/28, 10.0.1.0/28]}", "spec.reserved", reservedInside},
	{"a reserved range that is larger than its subnet", "{subnets: [{ipv4: 10.0.0.0/24}], reserved: [10.0.0.0/23]}", "spec.reserved", reservedInside},
	{"a reserved range of the other family", "{subnets: [{ipv4: 10.0.0.0/24}], reserved: ['fd00::/120']}", "spec.reserved", reservedInside},
	{"the same reserved range twice", "{subnets: [{ipv4: 10.0.0.0/24}], reserved: [10.0.0.0/28, 10.0.0.0/28]}", "spec.reserved[1]", "Duplicate value"},
	{"a pattern for a namespace", "{subnets: [{ipv4: 10.0.0.0/24}], podNamespaces: ['*']}", "spec.podNamespaces", "podNamespaces must be namespace names"},
	{"the same namespace twice", "{subnets: [{ipv4: 10.0.0.0/24}], podNamespaces: [a, a]}", "spec.podNamespaces[1]", "Duplicate value"},
}

func TestBadPoolIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, badPools, func(t *testing.T, spec string) error { return c.Create(t.Context(), newPool(t, "default", spec)) })
	for _, name := range []string{strings.Repeat("a", 64), "a.b"} {
		refused(t, c.Create(t.Context(), newPool(t, name, "{subnets: [{ipv4: 10.0.0.0/24}]}")), "metadata", poolName)
	}
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprintf("{ipv4: 10.%d.0.0/16}", i)
	}
	refused(t, c.Create(t.Context(), newPool(t, "default", "{subnets: ["+strings.Join(many, ", ")+"]}")), "spec.subnets", "must have at most 64 items")
}

func TestGoodPools(t *testing.T) {
	c := clean(t)
	for i, spec := range []string{
		"{blockSizeBits: 2, subnets: [{ipv4: 10.0.0.0/24}]}",
		"{blockSizeBits: 2, subnets: [{ipv4: 10.0.0.0/24, ipv6: 'fd00::/120'}]}",
		"{blockSizeBits: 0, subnets: [{ipv4: 10.0.0.1/32}]}",
		"{blockSizeBits: 1, subnets: [{ipv4: 10.2.0.0/29, ipv6: 'fd02::200/125'}, {ipv4: 10.3.0.0/30, ipv6: 'fd02::300/126'}]}",
		"{subnets: [{ipv6: 'fd00:1:2::/48'}]}",
		"{subnets: [{ipv4: 10.0.0.0/27}]}",
		"{blockSizeBits: 16, subnets: [{ipv4: 10.0.0.0/8}]}",
		"{blockSizeBits: 0, subnets: [{ipv4: 0.0.0.0/0}]}",
		"{subnets: [{ipv4: 10.2.0.0/16, ipv6: 'fd01:0203:0405:0607::/112'}]}", // the notation of Coil's design
		"{subnets: [{ipv4: 10.0.0.0/24}], podNamespaces: [team-a, '0']}",
		"{subnets: [{ipv4: 10.0.0.0/24, ipv6: 'fd00::/120'}], reserved: [10.0.0.0/28, 10.0.0.255/32, 'fd00::f/128', 'fd00::/120']}",
	} {
		if err := c.Create(t.Context(), newPool(t, fmt.Sprintf("pool-%d", i), spec)); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
	harness.OK(t, c.Create(t.Context(), newPool(t, strings.Repeat("a", 63), "{subnets: [{ipv4: 10.0.0.0/24}]}")))
}

func TestPoolDefaults(t *testing.T) {
	c := clean(t)
	harness.OK(t, c.Create(t.Context(), newPool(t, "default", "{subnets: [{ipv4: 10.0.0.0/24}]}")))
	p := &v1alpha1.AddressPool{}
	harness.OK(t, c.Get(t.Context(), types.NamespacedName{Name: "default"}, p))
	bits := int32(v1alpha1.DefaultBlockSizeBits)
	want := v1alpha1.AddressPoolSpec{BlockSizeBits: &bits, Subnets: []v1alpha1.PoolSubnet{{IPv4: "10.0.0.0/24"}}}
	if d := cmp.Diff(want, p.Spec); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

var badPoolChanges = []refusal{
	{"another block size", "{blockSizeBits: 4}", "spec.blockSizeBits", "blockSizeBits cannot be changed: nodes have blocks of that size"},
	{"block size removed", "{blockSizeBits: null}", "spec.blockSizeBits", "blockSizeBits cannot be changed: nodes have blocks of that size"},
	{"a subnet removed", "{subnets: [{ipv4: 10.0.0.0/24}]}", "spec.subnets", appendOnly},
	{"a subnet changed", "{subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.2.0.0/24}]}", "spec.subnets", appendOnly},
	{"subnets reordered", "{subnets: [{ipv4: 10.1.0.0/24}, {ipv4: 10.0.0.0/24}]}", "spec.subnets", appendOnly},
	{"a subnet inserted first", "{subnets: [{ipv4: 10.2.0.0/24}, {ipv4: 10.0.0.0/24}, {ipv4: 10.1.0.0/24}]}", "spec.subnets", appendOnly},
	{"a subnet enlarged", "{subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.1.0.0/23}]}", "spec.subnets", "subnets can only be appended"},
	{"a family added", "{subnets: [{ipv4: 10.0.0.0/24, ipv6: 'fd00::/120'}, {ipv4: 10.1.0.0/24, ipv6: 'fd01::/120'}]}", "spec.subnets", appendOnly},
	{"an appended subnet that overlaps", "{subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.1.0.0/24}, {ipv4: 10.0.0.64/26}]}", "spec.subnets", overlapIPv4},
}

// Changes that would renumber blocks are rejected; appending is allowed.
func TestPoolChanges(t *testing.T) {
	c := clean(t)
	p := newPool(t, "default", "{blockSizeBits: 3, subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.1.0.0/24}]}")
	harness.OK(t, c.Create(t.Context(), p))
	respec := func(t *testing.T, spec string) error { return change(t, c, p, "{spec: "+spec+"}") }
	refuses(t, badPoolChanges, respec)
	for _, spec := range []string{
		"{subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.1.0.0/24}, {ipv4: 10.2.0.0/29}]}",
		"{podNamespaces: [team-a]}",
		"{podNamespaces: null}",
		"{reserved: [10.0.0.0/28]}",
		"{reserved: [10.2.0.0/30, 10.0.0.4/32]}",
		"{reserved: null}",
	} {
		harness.OK(t, respec(t, spec))
	}
	refused(t, respec(t, "{subnets: [{ipv4: 10.0.0.0/24}, {ipv4: 10.1.0.0/24}]}"), "spec.subnets", appendOnly)
}

// largestPool returns a pool with the maximum number of subnets, each with the longest text. Its
// ranges begin with 10.base and fd00:base.
func largestPool(base int) string {
	var subnets []string
	for i := range 64 {
		subnets = append(subnets, fmt.Sprintf("{ipv4: 10.%d.1%02d.128/32, ipv6: 'fd00:0%03x:1111:2222:3333:4444:5555:1%03x/128'}", base, i, base, i))
	}
	return "{blockSizeBits: 0, subnets: [" + strings.Join(subnets, ", ") + "]}"
}

// The largest pool stays below the API server's cost limit for validation rules, and can be
// updated.
func TestTheLargestPool(t *testing.T) {
	c := clean(t)
	p := newPool(t, "default", largestPool(100))
	harness.OK(t, c.Create(t.Context(), p))
	names := make([]string, 256)
	for i := range names {
		names[i] = fmt.Sprintf("%063d", i)
	}
	harness.OK(t, unstructured.SetNestedStringSlice(p.Object, names, "spec", "podNamespaces"))
	reserved := make([]string, 128)
	for i := range reserved {
		reserved[i] = fmt.Sprintf("fd00:0%03x:1111:2222:3333:4444:5555:1%03x/128", 100, i%64)
		if i >= 64 {
			reserved[i] = fmt.Sprintf("10.100.1%02d.128/32", i-64)
		}
	}
	harness.OK(t, unstructured.SetNestedStringSlice(p.Object, reserved, "spec", "reserved"))
	harness.OK(t, c.Update(t.Context(), p))
	subnets, _, err := unstructured.NestedSlice(p.Object, "spec", "subnets")
	harness.OK(t, err)
	subnets[63].(map[string]any)["ipv6"] = subnets[62].(map[string]any)["ipv6"]
	other := newPool(t, "other", "{}")
	harness.OK(t, unstructured.SetNestedSlice(other.Object, subnets, "spec", "subnets"))
	harness.OK(t, unstructured.SetNestedField(other.Object, int64(0), "spec", "blockSizeBits"))
	refused(t, c.Create(t.Context(), other), "spec.subnets", overlapIPv6)
}

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
