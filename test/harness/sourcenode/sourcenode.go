// Package sourcenode is a node of a real API server, for tests of address sources that use the Kubernetes API. Tests
// only.
package sourcenode

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/crashsource"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

const (
	// Name is the name of the node and its Node.
	Name = "node-1"
	// Longest bounds steps that take milliseconds on an idle machine.
	Longest = 3 * time.Minute
)

// Main runs a package's tests with a control plane that has Berth's CRDs and the roles and policies of a mode, for
// TestMain. Child is the function of a crashsource child. It returns the exit code.
func Main[T any](m *testing.M, mode string, child func(T) error) int {
	return crashsource.Main(func() int {
		return harness.Kube(m.Run, func() error { return harness.ApplyAccess(context.Background(), mode) })
	}, child)
}

// Config is the API access of the pod of a node's daemon, or of an operator: the token of its service account, with
// its generated role and the policy for its writes, and nothing else.
func Config(t *testing.T, account, node string) *rest.Config {
	t.Helper()
	token, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: account}, node)
	harness.OK(t, err)
	return harness.ControlPlane.ConfigWithToken(token)
}

// Node is a node whose daemon a test starts and stops, with administrator access.
type Node struct {
	T      *testing.T
	Dir    string          // state of the daemon
	API    client.Client   // administrator's client
	Config *rest.Config    // access of the daemon
	Log    *sourcetest.Log // log of the daemon
}

// New removes leftovers of earlier tests from the API server.
func New(t *testing.T) *Node {
	t.Helper()
	harness.KubeClean(t)
	return &Node{T: t, Dir: t.TempDir(), API: harness.KubeClient(t), Config: Config(t, "berthd", Name), Log: sourcetest.NewLog(t)}
}

// Child is the part of a Node that a crashsource child needs.
type Child struct{ Kubeconfig, Dir string }

// Leases returns the leases that the child serves.
func (c Child) Leases() crashsource.Leases {
	return crashsource.Leases(filepath.Join(c.Dir, "leases"))
}

// NewChild prepares a child that runs the daemon's source, with its leases.
func (n *Node) NewChild() (*crashsource.Process, crashsource.Leases) {
	n.T.Helper()
	c := Child{Kubeconfig: filepath.Join(n.Dir, "kubeconfig"), Dir: n.Dir}
	harness.OK(n.T, kube.WriteKubeconfig(c.Kubeconfig, n.Config))
	return crashsource.New(n.T, c, n.Log), c.Leases()
}

// Create creates an object, retrying while the API server does not know its policies yet.
func (n *Node) Create(o client.Object) {
	n.T.Helper()
	harness.OK(n.T, again("create "+o.GetName(), func(ctx context.Context) error { return n.API.Create(ctx, o) }))
}

// Get reads an object, retrying while the API server is slow. It reports whether the object exists.
func (n *Node) Get(name string, into client.Object) bool {
	return again("read "+name, func(ctx context.Context) error { return n.API.Get(ctx, client.ObjectKey{Name: name}, into) }) == nil
}

// List lists objects, retrying while the API server is slow.
func (n *Node) List(into client.ObjectList) {
	if err := again("list", func(ctx context.Context) error { return n.API.List(ctx, into) }); err != nil {
		n.T.Log(err)
	}
}

func again(what string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return kube.Retry(ctx, what, func() error { return do(ctx) })
}

// Until waits for a condition that no event announces. State describes the current state for the failure message.
func (n *Node) Until(what string, ok func() bool, state func() string) {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(n.T.Context(), Longest)
	defer cancel()
	if poll.Until(ctx, poll.True(ok)) != nil {
		n.T.Fatalf("condition not met within %v: %s\n%s", Longest, what, state())
	}
}
