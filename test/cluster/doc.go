// Package cluster tests Berth in whole clusters of the lab: real containerd, kubelet, kube-proxy and CoreDNS, with
// Berth installed from a release. It has the build tag e2e and is run by make e2e, because it needs Debian
// packages, images and programs that no other package needs.
package cluster
