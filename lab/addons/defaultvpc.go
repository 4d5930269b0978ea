package addons

import (
	_ "embed"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

//go:embed default-vpc.yaml
var defaultVPC string

// vpcHere is replaced by the VPC's name.
const vpcHere = "vpc-1a2b3c4d"

// DefaultVPC are the objects by which namespaces that are made without the annotation
// berth.dev/vpc get one with the name of a VPC, as docs/ports.md has them. They need Kubernetes
// 1.36.
func DefaultVPC(name string) (objects []*unstructured.Unstructured, err error) {
	if objects, err = objectsOf(strings.ReplaceAll(defaultVPC, vpcHere, name)); err != nil {
		return nil, fmt.Errorf("read the policy of the default VPC: %w", err)
	}
	return objects, nil
}
