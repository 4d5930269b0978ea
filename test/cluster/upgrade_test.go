//go:build e2e

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/test/harness"
)

// nextTag is the tag of images of the same programs with another version.
const nextTag = "lab-next"

// upgrade upgrades the release with helm upgrade and reverts it with helm rollback, while the Service is called and
// pods are created and deleted. The settings that were saved before are then restored.
func upgrade(t *testing.T, w *world) {
	w.importAll(t, os.Getenv(nextVariable))
	saved, values := filepath.Join(t.TempDir(), "berth.yaml"), w.helmValues(t)
	harness.OK(t, os.WriteFile(saved, []byte(w.berth(t, 0, "settings")), 0o600))
	w.underCalls(t, func() {
		w.churn(t, func() {
			harness.OK(t, w.Chart.Install(t.Context(), withImages(nextTag)))
			w.rolledOut(t, nextTag)
			if _, err := w.Chart.Helm(t.Context(), "rollback", lab.Release, "1", "--namespace="+addons.Namespace); err != nil {
				t.Error(err)
			}
			w.rolledOut(t, lab.DefaultTag)
		})
	})
	_, err := w.Chart.Helm(t.Context(), "upgrade", lab.Release, filepath.Join(w.dir, "kube", "chart"), "--namespace="+addons.Namespace, "--values="+saved)
	harness.OK(t, err)
	if restored := w.helmValues(t); restored != values {
		t.Errorf("values restored from kubectl berth settings:\n%s\nwant\n%s", restored, values)
	}
	w.rest(t)
}

// helmValues returns the values that Helm was given for the release.
func (w *world) helmValues(t *testing.T) string {
	t.Helper()
	values, err := w.Chart.Helm(t.Context(), "get", "values", lab.Release, "--namespace="+addons.Namespace, "--output=yaml")
	harness.OK(t, err)
	return values
}

// withImages returns chart values for images with a tag.
func withImages(tag string) map[string]any {
	image := map[string]any{"image": map[string]any{"tag": tag}}
	return map[string]any{"daemon": image, "operator": image}
}

// importAll imports the images in a directory on every machine.
func (w *world) importAll(t *testing.T, folder string) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(folder, "*.tar"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("no images in %q: %v", folder, err)
	}
	for _, n := range w.Nodes() {
		h, err := w.Machine(n.Name)
		harness.OK(t, err)
		for _, archive := range archives {
			harness.OK(t, h.Import(t.Context(), archive))
		}
	}
}

// workloads lists Berth's workloads, as kubectl names them.
func (w *world) workloads() []string {
	if w.Mode == lab.NodeMode {
		return []string{"daemonset/" + daemonName}
	}
	return []string{"daemonset/" + daemonName, "deployment/" + operator}
}

// rolledOut waits until all of Berth's pods are new and Ready, and checks the tag of their images.
func (w *world) rolledOut(t *testing.T, tag string) {
	t.Helper()
	for _, workload := range w.workloads() {
		w.kubectl(t, "rollout", "status", workload, "--namespace="+addons.Namespace, fmt.Sprintf("--timeout=%.0fs", soon.Seconds()))
		image := w.kubectl(t, "get", workload, "--namespace="+addons.Namespace, "--output=jsonpath={.spec.template.spec.containers[0].image}")
		if !strings.HasSuffix(image, ":"+tag) {
			t.Errorf("image of %s = %s, want tag %s", workload, image, tag)
		}
	}
}
