// Package sourcenode is a node at a real API server, for tests of address sources
// that use the Kubernetes API. Tests only.
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
	// Name is the node's, and its Node's.
	Name = "node-1"
	// Longest is for what takes milliseconds on a quiet machine.
	Longest = 3 * time.Minute
)

// Main runs a package's tests with a control plane that has Berth's CRDs and the
// roles and policies of a mode, for TestMain. Child is what a child of package crashsource
// does. It returns the exit code.
func Main[T any](m *testing.M, mode string, child func(T) error) int {
	return crashsource.Main(func() int {
		return harness.Kube(m.Run, func() error { return harness.ApplyAccess(context.Background(), mode) })
	}, child)
}

// Config is what the pod of a node's daemon, or operator, reaches the API with: the
// token of its service account, and so its generated role and the policy of what it
// may write, and nothing else.
func Config(t *testing.T, account, node string) *rest.Config {
	t.Helper()
	token, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: account}, node)
	harness.OK(t, err)
	return harness.ControlPlane.ConfigWithToken(token)
}

// Node is a node whose daemon a test starts and stops, and an administrator's hand.
type Node struct {
	T      *testing.T
	Dir    string          // what the daemon keeps
	API    client.Client   // as the administrator
	Config *rest.Config    // the daemon's
	Log    *sourcetest.Log // the daemon's
}

// New removes what earlier tests left at the API server.
func New(t *testing.T) *Node {
	t.Helper()
	harness.KubeClean(t)
	return &Node{T: t, Dir: t.TempDir(), API: harness.KubeClient(t), Config: Config(t, "berthd", Name), Log: sourcetest.NewLog(t)}
}

// Child is what a child of package crashsource has of its Node.
type Child struct{ Kubeconfig, Dir string }

// Leases are those that the child serves.
func (c Child) Leases() crashsource.Leases {
	return crashsource.Leases(filepath.Join(c.Dir, "leases"))
}

// NewChild prepares a child that is the daemon's source, with its leases.
func (n *Node) NewChild() (*crashsource.Process, crashsource.Leases) {
	n.T.Helper()
	c := Child{Kubeconfig: filepath.Join(n.Dir, "kubeconfig"), Dir: n.Dir}
	harness.OK(n.T, kube.WriteKubeconfig(c.Kubeconfig, n.Config))
	return crashsource.New(n.T, c, n.Log), c.Leases()
}

// Create makes an object, also where an API server does not know its policies yet.
func (n *Node) Create(o client.Object) {
	n.T.Helper()
	harness.OK(n.T, again("create "+o.GetName(), func(ctx context.Context) error { return n.API.Create(ctx, o) }))
}

// Get reads an object, also from an API server that takes its time. It reports
// whether there is one.
func (n *Node) Get(name string, into client.Object) bool {
	return again("read "+name, func(ctx context.Context) error { return n.API.Get(ctx, client.ObjectKey{Name: name}, into) }) == nil
}

// List lists objects, also from an API server that takes its time.
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

// Until waits for something that no event tells of. State says how things are, for
// when it does not come.
func (n *Node) Until(what string, ok func() bool, state func() string) {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(n.T.Context(), Longest)
	defer cancel()
	if poll.Until(ctx, poll.True(ok)) != nil {
		n.T.Fatalf("waited %v for: %s\n%s", Longest, what, state())
	}
}
