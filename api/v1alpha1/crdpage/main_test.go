package main

import (
	"os"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const policies = "deploy/some-mode/admission.yaml"

func definition(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/chart/files/crds/berth.dev_" + kind + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

func TestPageOfAKind(t *testing.T) {
	for _, tt := range []struct {
		what, kind string
		want       []string
	}{
		{"one field of each sort, with all that the page has to say of it", "nodenetworks", []string{
			"| `firstInterfaceIndex` | integer |  | The lowest device index of the ENIs that serve pods. Defaults to 1, which reserves eth0 for the node. | eni.firstInterfaceIndex must be between 0 and 15 | berthd at creation, then a person |\n",
			"| `available[key].resource` | string |  | The ID of the ENI. | required | operator |\n",
			"| `released` | list of strings |",
			"| `used[key].cooling` | boolean |",
			"| `conditions[].type` | string |  | Type of condition",
			"## status.eni.limits\n",
			"Validation rule: eni.subnetIDs and eni.subnetTags are mutually exclusive.\n",
			"| Zone | `spec.eni.availabilityZone` | with `-o wide` |\n",
		}},
		{"a kind with fields of its own, beside spec and status, and with rules about its name", "addressblocks", []string{
			"program writes only its own fields; deploy/some-mode/admission.yaml enforces this.\n\n| field |",
			"| `nodeName` | string |  | The node that the block is assigned to. | required; not empty; at most 253 characters; nodeName cannot be changed | operator |\n",
			"such as 10.2.2.0/27; ipv4, ipv6 or both must be set; ipv4 cannot be changed | operator |\n",
			"Validation rule: metadata.name must be poolName-index, ",
			"releases the block when renewals stop. |  | berthd |\n",
			"For `--field-selector`: `nodeName`, `poolName`.\n",
		}},
		{"the rules of a list's elements, below the list's table", "addresspools", []string{
			"| `subnets` | list of objects |  | The address ranges, in the order in which blocks are allocated from them.",
			"required; not empty; at most 64 of them;",
			"with blockSizeBits 5, /27 and /123 | a person |\n| `subnets[].ipv4` |",
			"\nValidation rule: a subnet must have ipv4, ipv6 or both.\n",
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			text, err := page(definition(t, tt.kind), policies)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("the page lacks %q", want)
				}
			}
			if strings.Count(text, "ipv4 cannot be changed") > 1 {
				t.Error("a field's rule is also listed elsewhere")
			}
		})
	}
}

// A field whose comment names no writer is an error.
func TestFieldWithoutAWriter(t *testing.T) {
	crd := definition(t, "nodenetworks")
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	status := root.Properties["status"]
	status.Properties["extra"] = schema{Type: "string", Description: "Extra is new."}
	root.Properties["status"] = status
	if _, err := page(crd, policies); err == nil || !strings.Contains(err.Error(), "status.extra") {
		t.Errorf("error %v, want one that names status.extra", err)
	}
}

func TestWrongArguments(t *testing.T) {
	if err := run([]string{"crdpage"}, os.Stderr); err == nil {
		t.Error("run without a file succeeded")
	}
	if err := run([]string{"crdpage", "main.go", policies}, os.Stderr); err == nil || !strings.Contains(err.Error(), "main.go") {
		t.Errorf("error %v, want one that names the file", err)
	}
}
