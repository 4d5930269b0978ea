// Package e2e tests Berth with real container runtimes on the nodes of a lab: containerd with runc, driven over CRI
// like a kubelet does, podman, and Multus. It has the build tag e2e and is run by make e2e, because it needs Debian
// packages that no other package needs, and a sandbox (hack/sandbox.sh) for the fixed paths of runtimes.
package e2e
