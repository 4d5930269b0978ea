package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

const (
	blockName = "metadata.name must be poolName-index, so that no two nodes get a block"
	blockIPv4 = "ipv4 must be an IPv4 CIDR without host bits, such as 10.2.2.0/27"
	blockIPv6 = "ipv6 must be an IPv6 CIDR without host bits, such as fd01:203:405:607::200/123"
)

// badBlocks are blocks by the name default-7.
var badBlocks = []struct{ name, fields, at, why string }{
	{"no pool", "nodeName: node-1, index: 7, ipv4: 10.0.0.0/27", "poolName", "Required value"},
	{"no node", "poolName: default, index: 7, ipv4: 10.0.0.0/27", "nodeName", "Required value"},
	{"no index", "poolName: default, nodeName: node-1, ipv4: 10.0.0.0/27", "index", "Required value"},
	{"an empty pool", "poolName: '', nodeName: node-1, index: 7, ipv4: 10.0.0.0/27", "poolName", "should be at least 1 chars long"},
	{"an empty node", "poolName: default, nodeName: '', index: 7, ipv4: 10.0.0.0/27", "nodeName", "should be at least 1 chars long"},
	{"no addresses", "poolName: default, nodeName: node-1, index: 7", "ipv4", "ipv4, ipv6 or both must be set"},
	{"another pool", "poolName: other, nodeName: node-1, index: 7, ipv4: 10.0.0.0/27", "metadata", blockName},
	{"another index", "poolName: default, nodeName: node-1, index: 8, ipv4: 10.0.0.0/27", "metadata", blockName},
	{"a negative index", "poolName: default, nodeName: node-1, index: -7, ipv4: 10.0.0.0/27", "index", "index must be between 0 and 2147483647"},
	{"an index out of reach", "poolName: default, nodeName: node-1, index: 2147483648, ipv4: 10.0.0.0/27", "index", "index must be between 0 and 2147483647"},
	{"host bits", "poolName: default, nodeName: node-1, index: 7, ipv4: 10.0.0.1/27", "ipv4", blockIPv4},
	{"IPv6 host bits", "poolName: default, nodeName: node-1, index: 7, ipv6: 'fd00::1/123'", "ipv6", blockIPv6},
	{"sizes differ", "poolName: default, nodeName: node-1, index: 7, ipv4: 10.0.0.0/27, ipv6: 'fd00::/120'", "ipv6", "ipv4 and ipv6 must have as many addresses"},
}

func TestBadBlockIsRefused(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	for _, tc := range badBlocks {
		t.Run(tc.name, func(t *testing.T) {
			refused(t, c.Create(t.Context(), ofKind(t, "AddressBlock", "default-7", tc.fields)), tc.at, tc.why)
		})
	}
	// One index, one name.
	for _, name := range []string{"default-07", "default--7", "default7", "default-", "default-7x", "xdefault-7", "default-7.0"} {
		o := ofKind(t, "AddressBlock", name, "poolName: default, nodeName: node-1, index: 7, ipv4: 10.0.0.0/27")
		refused(t, c.Create(t.Context(), o), "metadata", blockName)
	}
	zero := ofKind(t, "AddressBlock", "default--0", "poolName: default, nodeName: node-1, index: 0, ipv4: 10.0.0.0/27")
	refused(t, c.Create(t.Context(), zero), "metadata", blockName)
}

func TestGoodBlocks(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
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

var badBlockChanges = []struct{ patch, at, why string }{
	{"{poolName: other}", "poolName", "poolName cannot be changed"},
	{"{nodeName: node-2}", "nodeName", "nodeName cannot be changed"},
	{"{index: 8}", "index", "index cannot be changed"},
	{"{ipv4: 10.0.1.0/27}", "ipv4", "ipv4 cannot be changed"},
	{"{ipv4: null}", "ipv4", "ipv4 cannot be changed"},
	{"{ipv6: 'fd01::/123'}", "ipv6", "ipv6 cannot be changed"},
	{"{ipv6: null}", "ipv6", "ipv6 cannot be changed"},
	{"{requestUID: another}", "requestUID", "requestUID cannot be changed"},
	{"{requestUID: null}", "requestUID", "requestUID cannot be changed"},
}

// A block is what it was made, but for its status and metadata.
func TestBlockChanges(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	dual := ofKind(t, "AddressBlock", "default-7", "poolName: default, nodeName: node-1, index: 7, ipv4: 10.0.0.0/27, ipv6: 'fd00::/123', requestUID: a")
	harness.OK(t, c.Create(t.Context(), dual))
	change := func(o client.Object, patch string) error {
		data, err := yaml.YAMLToJSON([]byte(patch))
		harness.OK(t, err)
		return c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, data))
	}
	for _, tc := range badBlockChanges {
		t.Run(tc.patch, func(t *testing.T) { refused(t, change(dual.DeepCopy(), tc.patch), tc.at, tc.why) })
	}
	single := ofKind(t, "AddressBlock", "default-8", "poolName: default, nodeName: node-1, index: 8, ipv6: 'fd00::20/123'")
	harness.OK(t, c.Create(t.Context(), single))
	refused(t, change(single.DeepCopy(), "{ipv4: 10.0.0.0/27}"), "ipv4", "ipv4 cannot be changed")
	refused(t, change(single.DeepCopy(), "{requestUID: a}"), "requestUID", "requestUID cannot be changed")

	harness.OK(t, change(dual.DeepCopy(), "{metadata: {finalizers: [berth.dev/addresses]}}"))
	status := []byte(`{"status": {"renewTime": "2026-01-02T03:04:05.678901Z"}}`)
	harness.OK(t, c.Status().Patch(t.Context(), dual, client.RawPatch(types.MergePatchType, status)))
	b := &v1alpha1.AddressBlock{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKeyFromObject(dual), b))
	if b.Status.RenewTime == nil || b.Status.RenewTime.Nanosecond() != 678901000 {
		t.Errorf("renewTime is %v", b.Status.RenewTime)
	}
}

func TestRequests(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	for i, tc := range []struct{ spec, at, why string }{
		{"null", "spec", "Required value"},
		{"{nodeName: node-1}", "spec.poolName", "Required value"},
		{"{poolName: default}", "spec.nodeName", "Required value"},
		{"{poolName: '', nodeName: node-1}", "spec.poolName", "should be at least 1 chars long"},
		{"{poolName: default, nodeName: ''}", "spec.nodeName", "should be at least 1 chars long"},
		{"{poolName: default, nodeName: " + strings.Repeat("n", 254) + "}", "spec.nodeName", "may not be more than 253"},
	} {
		refused(t, c.Create(t.Context(), ofKind(t, "BlockRequest", fmt.Sprintf("request-%d", i), "spec: "+tc.spec)), tc.at, tc.why)
	}
	r := ofKind(t, "BlockRequest", "request", "spec: {poolName: default, nodeName: node-1}")
	harness.OK(t, c.Create(t.Context(), r))
	for _, patch := range []string{`{"spec": {"poolName": "other"}}`, `{"spec": {"nodeName": "node-2"}}`} {
		err := c.Patch(t.Context(), r.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
		refused(t, err, "spec", requestFixed)
	}
	answer := []byte(`{"status": {"addressBlockName": "default-7"}}`)
	harness.OK(t, c.Status().Patch(t.Context(), r, client.RawPatch(types.MergePatchType, answer)))
}

const requestFixed = "spec cannot be changed; a request for another block is another request"

// Daemons watch their own node's objects only.
func TestBlocksAreSelectedByNode(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	for i := range 4 {
		harness.OK(t, c.Create(t.Context(), ofKind(t, "AddressBlock", fmt.Sprintf("pool-%d-%d", i%2, i),
			fmt.Sprintf("poolName: pool-%d, nodeName: node-%d, index: %d, ipv4: 10.0.0.0/27", i%2, i/2, i))))
		harness.OK(t, c.Create(t.Context(), ofKind(t, "BlockRequest", fmt.Sprintf("request-%d", i),
			fmt.Sprintf("spec: {poolName: pool-%d, nodeName: node-%d}", i%2, i/2))))
	}
	blocks, requests := &v1alpha1.AddressBlockList{}, &v1alpha1.BlockRequestList{}
	harness.OK(t, c.List(t.Context(), blocks, client.MatchingFieldsSelector{Selector: fields.SelectorFromSet(fields.Set{"nodeName": "node-1"})}))
	if len(blocks.Items) != 2 || blocks.Items[0].Name != "pool-0-2" || blocks.Items[1].Name != "pool-1-3" {
		t.Errorf("blocks of node-1: %v", blocks.Items)
	}
	harness.OK(t, c.List(t.Context(), blocks, client.MatchingFields{"poolName": "pool-0"}))
	if len(blocks.Items) != 2 || blocks.Items[0].Name != "pool-0-0" || blocks.Items[1].Name != "pool-0-2" {
		t.Errorf("blocks of pool-0: %v", blocks.Items)
	}
	harness.OK(t, c.List(t.Context(), requests, client.MatchingFields{"spec.nodeName": "node-0"}))
	if len(requests.Items) != 2 || requests.Items[0].Name != "request-0" || requests.Items[1].Name != "request-1" {
		t.Errorf("requests of node-0: %v", requests.Items)
	}
}
