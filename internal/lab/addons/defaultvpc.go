package addons

import (
	_ "embed"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed default-vpc.yaml
var defaultVPC string

// vpcHere stands for the VPC's name there.
const vpcHere = "vpc-1a2b3c4d"

// DefaultVPC are the objects by which namespaces that are made without the annotation
// berth.dev/vpc get one with the name of a VPC, as docs/ports.md has them. They need Kubernetes
// 1.36.
func DefaultVPC(name string) (objects []*unstructured.Unstructured, err error) {
	for _, document := range strings.Split(strings.ReplaceAll(defaultVPC, vpcHere, name), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return nil, fmt.Errorf("read the policy of the default VPC: %w", err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}
