package pool

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/lab/run/kube"
	truth "github.com/berthnet/berth/internal/operator"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/crashsource"
)

// startTrueOperator runs berth-operator, in a process of its own, with the rights
// that it has in a cluster.
func (m *machine) startTrueOperator() {
	m.t.Helper()
	token, err := harness.ControlPlane.NodeToken(m.t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}, nodeID)
	if err != nil {
		m.t.Fatal(err)
	}
	env := childConfig{Kubeconfig: filepath.Join(m.dir, "operator"), Operator: true}
	if err := kube.WriteKubeconfig(env.Kubeconfig, harness.ControlPlane.ConfigWithToken(token)); err != nil {
		m.t.Fatal(err)
	}
	cmd, err := crashsource.Command(env, m.log)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// operate is berth-operator's main.
func operate(kubeconfig string) error {
	flags := pflag.NewFlagSet("operator", pflag.ContinueOnError)
	loader := config.NewOperatorLoader(flags)
	if err := flags.Parse([]string{"--ipam=pool", "--kubeconfig=" + kubeconfig, "--leader-elect=false", "--metrics-address="}); err != nil {
		return err
	}
	cfg, err := loader.Load(nil)
	if err != nil {
		return err
	}
	return truth.Run(context.Background(), cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// With the true operator: a hundred pods at once, of single addresses and of
// blocks; then both pools are deleted under them, and nothing of them is left
// once the pods have gone.
func TestWithTheTrueOperator(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 5, nil, "10.0.0.0/22 fd00::/118")
	m.pool("public", 0, []string{namespace}, "10.1.0.0/25")
	m.startTrueOperator()
	m.start()
	m.until("a warm block", func() bool { return m.Ready() == nil })
	for i := range 100 {
		pool := ""
		if i%2 > 0 {
			pool = "public"
		}
		m.podNamed(namespace, fmt.Sprint("pod", i), pool)
	}
	var wg sync.WaitGroup
	leases := make([]source.Lease, 100)
	for i := range leases {
		wg.Go(func() {
			var err error
			if leases[i], err = m.try(i, longest); err != nil {
				t.Errorf("pod %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	m.settled(2 + 50)
	distinct(t, leases)
	for _, name := range []string{"default", "public"} {
		p := &v1alpha1.AddressPool{}
		if err := m.api.Get(t.Context(), client.ObjectKey{Name: name}, p); err != nil {
			t.Fatal(err)
		}
		if err := m.api.Delete(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	for i := range leases {
		if m.block(leases[i].Block) == nil {
			t.Errorf("block %s went under pod %d", leases[i].Block, i)
		}
		m.Release(key(i))
	}
	pools := &v1alpha1.AddressPoolList{}
	m.until("nothing is left", func() bool {
		return m.api.List(t.Context(), pools) == nil && len(pools.Items) == 0 && len(m.blocks()) == 0 && len(m.requests()) == 0 && len(m.routes.names()) == 0
	})
}
