//go:build e2e

package neutron

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/openstack"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	code := harness.Main(m, "berthd", "berth", "berth-operator")
	if err := present.close(); err != nil {
		fmt.Println("FAIL: left behind:", err)
		code = 1
	}
	os.Exit(code)
}

// world is an instance with nodes.
type world struct {
	*openstack.Cloud
	options openstack.Options
	nodes   []*openstack.Node
	spaces  []string // the names of their network namespaces
}

// present is the running instance. There is one at a time, as each has the same addresses.
var present *world

// nodeNames are the nodes of each instance, which are Neutron's hosts.
var nodeNames = []string{"node-a", "node-b"}

// of is an instance of a kind with two nodes, which tests share.
func of(t *testing.T, backend openstack.Backend, keystone bool) *world {
	t.Helper()
	if present != nil && present.options.Backend == backend && present.options.Keystone == keystone {
		return present
	}
	harness.OK(t, present.close())
	dir, err := os.MkdirTemp("", "os") // short, since sockets lie in it
	harness.OK(t, err)
	began := time.Now()
	progress := func(line string) { t.Logf("%5.1f s  %s", time.Since(began).Seconds(), line) }
	w := &world{options: openstack.Options{Dir: dir, Backend: backend, Keystone: keystone, Progress: progress}}
	present = w
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if w.Cloud, err = openstack.Start(ctx, w.options); err != nil {
		t.Fatal(err)
	}
	var joining errgroup.Group
	w.nodes = make([]*openstack.Node, len(nodeNames))
	for i, name := range nodeNames {
		space := fmt.Sprintf("btneutron-%d-%s", os.Getpid(), name)
		harness.OK(t, ns.Create(space))
		w.spaces = append(w.spaces, space)
		joining.Go(func() (err error) { w.nodes[i], err = w.Join(ctx, name, ns.Path(space)); return err })
	}
	harness.OK(t, joining.Wait())
	// Later progress belongs to no test.
	return w
}

func (w *world) close() error {
	if w == nil {
		return nil
	}
	present = nil
	var errs []error
	if w.Cloud != nil {
		errs = append(errs, w.Close())
	}
	for _, s := range w.spaces {
		errs = append(errs, ns.Remove(s))
	}
	return errors.Join(append(errs, os.RemoveAll(w.options.Dir))...)
}
