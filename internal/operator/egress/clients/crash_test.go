package clients

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/crashsource"
)

// mortal is an operator that a failpoint may kill, in a process of its own.
type mortal struct{ Kubeconfig string }

func child(m mortal) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", m.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // a file cannot say so
	ctx := context.Background()
	_, mgr, err := assemble(ctx, cfg, Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		return err
	}
	return errors.Join(failpoint.Err(), mgr.Start(ctx))
}

// An operator that is killed at any step leaves nothing that the next one does not finish,
// nor anybody served who is not to be.
func TestKillAtEveryFailpoint(t *testing.T) {
	var names []string
	for _, name := range failpoint.Names() {
		if strings.HasPrefix(name, "operator.egressclient.") {
			names = append(names, name)
		}
	}
	if len(names) < 14 {
		t.Fatalf("only %v are registered", names)
	}
	for _, name := range harness.Sample(t, 9, names) {
		t.Run(name, func(t *testing.T) {
			harness.KubeClean(t)
			w := newWorld(t)
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			harness.OK(t, kube.WriteKubeconfig(kubeconfig, operatorConfig(t)))
			deaths := crashsource.Restarted(t, mortal{kubeconfig}, name+"=kill")
			w.live()
			if n := deaths(); n != 1 {
				t.Errorf("%d operators died", n)
			}
		})
	}
}

// live is a life with all that leads to writes.
func (w *world) live() {
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	web, goes, wrong := w.pod("web", "nat"), w.pod("goes", "nat"), w.pod("wrong", "none")
	w.setUp(web, "10.1.0.1")
	w.setUp(goes, "10.1.0.2")
	w.awaitServed("nat", "web 10.1.0.1", "goes 10.1.0.2")
	w.await(web, "is ready", ready(reasonSetUp))
	w.await(wrong, "is refused", ready(v1alpha1.EgressNotFound))
	w.awaitCounts("nat", 2, 0, reasonServed)
	w.edit(wrong, `{"metadata":{"annotations":{"egress.berth.dev/internet":"nat"}}}`)
	w.setUp(wrong, "10.1.0.3")
	w.deletePod(goes)
	w.awaitServed("nat", "web 10.1.0.1", "wrong 10.1.0.3")
	w.awaitNone(goes)
	w.edit(wrong, `{"metadata":{"annotations":null}}`)
	w.awaitNone(wrong)
	w.deletePod(web)
	w.awaitServed("nat")
	w.awaitNone(web)
	w.awaitCounts("nat", 0, 0, reasonServed)
	if s := w.slices("nat"); len(s) > 0 {
		w.t.Errorf("slices are left: %+v", s)
	}
}
