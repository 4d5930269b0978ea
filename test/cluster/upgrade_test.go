//go:build e2e

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/kubectl"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/test/harness"
)

// upgrade upgrades the previous release to this one with helm upgrade, reverts that with helm rollback and upgrades
// again, while the Service is called and pods are created and deleted. The settings that were saved before are then
// restored. Helm does not skip a minor version unless told to.
func upgrade(t *testing.T, w *world) {
	pluginPath(t)
	previous, images := w.Kubelets.Release, w.images(t)
	saved, values := filepath.Join(t.TempDir(), "berth.yaml"), w.helmValues(t)
	harness.OK(t, os.WriteFile(saved, []byte(w.berth(t, 0, "settings")), 0o600))
	w.underCalls(t, func() {
		w.churn(t, func() {
			harness.OK(t, w.Chart.Use(t.Context(), os.Getenv(releaseVariable)))
			harness.OK(t, w.Chart.Install(t.Context(), nil))
			w.rolledOut(t)
			if now := w.images(t); slices.Equal(now, images) {
				t.Errorf("images after the upgrade = %v, want others than those of %s", now, previous)
			}
			if _, err := w.Chart.Helm(t.Context(), "rollback", lab.Release, "1", "--namespace="+addons.Namespace); err != nil {
				t.Error(err)
			}
			w.rolledOut(t)
			if now := w.images(t); !slices.Equal(now, images) {
				t.Errorf("images after the rollback = %v, want %v", now, images)
			}
			harness.OK(t, w.Chart.Install(t.Context(), nil))
			w.rolledOut(t)
		})
	})
	harness.OK(t, w.helmUpgrade(t, "--values="+saved))
	if restored := w.helmValues(t); restored != values {
		t.Errorf("values restored from kubectl berth settings:\n%s\nwant\n%s", restored, values)
	}
	w.rest(t)
	w.skipsNoMinorVersion(t)
}

// skipsNoMinorVersion upgrades to this release's chart with a version that is two minor versions later.
func (w *world) skipsNoMinorVersion(t *testing.T) {
	t.Helper()
	later, err := deploy.NewPackage("v0.3.0", nil)
	harness.OK(t, err)
	file := filepath.Join(t.TempDir(), later.File())
	f, err := os.Create(file)
	harness.OK(t, errors.Join(err, later.Write(f), f.Close()))
	args := []string{"upgrade", lab.Release, file, "--namespace=" + addons.Namespace, "--reuse-values", "--dry-run=server"}
	if _, err := w.Chart.Helm(t.Context(), args...); err == nil || !strings.Contains(err.Error(), "must not skip a minor version") {
		t.Errorf("upgrade to v0.3.0: error = %v, want a refusal", err)
	}
	if _, err := w.Chart.Helm(t.Context(), append(args, "--set=upgrade.skipMinorVersions=true")...); err != nil {
		t.Errorf("upgrade to v0.3.0 with upgrade.skipMinorVersions: %v", err)
	}
}

// helmUpgrade upgrades the release with its chart and further flags.
func (w *world) helmUpgrade(t *testing.T, flags ...string) error {
	t.Helper()
	chart, err := w.Chart.Path()
	harness.OK(t, err)
	_, err = w.Chart.Helm(t.Context(), append([]string{"upgrade", lab.Release, chart, "--namespace=" + addons.Namespace}, flags...)...)
	return err
}

// helmValues returns the values that Helm was given for the release.
func (w *world) helmValues(t *testing.T) string {
	t.Helper()
	values, err := w.Chart.Helm(t.Context(), "get", "values", lab.Release, "--namespace="+addons.Namespace, "--output=yaml")
	harness.OK(t, err)
	return values
}

// workloads lists Berth's workloads, as kubectl names them.
func (w *world) workloads() []string {
	if w.Mode == lab.NodeMode {
		return []string{"daemonset/" + daemonName}
	}
	return []string{"daemonset/" + daemonName, "deployment/" + operator}
}

// rolledOut waits until all of Berth's pods are new and Ready.
func (w *world) rolledOut(t *testing.T) {
	t.Helper()
	for _, workload := range w.workloads() {
		w.kubectl(t, "rollout", "status", workload, "--namespace="+addons.Namespace, fmt.Sprintf("--timeout=%.0fs", soon.Seconds()))
	}
}

// image returns the image of a workload.
func (w *world) image(t *testing.T, workload string) string {
	t.Helper()
	return w.kubectl(t, "get", workload, "--namespace="+addons.Namespace, "--output=jsonpath={.spec.template.spec.containers[0].image}")
}

// images returns the images of Berth's workloads.
func (w *world) images(t *testing.T) (all []string) {
	t.Helper()
	for _, workload := range w.workloads() {
		all = append(all, w.image(t, workload))
	}
	return all
}

// TestModeChange changes a cluster from node mode to operator mode and back, node by node, as docs/guides/upgrade.md says.
// Meanwhile pods of the Service get addresses on the other node, and afterwards cloud, daemons and pods agree.
func TestModeChange(t *testing.T) {
	pluginPath(t)
	spec, key := lab.DefaultSpec(2, "m5.large"), lab.OperatorKey
	key.Actions = []string{"*"} // permissions are not tested here
	spec.AccessKeys = append(spec.AccessKeys, key)
	w := raise(t, lab.Options{Mode: lab.NodeMode, Spec: &spec, OperatorCount: 2, Kubelets: &lab.Kubelets{Proxy: host.NFTables}})
	for _, w.Mode = range []lab.Mode{lab.OperatorMode, lab.NodeMode} {
		onDelete := map[string]any{"daemon": map[string]any{"updateStrategy": map[string]any{"type": "OnDelete"}}}
		before := map[string]types.UID{}
		for _, n := range w.Nodes() {
			p, err := w.daemon(t.Context(), n.Name)
			harness.OK(t, err)
			before[n.Name] = p.UID
		}
		harness.OK(t, w.Chart.Install(t.Context(), onDelete))
		for _, n := range w.Nodes() {
			w.kubectl(t, "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force") // the client has no controller
			harness.OK(t, w.Kube.WaitDeployment(harness.Deadline(t, soon), inDefault, webName))       // on the other node
			if p, err := w.daemon(t.Context(), n.Name); err != nil || p.UID != before[n.Name] {
				t.Errorf("berthd on %s was replaced before its node was drained: %v, %v", n.Name, p, err)
			}
			w.kubectl(t, "delete", "pod", "--namespace="+addons.Namespace, "--field-selector=spec.nodeName="+n.Name, "--selector=app.kubernetes.io/name="+daemonName)
			if w.Mode == lab.OperatorMode {
				w.kubectl(t, "wait", "--for=create", "nodenetwork/"+n.Name, "--timeout=1m")
				w.kubectl(t, "wait", "--for=condition=Ready", "nodenetwork/"+n.Name, "--timeout=5m")
			}
			w.kubectl(t, "uncordon", n.Name)
			harness.Eventually(t, soon, "berthd on "+n.Name+" is Ready", func() error {
				p, err := w.daemon(t.Context(), n.Name)
				if err == nil && (p.UID == before[n.Name] || !objects.IsReady(p)) {
					err = notYet(p.Status)
				}
				return err
			})
		}
		harness.OK(t, w.Chart.Install(t.Context(), nil))
		w.rolledOut(t)
		w.comesAndGoes(t)
		if s := berthJSON[kubectl.Status](t, w, 0, "status"); !slices.Equal(s.Modes, []diagnose.Mode{diagnose.Mode(w.Mode)}) {
			t.Errorf("nodes are in modes %v, want %s", s.Modes, w.Mode)
		}
	}
}
