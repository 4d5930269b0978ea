//go:build e2e

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/test/harness"
)

func notYet(what any) error { return fmt.Errorf("not yet: %v", what) }

// foreignImage rolls out images for another architecture: the update stops at the first node, whose pods keep
// running, until the chart's former values are applied.
func foreignImage(t *testing.T, w *world) {
	digest := w.importForeign(t)
	if digest == "" {
		t.Skipf("NOT RUN: %s=%s has images for %s only", releaseVariable, os.Getenv(releaseVariable), runtime.GOARCH)
	}
	w.underCalls(t, func() {
		harness.OK(t, w.Chart.Install(t.Context(), map[string]any{"daemon": map[string]any{"image": map[string]any{"digest": digest}}}))
		var broken []string
		var err error
		harness.Eventually(t, soon, "kubelet rejects the image", func() error {
			broken, err = w.refusals(t)
			return errors.Join(err, atLeastOne(broken))
		})
		if len(broken) > 1 {
			t.Errorf("the update did not stop at the first node: %v", broken)
		}
		t.Log(broken)
		daemon, err := w.daemon(t.Context(), strings.Split(broken[0], ":")[0])
		harness.OK(t, err)
		w.shows(t, []string{"exec format error"}, "logs", daemon.Name, "--namespace="+addons.Namespace)
		harness.OK(t, w.Chart.Install(t.Context(), nil))
		w.rolledOut(t)
	})
	w.rest(t)
}

// installManifest replaces the release of Helm by the install manifest of this release, and then lets Helm take over again,
// while the Service is called.
func installManifest(t *testing.T, w *world) {
	name := w.kubectl(t, "get", "daemonset/"+daemonName, "--namespace="+addons.Namespace, `--output=jsonpath={.spec.template.spec.containers[0].env[?(@.name=="BERTH_CLUSTER_NAME")].value}`)
	text, err := os.ReadFile(filepath.Join(os.Getenv(releaseVariable), "install-"+string(w.Mode)+".yaml"))
	harness.OK(t, err)
	dir := t.TempDir()
	manifest, values := filepath.Join(dir, "install.yaml"), filepath.Join(dir, "berth.yaml")
	harness.OK(t, os.WriteFile(manifest, []byte(strings.ReplaceAll(string(text), "MY_CLUSTER", name)), 0o600))
	harness.OK(t, os.WriteFile(values, []byte(w.helmValues(t)), 0o600))
	w.underCalls(t, func() {
		_, err := w.Chart.Helm(t.Context(), "uninstall", lab.Release, "--namespace="+addons.Namespace, "--wait")
		harness.OK(t, err)
		w.kubectl(t, "apply", "--server-side", "--filename="+manifest)
		w.kubectl(t, "set", "env", "daemonset/"+daemonName, "--namespace="+addons.Namespace, "BERTH_EC2_ENDPOINT="+lab.EC2URL)
		w.rolledOut(t)
		w.comesAndGoes(t)
		harness.OK(t, w.helmUpgrade(t, "--install", "--values="+values, "--take-ownership", "--force-conflicts"))
		w.rolledOut(t)
	})
	w.comesAndGoes(t)
}

// importForeign gives the machines the node image of this release for another architecture, as if pulled from a registry
// that has only that platform, and returns its digest, or "" if the release has none.
func (w *world) importForeign(t *testing.T) (digest string) {
	t.Helper()
	name, index, _ := strings.Cut(w.image(t, "daemonset/"+daemonName), "@")
	found, err := filepath.Glob(filepath.Join(os.Getenv(releaseVariable), path.Base(name)+"-*.oci.tar"))
	harness.OK(t, errors.Join(err, atLeastOne(found)))
	layout, archive := t.TempDir(), filepath.Join(t.TempDir(), "foreign.tar")
	tar(t, "-xf", found[0], "-C", layout)
	var all struct{ Manifests []map[string]any }
	data, err := os.ReadFile(filepath.Join(layout, "blobs", "sha256", strings.TrimPrefix(index, "sha256:")))
	harness.OK(t, errors.Join(err, json.Unmarshal(data, &all)))
	for _, m := range all.Manifests {
		if a := m["platform"].(map[string]any)["architecture"]; a == runtime.GOARCH || a == "unknown" { // or an SBOM
			continue
		}
		digest = m["digest"].(string)
		m["annotations"] = map[string]string{"io.containerd.image.name": name + ":foreign"}
		data, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{m}})
		harness.OK(t, errors.Join(err, os.WriteFile(filepath.Join(layout, "index.json"), data, 0o600)))
	}
	tar(t, "-cf", archive, "-C", layout, ".")
	for _, n := range w.Nodes() {
		h, err := w.Machine(n.Name)
		harness.OK(t, err)
		_, err = h.Run(t.Context(), "ctr", "--namespace=k8s.io", "image", "import", "--all-platforms", "--no-unpack", "--base-name="+name, "--digests", archive)
		harness.OK(t, err)
	}
	return digest
}

// tar runs tar.
func tar(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "tar", args...).CombinedOutput(); err != nil {
		t.Fatalf("tar %v: %v\n%s", args, err, out)
	}
}

func atLeastOne(list []string) error {
	if len(list) == 0 {
		return errors.New("no rejection yet")
	}
	return nil
}

// refusals returns the kubelets' reasons why they cannot run containers of berthd.
func (w *world) refusals(t *testing.T) (said []string, err error) {
	for _, n := range w.Nodes() {
		p, err := w.daemon(t.Context(), n.Name)
		if err != nil {
			continue // between the old and the new pod
		}
		for _, c := range p.Status.ContainerStatuses {
			if s := c.State.Waiting; s != nil && s.Reason != "ContainerCreating" {
				said = append(said, n.Name+": "+s.Reason+": "+s.Message)
			}
			if s := c.State.Terminated; s != nil {
				said = append(said, n.Name+": "+s.Reason+": "+s.Message)
			}
		}
	}
	return said, nil
}

// missingKind deletes the CRD of NodeNetworks, and all of them with it: pods keep running, and the objects are
// recreated once the CRD is back.
func missingKind(t *testing.T, w *world) {
	w.underCalls(t, func() {
		w.kubectl(t, "delete", "crd", "nodenetworks.berth.dev", "--timeout=60s")
		w.saysAll(t, "lacks kinds of Berth's: apply deploy/chart")
		harness.OK(t, w.Chart.Install(t.Context(), nil))
		harness.Eventually(t, soon, "every node has its NodeNetwork again", func() error {
			list, err := w.Kube.NodeNetworks(t.Context())
			if err == nil && len(list) < len(w.Nodes()) {
				err = notYet(len(list))
			}
			return err
		})
	})
	w.comesAndGoes(t)
}

// olderKind patches a CRD so that it lacks fields that the programs write. Helm refuses to overwrite the change
// unless forced.
func olderKind(t *testing.T, w *world) {
	version := "/spec/versions/0/schema/openAPIV3Schema/properties/"
	var patch []string
	for _, field := range []string{"spec/properties/ipam/properties/unassigning", "status/properties/ipam/properties/waiting"} {
		patch = append(patch, fmt.Sprintf(`{"op":"remove","path":%q}`, version+field))
	}
	w.underCalls(t, func() {
		w.kubectl(t, "patch", "crd", "nodenetworks.berth.dev", "--type=json", "--patch=["+strings.Join(patch, ",")+"]")
		w.comesAndGoes(t)
		if err := w.Chart.Install(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `conflict with "kubectl-patch"`) {
			t.Errorf("helm upgrade: error = %v, want one that names the conflicting field manager", err)
		}
		harness.OK(t, w.helmUpgrade(t, "--reuse-values", "--force-conflicts"))
		harness.Eventually(t, soon, "CRD is complete again", func() error {
			out, err := w.Kube.Kubectl(t.Context(), "explain", "nodenetworks.status.ipam.waiting")
			return errors.Join(err, contains(out, "waiting"))
		})
	})
	w.comesAndGoes(t)
}

func contains(text, word string) error {
	if !strings.Contains(text, word) {
		return fmt.Errorf("%q not found in %q", word, text)
	}
	return nil
}

// missingRole deletes the programs' role bindings: pods keep running, nodes assign their existing addresses, and
// applying the chart again repairs the installation.
func missingRole(t *testing.T, w *world) {
	h, err := w.Machine(brokenNode)
	harness.OK(t, err)
	pods := w.makePods(t, "role", brokenNode, 1)
	w.podReady(t, pods...)
	w.underCalls(t, func() {
		w.kubectl(t, "delete", "clusterrolebinding", daemonName, operator)
		w.newSandbox(t, h, pods[0])
		w.saysAll(t, "is forbidden: User")
		harness.OK(t, w.Chart.Install(t.Context(), nil))
	})
	w.podReady(t, pods...)
	w.removePods(t, pods...)
	w.comesAndGoes(t)
}

// saysAll waits until logs or events of Berth's pods contain some words.
func (w *world) saysAll(t *testing.T, words string) {
	t.Helper()
	harness.Eventually(t, soon, "logs and events", func() error {
		events, err := w.Kube.Kubectl(t.Context(), "get", "events", "--namespace="+addons.Namespace)
		logs, logErr := w.Kube.Kubectl(t.Context(), "logs", "--namespace="+addons.Namespace, "--selector=app.kubernetes.io/name in (berthd, berth-operator)", "--tail=40", "--prefix", "--ignore-errors")
		if strings.Contains(events+logs, words) {
			for line := range strings.Lines(events + logs) {
				if strings.Contains(line, words) {
					t.Log(line)
				}
			}
			return nil
		}
		return errors.Join(err, logErr, fmt.Errorf("no log or event contains %q", words))
	})
}

// comesAndGoes waits until the cluster is at rest, and then creates and deletes pods.
func (w *world) comesAndGoes(t *testing.T) {
	t.Helper()
	w.rest(t)
	pods := w.makePods(t, "after", brokenNode, 2)
	w.podReady(t, pods...)
	w.removePods(t, pods...)
	w.rest(t)
}
