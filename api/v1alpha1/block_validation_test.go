package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

const (
	blockName = "metadata.name must be poolName-index, so that no two nodes get the same block"
	blockIPv4 = "ipv4 must be an IPv4 CIDR without host bits, such as 10.2.2.0/27"
	blockIPv6 = "ipv6 must be an IPv6 CIDR without host bits, such as fd01:203:405:607::200/123"
)

// badBlocks are specs of invalid blocks named default-7.
var badBlocks = []refusal{
	{"no pool", "nodeName: node-1, index: 7, ipv4: 10.0.0.0/27", "poolName", "Required value"},
	{"no node", "poolName: default, index: 7, ipv4: 10.0.0.0/27", "nodeName", "Required value"},
	{"no index", "poolName: default, nodeName: node-1, ipv4: 10.0.0.0/27", "index", "Required value"},
	{"an empty pool", "poolName: '', nodeName: node-1, index: 7, ipv4: 10.0.0.0/27", "poolName", "should be at least 1 chars long"},
	{"an empty node", "poolName: default, nodeName: '', index: 7, ipv4: 10.0.0.0/27", "nodeName", "should be at least 1 chars long"},
	{"no addresses", "poolName: default, nodeName: node-1, index: 7", "ipv4", "ipv4, ipv6 or both must be set"},
	{"a name that has another pool", "poolName: other, nodeName: node-1, index: 7, ipv4: 10.0.0.0/27", "metadata", blockName},
	{"a name that has another index", "poolName: default, nodeName: node-1, index: 8, ipv4: 10.0.0.0/27", "metadata", blockName},
	{"a negative index", "poolName: default, nodeName: node-1, index: -7, ipv4: 10.0.0.0/27", "index", "index must be between 0 and 2147483647"},
	{"an index above the maximum", "poolName: default, nodeName: node-1, index: 2147483648, ipv4: 10.0.0.0/27", "index", "index must be between 0 and 2147483647"},
	{"host bits", "poolName: default, nodeName: node-1, index: 7, ipv4: 10.0.0.1/27", "ipv4", blockIPv4},
	{"IPv6 host bits", "poolName: default, nodeName: node-1, index: 7, ipv6: 'fd00::1/123'", "ipv6", blockIPv6},
	{"withheld host bits", "poolName: default, nodeName: node-1, index: 7, ipv4: 10.2.0.0/27, withheld: [{cidr: 10.2.0.7/31, owner: Node a}]", "withheld[0].cidr", "cidr must be a CIDR without host bits, such as 10.2.0.7/32"},
	{"sizes differ", "poolName: default, nodeName: node-1, index: 7, ipv4: 10.0.0.0/27, ipv6: 'fd00::/120'", "ipv6", "ipv4 and ipv6 must have the same number of addresses"},
}

func TestBadBlockIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, badBlocks, func(t *testing.T, fields string) error {
		return c.Create(t.Context(), ofKind(t, "AddressBlock", "default-7", fields))
	})
	// A block has the only name that its index allows.
	for _, name := range []string{"default-07", "default--7", "default7", "default-", "default-7x", "xdefault-7", "default-7.0"} {
		o := ofKind(t, "AddressBlock", name, "poolName: default, nodeName: node-1, index: 7, ipv4: 10.0.0.0/27")
		refused(t, c.Create(t.Context(), o), "metadata", blockName)
	}
	zero := ofKind(t, "AddressBlock", "default--0", "poolName: default, nodeName: node-1, index: 0, ipv4: 10.0.0.0/27")
	refused(t, c.Create(t.Context(), zero), "metadata", blockName)
}

func TestGoodBlocks(t *testing.T) {
	c := clean(t)
	for name, fields := range map[string]string{
		"default-0":                    "poolName: default, index: 0, ipv4: 10.0.0.0/27, ipv6: 'fd00::/123'",
		"default-10":                   "poolName: default, index: 10, ipv6: 'fd01:0203:0405:0607::0200/123'",
		"default-2147483647":           "poolName: default, index: 2147483647, ipv4: 10.0.0.1/32",
		"a-1-7":                        "poolName: a-1, index: 7, ipv4: 10.0.0.0/16",
		strings.Repeat("a", 63) + "-7": "poolName: " + strings.Repeat("a", 63) + ", index: 7, ipv4: 10.0.0.0/27",
	} {
		node := strings.Repeat("n", 253)
		if err := c.Create(t.Context(), ofKind(t, "AddressBlock", name, "nodeName: "+node+", "+fields)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	second := ofKind(t, "AddressBlock", "default-0", "poolName: default, index: 0, nodeName: another, ipv4: 10.0.0.0/27")
	if err := c.Create(t.Context(), second); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second owner: got %v, want it to be there already", err)
	}
}

var badBlockChanges = []refusal{
	{"another pool", "{poolName: other}", "poolName", "poolName cannot be changed"},
	{"another node", "{nodeName: node-2}", "nodeName", "nodeName cannot be changed"},
	{"another index", "{index: 8}", "index", "index cannot be changed"},
	{"another ipv4", "{ipv4: 10.0.1.0/27}", "ipv4", "ipv4 cannot be changed"},
	{"ipv4 removed", "{ipv4: null}", "ipv4", "ipv4 cannot be changed"},
	{"another ipv6", "{ipv6: 'fd01::/123'}", "ipv6", "ipv6 cannot be changed"},
	{"ipv6 removed", "{ipv6: null}", "ipv6", "ipv6 cannot be changed"},
	{"another requestUID", "{requestUID: another}", "requestUID", "requestUID cannot be changed"},
	{"requestUID removed", "{requestUID: null}", "requestUID", "requestUID cannot be changed"},
}

// Only the status, withheld and metadata of a block can change.
func TestBlockChanges(t *testing.T) {
	c := clean(t)
	dual := ofKind(t, "AddressBlock", "default-7", "poolName: default, nodeName: node-1, index: 7, ipv4: 10.0.0.0/27, ipv6: 'fd00::/123', requestUID: a")
	harness.OK(t, c.Create(t.Context(), dual))
	refuses(t, badBlockChanges, func(t *testing.T, fields string) error { return change(t, c, dual, fields) })
	single := ofKind(t, "AddressBlock", "default-8", "poolName: default, nodeName: node-1, index: 8, ipv6: 'fd00::20/123'")
	harness.OK(t, c.Create(t.Context(), single))
	refused(t, change(t, c, single, "{ipv4: 10.0.0.0/27}"), "ipv4", "ipv4 cannot be changed")
	refused(t, change(t, c, single, "{requestUID: a}"), "requestUID", "requestUID cannot be changed")

	harness.OK(t, change(t, c, dual, "{metadata: {finalizers: [berth.dev/addresses]}}"))
	harness.OK(t, changeStatus(t, c, dual, "{renewTime: '2026-01-02T03:04:05.678901Z'}"))
	b := &v1alpha1.AddressBlock{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKeyFromObject(dual), b))
	if b.Status.RenewTime == nil || b.Status.RenewTime.Nanosecond() != 678901000 {
		t.Errorf("renewTime = %v, want it with its microseconds", b.Status.RenewTime)
	}
}

var badRequests = []refusal{
	{"no spec", "null", "spec", "Required value"},
	{"no pool", "{nodeName: node-1}", "spec.poolName", "Required value"},
	{"no node", "{poolName: default}", "spec.nodeName", "Required value"},
	{"an empty pool", "{poolName: '', nodeName: node-1}", "spec.poolName", "should be at least 1 chars long"},
	{"an empty node", "{poolName: default, nodeName: ''}", "spec.nodeName", "should be at least 1 chars long"},
	{"a long node name", "{poolName: default, nodeName: " + strings.Repeat("n", 254) + "}", "spec.nodeName", "may not be more than 253"},
}

var badRequestChanges = []refusal{
	{"another pool", "{spec: {poolName: other}}", "spec", requestFixed},
	{"another node", "{spec: {nodeName: node-2}}", "spec", requestFixed},
}

const requestFixed = "spec cannot be changed; create another BlockRequest"

func TestBlockRequests(t *testing.T) {
	c := clean(t)
	refuses(t, badRequests, func(t *testing.T, spec string) error {
		return c.Create(t.Context(), ofKind(t, "BlockRequest", "bad", "spec: "+spec))
	})
	r := ofKind(t, "BlockRequest", "request", "spec: {poolName: default, nodeName: node-1}")
	harness.OK(t, c.Create(t.Context(), r))
	refuses(t, badRequestChanges, func(t *testing.T, fields string) error { return change(t, c, r, fields) })
	harness.OK(t, changeStatus(t, c, r, "{addressBlockName: default-7}"))
}

// Daemons watch only the objects of their own node.
func TestBlocksAreSelectedByNode(t *testing.T) {
	c := clean(t)
	for i := range 4 {
		harness.OK(t, c.Create(t.Context(), ofKind(t, "AddressBlock", fmt.Sprintf("pool-%d-%d", i%2, i),
			fmt.Sprintf("poolName: pool-%d, nodeName: node-%d, index: %d, ipv4: 10.0.0.0/27", i%2, i/2, i))))
		harness.OK(t, c.Create(t.Context(), ofKind(t, "BlockRequest", fmt.Sprintf("request-%d", i),
			fmt.Sprintf("spec: {poolName: pool-%d, nodeName: node-%d}", i%2, i/2))))
	}
	for _, tc := range []struct {
		list     client.ObjectList
		selector string
		want     []string
	}{
		{&v1alpha1.AddressBlockList{}, "nodeName=node-1", []string{"pool-0-2", "pool-1-3"}},
		{&v1alpha1.AddressBlockList{}, "poolName=pool-0", []string{"pool-0-0", "pool-0-2"}},
		{&v1alpha1.BlockRequestList{}, "spec.nodeName=node-0", []string{"request-0", "request-1"}},
	} {
		harness.OK(t, c.List(t.Context(), tc.list, client.MatchingFieldsSelector{Selector: fields.ParseSelectorOrDie(tc.selector)}))
		var got []string
		harness.OK(t, meta.EachListItem(tc.list, func(o runtime.Object) error {
			got = append(got, o.(client.Object).GetName())
			return nil
		}))
		if !slices.Equal(got, tc.want) {
			t.Errorf("%T with %s: %v, want %v", tc.list, tc.selector, got, tc.want)
		}
	}
}
