package addons_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berthnet/berth/lab/addons"
)

// The policy of docs/ports.md is the one that clusters of the lab have.
func TestDefaultVPC(t *testing.T) {
	policy, err := os.ReadFile("default-vpc.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/ports.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```yaml\n"+string(policy)+"```") {
		t.Error("docs/ports.md has another policy than default-vpc.yaml")
	}
	objects, err := addons.DefaultVPC("blue")
	if err != nil || len(objects) != 2 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	text, err := objects[0].MarshalJSON()
	if err != nil || !strings.Contains(string(text), "'berth.dev/vpc': 'blue'") {
		t.Errorf("the VPC's name is not in %s, %v", text, err)
	}
}

// The name service is at the address that it is given, of either family.
func TestCoreDNS(t *testing.T) {
	for _, address := range []string{"10.96.0.10", "fd00:96::a"} {
		objects, err := addons.CoreDNS(netip.MustParseAddr(address))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, o := range objects {
			if o.GetKind() != "Service" {
				continue
			}
			got, _, err := unstructured.NestedString(o.Object, "spec", "clusterIP")
			if found = true; err != nil || got != address {
				t.Errorf("its Service has %q, %v; want %s", got, err, address)
			}
		}
		if !found || len(objects) != 7 {
			t.Errorf("%d objects, a Service among them: %t", len(objects), found)
		}
	}
}
