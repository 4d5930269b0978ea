// Package cluster holds the test of Berth in whole clusters of the lab: real
// containerd, kubelet, kube-proxy and CoreDNS, Berth installed by its chart from its
// images. It is built with the tag e2e and run by make e2e, since it needs Debian
// packages, images and programs that nothing else needs.
package cluster
