// Package addons has the add-ons of the lab's clusters, such as CoreDNS.
package addons

import (
	_ "embed"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Namespace and DNS name the Deployment of the cluster's name service.
const (
	Namespace = "kube-system"
	DNS       = "coredns"
)

//go:embed coredns.yaml
var coreDNS string

// dnsHere is replaced by the Service's address.
const dnsHere = "10.96.0.10"

// CoreDNS are the objects of the cluster's name service, as kubeadm installs it, for
// the domain cluster.local and an address among those of Services. Its image is among those of
// hack/lab-images.sh. It asks no name server outside: the lab has none.
func CoreDNS(address netip.Addr) ([]*unstructured.Unstructured, error) {
	return objectsOf(strings.ReplaceAll(coreDNS, dnsHere, fmt.Sprintf("%q", address)))
}

// objectsOf reads documents of YAML.
func objectsOf(text string) (objects []*unstructured.Unstructured, err error) {
	for _, document := range strings.Split(text, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return nil, fmt.Errorf("read an object: %w", err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

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
