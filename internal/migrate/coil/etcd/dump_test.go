package etcd_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	"github.com/berthnet/berth/internal/migrate/manifests"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/test/harness"
)

func dumped(t *testing.T, file string) etcd.Dump {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if file == replay.V1 {
		data, err = replay.EtcdDump()
	}
	harness.OK(t, err)
	d, err := etcd.ParseDump(data, etcd.DefaultPrefix)
	harness.OK(t, err)
	return d
}

// A dump has the pools, the blocks with their indexes and nodes, and the pods of each node.
func TestDump(t *testing.T) {
	for _, file := range []string{replay.V1, "etcd-before-v1.1.0.json"} {
		d := dumped(t, file)
		if len(d.Pools) != 4 || len(d.Blocks) != 8 || len(d.Pods) != 21 {
			t.Errorf("%s: %d pools, %d blocks, %d pods; want 4, 8 and 21", file, len(d.Pools), len(d.Blocks), len(d.Pods))
		}
		for node, want := range map[string]int{"node-1": 12, "node-2": 7, "node-3": 2, "node-4": 0} {
			if got := len(d.Of(node)); got != want {
				t.Errorf("%s: %d pods of %s, want %d", file, got, node, want)
			}
		}
		for _, p := range d.Of("node-1") {
			if p.Name == "web-12" && p.Address.String() != "10.64.0.11" {
				t.Errorf("%s: web-12 has %s, want 10.64.0.11", file, p.Address)
			}
			if (p.Container == "") != strings.Contains(file, "before") || p.Pool == "" {
				t.Errorf("%s: %+v, want the container in newer dumps, and the pool", file, p)
			}
		}
	}
}

func TestInvalidDumps(t *testing.T) {
	kv := func(key, value string) string {
		return fmt.Sprintf(`{"kvs":[{"key":%s,"value":%s},{"key":%s,"value":%s}]}`, b64(key), b64(value), b64("/coil/pool/p"), b64(`{"subnets":["10.0.0.0/24"],"block_size":3}`))
	}
	for text, want := range map[string]string{
		"{":          "read the dump of etcd",
		`{"kvs":[]}`: "has no key /coil/pool/NAME",
		kv("/coil/pool/q", `{"subnets":["10.0.0.0/30"],"block_size":3}`): "/coil/pool/q: subnets[0].ipv4 10.0.0.0/30 is smaller than a block",
		kv("/coil/block/q/10.0.0.0", `{}`):                               "/coil/block/q/10.0.0.0: there is no pool q",
		kv("/coil/block/p/10.0.0.0", `{"nodes":{"n":["10.0.0.4/29"]}}`):  "nodes[n]: 10.0.0.4/29 is not a block of the pool",
		kv("/coil/ip/10.0.0.0/x", `{"namespace":"a","pod":"b"}`):         `/coil/ip/10.0.0.0/x: the offset is "x": expected a number`,
		kv("/coil/ip/10.0.0/1", `{"namespace":"a","pod":"b"}`):           "expected BLOCK/OFFSET",
		kv("/coil/ip/10.0.0.0/1", `{"namespace":"a"}`):                   "expected a namespace and a pod",
		kv("/coil/ip/10.0.0.0/1", `nobody`):                              "expected a namespace and a pod",
	} {
		if _, err := etcd.ParseDump([]byte(text), etcd.DefaultPrefix); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseDump(%s) error = %v, want %s", text, err, want)
		}
	}
}

// The dump becomes Berth's objects, with the same indexes. A node that is gone keeps its addresses reserved.
func TestDumpAsObjects(t *testing.T) {
	d := dumped(t, replay.V1)
	text, err := d.Manifests()
	harness.OK(t, err)
	nodes := "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node-2}\n"
	objects, err := manifests.Read("dump", strings.NewReader(string(text)+nodes))
	harness.OK(t, err)
	out, err := manifests.Convert(manifests.Input{Objects: objects})
	harness.OK(t, err)
	var got []string
	for _, o := range out.Objects {
		switch o := o.(type) {
		case *v1alpha1.AddressPool:
			got = append(got, fmt.Sprintf("%s %v", o.Name, o.Spec.Reserved))
		case *v1alpha1.AddressBlock:
			got = append(got, fmt.Sprintf("%s %s %s", o.Name, o.NodeName, o.IPv4))
		case map[string]any:
			got = append(got, fmt.Sprint(o["metadata"]))
		}
	}
	want := []string{
		"default [10.64.0.24/29]", "front []", "idle []", "shop []",
		"default-0 node-1 10.64.0.0/29", "default-1 node-1 10.64.0.8/29", "default-2 node-2 10.64.0.16/29",
		"front-0 node-1 203.0.113.16/32", "front-1 node-2 203.0.113.17/32", "shop-0 node-1 10.65.0.0/30", "shop-2 node-2 10.65.0.8/30",
		"map[annotations:map[berth.dev/pool:front] name:front]", "map[annotations:map[berth.dev/pool:idle] name:idle]", "map[annotations:map[berth.dev/pool:shop] name:shop]",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("objects:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func b64(s string) string { return fmt.Sprintf("%q", base64.StdEncoding.EncodeToString([]byte(s))) }
