// Package addons holds the add-ons of the lab's clusters, such as CoreDNS.
package addons

import (
	_ "embed"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Namespace and DNS are the namespace and the name of the cluster DNS Deployment.
const (
	Namespace = "kube-system"
	DNS       = "coredns"
)

//go:embed coredns.yaml
var coreDNS string

// dnsHere is the placeholder for the address of the DNS Service.
const dnsHere = "10.96.0.10"

// CoreDNS returns the objects of the cluster DNS as kubeadm installs it, for the domain cluster.local
// and an address of the Service CIDR. hack/lab-images.sh provides its image. It forwards nothing: the
// lab has no upstream resolver.
func CoreDNS(address netip.Addr) ([]*unstructured.Unstructured, error) {
	return objectsOf(strings.ReplaceAll(coreDNS, dnsHere, fmt.Sprintf("%q", address)))
}

// objectsOf decodes YAML documents.
func objectsOf(text string) (objects []*unstructured.Unstructured, err error) {
	for _, document := range strings.Split(text, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return nil, fmt.Errorf("decode YAML: %w", err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

//go:embed default-vpc.yaml
var defaultVPC string

// vpcHere is the placeholder for the name of the VPC.
const vpcHere = "vpc-1a2b3c4d"

// DefaultVPC returns the objects from docs/guides/ports/vpc-clusters.md that give namespaces created without the annotation
// berth.dev/vpc a default VPC. They require Kubernetes 1.36.
func DefaultVPC(name string) (objects []*unstructured.Unstructured, err error) {
	if objects, err = objectsOf(strings.ReplaceAll(defaultVPC, vpcHere, name)); err != nil {
		return nil, fmt.Errorf("read the default VPC policy: %w", err)
	}
	return objects, nil
}
