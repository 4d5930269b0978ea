// Package e2e tests Berth with real container runtimes on the nodes of a lab: containerd with runc,
// driven over CRI like a kubelet, podman, and Multus. It has the tag e2e and is run by make e2e, as it
// needs Debian packages that nothing else needs, and a sandbox (hack/sandbox.sh) for the fixed paths
// of runtimes.
package e2e
