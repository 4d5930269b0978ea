package manifests

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/replay"
)

// recorded converts the objects of a recorded cluster.
func recorded(t *testing.T, cluster string) Output {
	t.Helper()
	data, err := replay.Objects(cluster)
	if err != nil {
		t.Fatal(err)
	}
	var kept [][]byte
	for _, doc := range bytes.Split(data, []byte("\n---\n")) {
		if !regexp.MustCompile(`(?m)^kind: Service$`).Match(doc) {
			kept = append(kept, doc)
		}
	}
	return converted(t, string(bytes.Join(kept, []byte("\n---\n"))))
}

func converted(t *testing.T, text string) Output {
	t.Helper()
	objects, err := Read("coil.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	out, err := Convert(Input{Objects: objects})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Objects of real clusters keep pools, indexes, nodes and addresses.
func TestRecordedCoilClusters(t *testing.T) {
	for _, cluster := range []string{replay.V2Oldest, replay.V2Middle, replay.V2Newest} {
		t.Run(cluster, func(t *testing.T) {
			out := recorded(t, cluster)
			var got []string
			for _, o := range out.Objects {
				switch o := o.(type) {
				case *v1alpha1.AddressPool:
					got = append(got, fmt.Sprintf("pool %s reserved %v", o.Name, o.Spec.Reserved))
				case *v1alpha1.AddressBlock:
					got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", o.Name, o.NodeName, o.IPv4, o.IPv6)))
				case *v1alpha1.Egress:
					got = append(got, fmt.Sprintf("egress %s/%s %v %s", o.Namespace, o.Name, o.Spec.Destinations, o.Spec.TunnelTo))
				case map[string]any:
					got = append(got, fmt.Sprintf("%s %s", o["kind"], o["metadata"].(map[string]any)["annotations"]))
				}
			}
			for _, want := range []string{
				"pool default reserved [10.72.0.32/29 10.72.1.64/29]", "pool dual reserved []", "pool global reserved []", "pool v6only reserved []",
				"default-0 node-1 10.72.0.0/29", "default-3 node-3 10.72.0.24/29", "default-40 node-2 10.72.1.64/29",
				"dual-1 node-2 10.73.0.4/30 fd73::4/126", "v6only-0 node-1  fd74::/124", "global-3 node-1 203.0.113.19/32",
				"egress internet/nat [0.0.0.0/0 ::/0] Service",
				"Namespace map[berth.dev/pool:dual]", "Namespace map[berth.dev/pool:global]", "Namespace map[berth.dev/pool:v6only]",
			} {
				if !strings.Contains("\n"+strings.Join(got, "\n")+"\n", "\n"+want+"\n") {
					t.Errorf("lacks %q; has\n%s", want, strings.Join(got, "\n"))
				}
			}
			if strings.Contains(strings.Join(got, "\n"), "default-4 ") {
				t.Error("the block of a Node that is gone was converted")
			}
			comments := strings.Join(out.Comments, "\n")
			for _, want := range []string{"kubectl delete --wait=false addresspools.berth.dev v6only", "kubectl delete --wait=false addressblocks.berth.dev dual-1", "--as=system:serviceaccount:"} {
				if !strings.Contains(comments, want) {
					t.Errorf("lacks the comment %q; has\n%s", want, comments)
				}
			}
			if len(out.Lost) != 1 || !strings.Contains(out.Lost[0], "AddressBlock default-4") {
				t.Errorf("lost = %q, want block default-4", out.Lost)
			}
		})
	}
	comments := strings.Join(recorded(t, replay.V2NewestEgress).Comments, "\n")
	for _, want := range []string{"kubectl -n shop annotate --overwrite pod client-2 egress.berth.dev/internet='nat", "Do not delete the Service of an Egress"} {
		if !strings.Contains(comments, want) {
			t.Errorf("lacks the comment %q; has\n%s", want, comments)
		}
	}
}

const (
	coilPoolText  = "apiVersion: coil.cybozu.com/v2\nkind: AddressPool\nmetadata: {name: %s}\nspec: {blockSizeBits: 3, subnets: [%s]}\n---\n"
	coilBlockText = "apiVersion: coil.cybozu.com/v2\nkind: AddressBlock\nmetadata: {name: b, labels: {coil.cybozu.com/pool: p, coil.cybozu.com/node: %s}}\n%s\n---\n"
)

func TestCoilObjectsThatAreRefused(t *testing.T) {
	pool := fmt.Sprintf(coilPoolText, "p", "{ipv4: 10.0.0.0/24}")
	for name, tc := range map[string]struct{ text, want string }{
		"pool name":          {fmt.Sprintf(coilPoolText, "a.b", "{ipv4: 10.0.0.0/24}"), `metadata.name is "a.b": expected at most 63 characters without dots`},
		"subnet":             {fmt.Sprintf(coilPoolText, "p", "{ipv4: 10.0.0.0}"), `spec.subnets[0].ipv4 is "10.0.0.0": expected a CIDR`},
		"small subnet":       {fmt.Sprintf(coilPoolText, "p", "{ipv4: 10.0.0.0/30}"), "spec.subnets[0].ipv4 10.0.0.0/30 is smaller than a block"},
		"unknown field":      {"apiVersion: coil.cybozu.com/v2\nkind: AddressPool\nmetadata: {name: p}\nspec: {nodeSelector: {}}\n", "nodeSelector"},
		"block without pool": {fmt.Sprintf(coilBlockText, "node-1", "index: 0\nipv4: 10.0.0.0/29"), "AddressPool p is missing"},
		"block of no node":   {pool + fmt.Sprintf(coilBlockText, `""`, "index: 0\nipv4: 10.0.0.0/29"), "label coil.cybozu.com/node is missing"},
		"index outside":      {pool + fmt.Sprintf(coilBlockText, "node-1", "index: 32\nipv4: 10.0.1.0/29"), "index: block 32: the pool has blocks 0 to 31"},
		"addresses of another index": {
			pool + fmt.Sprintf(coilBlockText, "node-1", "index: 1\nipv4: 10.0.0.0/29"), `ipv4 is "10.0.0.0/29": expected 10.0.0.8/29, which the index 1 stands for in pool p`,
		},
		"egress": {"apiVersion: coil.cybozu.com/v2\nkind: Egress\nmetadata: {name: e, namespace: ns}\nspec: {destinations: [here]}\n", `spec.destinations[0] is "here": expected a CIDR`},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := Read("coil.yaml", strings.NewReader(tc.text))
			if err == nil {
				_, err = Convert(Input{Objects: objects})
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %s", err, tc.want)
			}
		})
	}
}

func TestMerged(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "[]",
		"10.0.0.8/29 10.0.0.0/29":             "[10.0.0.0/28]",
		"10.0.0.8/29 10.0.0.16/29":            "[10.0.0.8/29 10.0.0.16/29]",
		"10.0.0.0/32 10.0.0.0/24 10.0.0.9/32": "[10.0.0.0/24]",
		"fd00::/127 fd00::2/127 fd00::4/126":  "[fd00::/125]",
		"0.0.0.0/1 128.0.0.0/1":               "[0.0.0.0/0]",
	} {
		var list []netip.Prefix
		for _, f := range strings.Fields(text) {
			list = append(list, netip.MustParsePrefix(f))
		}
		if got := fmt.Sprint(merged(list)); got != want {
			t.Errorf("merged(%s) = %s, want %s", text, got, want)
		}
	}
}

func TestCoilAnnotationsOfTemplates(t *testing.T) {
	out := converted(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: x, annotations: {other: stays}}
spec:
  template:
    metadata: {annotations: {egress.coil.cybozu.com/internet: "nat,partner", other: stays}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop}
spec: {jobTemplate: {spec: {template: {metadata: {annotations: {egress.coil.cybozu.com/internet: nat}}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: none, namespace: shop}
spec: {}
`)
	var b strings.Builder
	if err := out.Write(&b); err != nil || len(out.Objects) != 2 {
		t.Fatalf("%d objects, error %v; want two", len(out.Objects), err)
	}
	for _, want := range []string{"egress.berth.dev/internet: nat,partner", "egress.berth.dev/internet: nat\n", "other: stays"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "coil.cybozu.com") || strings.Contains(b.String(), "uid:") {
		t.Errorf("left:\n%s", b.String())
	}
}
