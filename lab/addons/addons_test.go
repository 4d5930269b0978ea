package addons_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berthnet/berth/lab/addons"
)

// The lab installs exactly the policy that docs/guides/ports/vpc-clusters.md shows.
func TestDefaultVPCMatchesDocs(t *testing.T) {
	policy, err := os.ReadFile("default-vpc.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/guides/ports/vpc-clusters.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```yaml\n"+string(policy)+"```") {
		t.Error("docs/guides/ports/vpc-clusters.md does not contain default-vpc.yaml")
	}
	objects, err := addons.DefaultVPC("blue")
	if err != nil || len(objects) != 2 {
		t.Fatalf("DefaultVPC() = %d objects, %v; want 2", len(objects), err)
	}
	text, err := objects[0].MarshalJSON()
	if err != nil || !strings.Contains(string(text), "'berth.dev/vpc': 'blue'") {
		t.Errorf("policy does not set the VPC name: %s (%v)", text, err)
	}
}

// The cluster DNS Service has the requested address, IPv4 or IPv6.
func TestCoreDNSServiceAddress(t *testing.T) {
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
				t.Errorf("clusterIP of the DNS Service = %q, %v; want %s", got, err, address)
			}
		}
		if !found || len(objects) != 7 {
			t.Errorf("CoreDNS() returned %d objects (Service included: %t), want 7 with the Service", len(objects), found)
		}
	}
}
