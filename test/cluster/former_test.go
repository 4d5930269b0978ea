//go:build e2e

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/test/harness"
)

// formerName is the DaemonSet of the Amazon VPC CNI.
const formerName = "aws-node"

// installFormer installs the Amazon VPC CNI from its published manifest, and waits until the nodes are Ready. Two things
// differ from the manifest: the network policy agent, which enforces nothing there, is left out with the setting that
// makes the plugin wait for it, and EC2 is the lab's.
func (w *world) installFormer(t *testing.T) {
	t.Helper()
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/amazon-vpc-cni-k8s")
	cmd.Dir = filepath.Join(harness.Tree(), "tools", "amazonvpccni")
	dir, err := cmd.Output()
	harness.OK(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config", "master", "aws-k8s-cni.yaml"))
	harness.OK(t, err)
	var objects []*unstructured.Unstructured
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		o := &unstructured.Unstructured{}
		harness.OK(t, yaml.Unmarshal([]byte(document), &o.Object))
		if len(o.Object) == 0 {
			continue
		}
		if o.GetKind() == "DaemonSet" {
			path := []string{"spec", "template", "spec", "containers"}
			containers, _, err := unstructured.NestedSlice(o.Object, path...)
			harness.OK(t, err)
			daemon := containers[0].(map[string]any)
			env := slices.DeleteFunc(daemon["env"].([]any), func(v any) bool { return v.(map[string]any)["name"] == "NETWORK_POLICY_ENFORCING_MODE" })
			daemon["env"] = append(env, map[string]any{"name": "AWS_EC2_ENDPOINT", "value": lab.EC2URL})
			harness.OK(t, unstructured.SetNestedSlice(o.Object, []any{daemon}, path...))
		}
		objects = append(objects, o)
	}
	harness.OK(t, w.Kube.ApplyObjects(t.Context(), objects))
	harness.OK(t, w.WaitReady(harness.Deadline(t, soon)))
}

// daemonPods returns the pods of a DaemonSet of kube-system by node.
func (w *world) daemonPods(t *testing.T, name string) map[string]corev1.Pod {
	t.Helper()
	pods := &corev1.PodList{}
	harness.OK(t, w.Kube.Client.List(t.Context(), pods, client.InNamespace(addons.Namespace), client.MatchingLabels{"app.kubernetes.io/name": name}))
	out := map[string]corev1.Pod{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			out[p.Spec.NodeName] = p
		}
	}
	return out
}
