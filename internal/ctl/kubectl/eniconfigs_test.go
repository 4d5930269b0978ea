package kubectl

import (
	"strings"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork/template"
	"github.com/berthnet/berth/test/harness"
)

// eniConfigKind defines the Amazon VPC CNI's kind with the fields that the command reads.
const eniConfigKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: eniconfigs.crd.k8s.amazonaws.com}
spec:
  group: crd.k8s.amazonaws.com
  scope: Cluster
  names: {plural: eniconfigs, singular: eniconfig, kind: ENIConfig}
  versions:
  - {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// The API server accepts the printed templates. Comments name the Nodes to label, and no text of a
// Node becomes a command.
func TestENIConfigs(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	o := Options{Config: person(t), Dial: nobody}
	if out, code, err := try(t, o, "eniconfigs"); code == 0 || err == nil || !strings.Contains(err.Error(), "no ENIConfig of") {
		t.Errorf("without the CRD: output = %q, exit code = %d, error = %v, want an error that no ENIConfig exists", out, code, err)
	}
	harness.Eventually(t, harness.Patience, "the kind is served", func() error { // discovery lags behind the CRD
		return harness.ControlPlane.Apply(t.Context(), fstest.MapFS{"kind.yaml": {Data: []byte(eniConfigKind)}})
	})
	for name, subnet := range map[string]string{"zone-a": "subnet-0a", "default": "subnet-0d"} {
		config := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "crd.k8s.amazonaws.com/v1alpha1", "kind": "ENIConfig", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"subnet": subnet, "securityGroups": []any{"sg-0a"}},
		}}
		harness.Eventually(t, harness.Patience, "ENIConfig "+name, func() error { return client.IgnoreAlreadyExists(c.Create(t.Context(), config)) })
	}
	for name, annotation := range map[string]string{"node-a": "zone-a", "node-b": "zone-a", "node-c": "$(reboot)\n", "node-d": ""} {
		k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if annotation != "" {
			k.Annotations = map[string]string{template.ENIConfigKey: annotation}
		}
		if name == "node-b" {
			k.Labels = map[string]string{"pods": "zone-a"}
		}
		harness.OK(t, c.Create(t.Context(), k))
	}
	out, code, err := try(t, o, "eniconfigs", "--label", "pods")
	if err != nil || code != 0 {
		t.Fatal(code, err)
	}
	comments, manifests, _ := strings.Cut(out, "---\n")
	want := "# These Nodes name their ENIConfig by an annotation. Before you apply the templates, run:\n" +
		"#   Node node-c names \"$(reboot)\\n\", which is not a valid label value\n#   kubectl label node node-a pods=zone-a --overwrite\n"
	if comments != want {
		t.Errorf("comments = %q\nwant %q", comments, want)
	}
	subnets := map[string]string{}
	for text := range strings.SplitSeq(manifests, "---\n") {
		made := &v1alpha1.NodeNetworkTemplate{}
		harness.OK(t, yaml.UnmarshalStrict([]byte(text), made))
		harness.OK(t, c.Create(t.Context(), made, client.FieldValidation(metav1.FieldValidationStrict)))
		subnets[made.Name] = made.Spec.ENI.SubnetIDs[0]
	}
	if len(subnets) != 2 || subnets["zone-a"] != "subnet-0a" || subnets["default"] != "subnet-0d" {
		t.Errorf("subnets by template = %v", subnets)
	}
}
