package egress

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
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
	_, mgr, err := assemble(ctx, cfg, Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	return errors.Join(failpoint.Err(), mgr.Start(ctx))
}

// An operator that is killed at any step leaves nothing that the next one does not finish.
func TestKillAtEveryFailpoint(t *testing.T) {
	var names []string
	for _, name := range failpoint.Names() {
		if strings.HasPrefix(name, "operator.gateways.") {
			names = append(names, name)
		}
	}
	if len(names) < 6 {
		t.Fatalf("only %v are registered", names)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			w := stage(t)
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			harness.OK(t, kube.WriteKubeconfig(kubeconfig, operatorConfig(t)))
			deaths := crashsource.Restarted(t, mortal{kubeconfig}, name+"=kill")
			one := intstr.FromInt32(1)
			e := w.egress("nat", v1alpha1.EgressSpec{PodDisruptionBudget: &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &one}})
			for i, p := range w.pods("nat", 1) {
				w.ready(p, corev1.ConditionTrue, []string{"10.0.0.1", "10.0.0.2"}[i])
			}
			w.status("nat", "is available", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.EgressGatewaysReady))
			await(w, &policyv1.PodDisruptionBudget{}, "nat", "is there", isThere)
			w.change(e, `{"spec":{"podDisruptionBudget":null,"replicas":2}}`)
			w.awaitGone(&policyv1.PodDisruptionBudget{}, "nat")
			w.pods("nat", 2)
			if got := w.owned("nat"); len(got) != 5 {
				t.Errorf("there are %q", got)
			}
			if n := deaths(); n != 1 {
				t.Errorf("%d operators died", n)
			}
		})
	}
}
