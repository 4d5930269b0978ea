// Package e2e holds the tests against real container runtimes: containerd with
// runc on the nodes of a lab, driven over CRI as a kubelet drives it. They are
// built with the tag e2e and run by make e2e, since they need Debian packages
// that nothing else needs, and a sandbox (hack/sandbox.sh) to keep what
// runtimes put into fixed places off the machine.
package e2e
