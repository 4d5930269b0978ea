package addons_test

import (
	"os"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/lab/addons"
)

// The policy of docs/ports.md is the one that clusters of the lab have.
func TestDefaultVPC(t *testing.T) {
	policy, err := os.ReadFile("default-vpc.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/ports.md")
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
