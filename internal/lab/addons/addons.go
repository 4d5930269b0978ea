// Package addons holds what clusters of the lab have besides Berth.
package addons

import (
	"embed"
	"io/fs"
)

// Namespace and DNS name the Deployment of the cluster's name service.
const (
	Namespace = "kube-system"
	DNS       = "coredns"
)

//go:embed coredns.yaml
var files embed.FS

// CoreDNS are the objects of the cluster's name service, as kubeadm installs it, for
// the domain cluster.local and the address 10.96.0.10. Its image is among those of
// hack/lab-images.sh. It asks no name server outside: the lab has none.
func CoreDNS() fs.FS { return files }
