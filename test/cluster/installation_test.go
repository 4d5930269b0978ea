//go:build e2e

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/test/harness"
)

// foreignTag is that of images for another architecture.
const foreignTag = "lab-foreign"

func notYet(what any) error { return fmt.Errorf("not yet: %v", what) }

// foreignImage rolls out images for another architecture: the update stops at the first node, whose pods keep running,
// and the chart's former values end it.
func foreignImage(t *testing.T, w *world) {
	archives, err := filepath.Glob(filepath.Join(os.Getenv(foreignVariable), "*.tar"))
	harness.OK(t, errors.Join(err, atLeastOne(archives)))
	for _, n := range w.Nodes() {
		h, err := w.Machine(n.Name)
		harness.OK(t, err)
		for _, archive := range archives {
			// As from a registry, which has it for that platform only.
			_, err := h.Run(t.Context(), "ctr", "--namespace=k8s.io", "image", "import", "--all-platforms", "--no-unpack", archive)
			harness.OK(t, err)
		}
	}
	w.underCalls(t, func() {
		harness.OK(t, w.Chart.Install(t.Context(), map[string]any{"daemon": map[string]any{"image": map[string]any{"tag": foreignTag}}}))
		var broken []string
		harness.Eventually(t, soon, "the kubelet refuses the image", func() error {
			broken, err = w.refusals(t)
			return errors.Join(err, atLeastOne(broken))
		})
		if len(broken) > 1 {
			t.Errorf("the update did not halt at the first node: %v", broken)
		}
		t.Log(broken)
		daemon, err := w.daemon(t.Context(), strings.Split(broken[0], ":")[0])
		harness.OK(t, err)
		w.shows(t, []string{"exec format error"}, "logs", daemon.Name, "--namespace="+addons.Namespace)
		harness.OK(t, w.Chart.Install(t.Context(), nil))
		w.rolledOut(t, lab.DefaultTag)
	})
	w.rest(t)
}

func atLeastOne(list []string) error {
	if len(list) == 0 {
		return errors.New("there is none")
	}
	return nil
}

// refusals are the kubelets' reasons why they cannot run containers of berthd.
func (w *world) refusals(t *testing.T) (said []string, err error) {
	for _, n := range w.Nodes() {
		p, err := w.daemon(t.Context(), n.Name)
		if err != nil {
			continue // between two pods
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

// missingKind deletes the CRD of NodeNetworks, and all of them with it: pods keep running, and the objects return with
// the CRD.
func missingKind(t *testing.T, w *world) {
	w.underCalls(t, func() {
		w.kubectl(t, "delete", "crd", "nodenetworks.berth.dev", "--timeout=60s")
		w.saysAll(t, "lacks kinds of Berth's: apply deploy/chart")
		harness.OK(t, w.Chart.Install(t.Context(), nil))
		harness.Eventually(t, soon, "every node has its object again", func() error {
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
// without being forced.
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
			t.Errorf("helm upgrade: %v, want it to name who has changed the definition", err)
		}
		_, err := w.Chart.Helm(t.Context(), "upgrade", lab.Release, filepath.Join(w.dir, "kube", "chart"), "--namespace="+addons.Namespace,
			"--reuse-values", "--force-conflicts")
		harness.OK(t, err)
		harness.Eventually(t, soon, "the definition is whole again", func() error {
			out, err := w.Kube.Kubectl(t.Context(), "explain", "nodenetworks.status.ipam.waiting")
			return errors.Join(err, contains(out, "waiting"))
		})
	})
	w.comesAndGoes(t)
}

func contains(text, word string) error {
	if !strings.Contains(text, word) {
		return fmt.Errorf("%q is not in %q", word, text)
	}
	return nil
}

// missingRole deletes the programs' role bindings: pods keep running, nodes assign the addresses that they have, and
// applying the chart again repairs it.
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

// saysAll waits until logs of Berth's pods, or events of them, contain some words.
func (w *world) saysAll(t *testing.T, words string) {
	t.Helper()
	harness.Eventually(t, soon, "what a person sees", func() error {
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
		return errors.Join(err, logErr, fmt.Errorf("nobody says %q", words))
	})
}

// comesAndGoes waits until the cluster is at rest, and creates and deletes pods.
func (w *world) comesAndGoes(t *testing.T) {
	t.Helper()
	w.rest(t)
	pods := w.makePods(t, "after", brokenNode, 2)
	w.podReady(t, pods...)
	w.removePods(t, pods...)
	w.rest(t)
}
