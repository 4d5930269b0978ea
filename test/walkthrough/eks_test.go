//go:build e2e

package walkthrough

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/test/harness"
)

// flags are the commands of eksctl, aws and crane on the page, with the flags that their documentation has.
var flags = map[string][]string{
	"aws eks describe-addon-configuration":     {"--addon-name", "--addon-version"},
	"aws eks update-addon":                     {"--cluster-name", "--addon-name", "--resolve-conflicts", "--configuration-values"},
	"aws iam create-policy":                    {"--policy-name", "--policy-document"},
	"crane push":                               {},
	"eksctl create addon":                      {"--cluster", "--name"},
	"eksctl create cluster":                    {"--name", "--region", "--config-file"},
	"eksctl create iamserviceaccount":          {"--cluster", "--namespace", "--name", "--role-only", "--role-name", "--attach-policy-arn", "--approve"},
	"eksctl create nodegroup":                  {"--config-file", "--cluster", "--name", "--node-type", "--max-pods-per-node", "--node-labels"},
	"eksctl create podidentityassociation":     {"--cluster", "--namespace", "--service-account-name", "--permission-policy-arns"},
	"eksctl delete addon":                      {"--cluster", "--name", "--preserve"},
	"eksctl delete nodegroup":                  {"--cluster", "--name"},
	"eksctl utils associate-iam-oidc-provider": {"--cluster", "--approve"},
}

// stubs writes programs that record how they are called, and returns their folder and the file of calls.
func stubs(t *testing.T, programs ...string) (dir, calls string) {
	t.Helper()
	dir = t.TempDir()
	calls = filepath.Join(dir, "calls")
	for _, p := range programs {
		text := fmt.Sprintf("#!/bin/bash\nprintf '%%s\\0' %s \"$@\" >>%s\nprintf '\\n' >>%s\n", p, calls, calls)
		harness.OK(t, os.WriteFile(filepath.Join(dir, p), []byte(text), 0o700))
	}
	return dir, calls
}

// checkCalls compares the calls of stubs with the flags that the programs have, and reads the files that they name.
func checkCalls(t *testing.T, dir, calls string, least int) {
	t.Helper()
	data, err := os.ReadFile(calls)
	harness.OK(t, err)
	count := 0
	for call := range strings.SplitSeq(strings.TrimSpace(string(data)), "\x00\n") {
		args := strings.Split(strings.TrimSuffix(call, "\x00"), "\x00")
		if args[0] == "make" {
			continue
		}
		count++
		words := 2
		if args[0] == "eksctl" || args[0] == "aws" {
			words = 3
		}
		known, ok := flags[strings.Join(args[:min(words, len(args))], " ")]
		if !ok {
			t.Errorf("%q: no such command", args)
		}
		for i, arg := range args {
			if strings.HasPrefix(arg, "--") && !slices.Contains(known, arg) {
				t.Errorf("%q: no flag %s, want one of %q", args, arg, known)
			}
			if i == 0 {
				continue
			}
			if name, isFile := strings.CutPrefix(arg, "file://"); isFile || args[i-1] == "--config-file" {
				readFile(t, filepath.Join(dir, strings.TrimSuffix(name, " ")))
			}
			if args[i-1] == "--configuration-values" {
				var values map[string]any
				harness.OK(t, yaml.Unmarshal([]byte(arg), &values))
			}
		}
	}
	if count < least {
		t.Errorf("%d calls of stubs, want at least %d", count, least)
	}
}

// nodeGroups are the fields of eksctl's ClusterConfig that the page uses.
type nodeGroups struct {
	metav1.TypeMeta   `json:",inline"`
	Metadata          map[string]string `json:"metadata"`
	ManagedNodeGroups []struct {
		Name            string            `json:"name"`
		InstanceType    string            `json:"instanceType"`
		DesiredCapacity int               `json:"desiredCapacity"`
		MaxPodsPerNode  int               `json:"maxPodsPerNode"`
		Labels          map[string]string `json:"labels"`
	} `json:"managedNodeGroups"`
}

func readFile(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(name)
	harness.OK(t, err)
	var anything map[string]any
	harness.OK(t, yaml.Unmarshal(data, &anything))
	if anything["kind"] == "ClusterConfig" {
		var groups nodeGroups
		harness.OK(t, yaml.UnmarshalStrict(data, &groups))
		if len(groups.ManagedNodeGroups) != 1 || groups.ManagedNodeGroups[0].MaxPodsPerNode == 0 {
			t.Errorf("%s: node groups %+v", name, groups)
		}
	} else if anything["Version"] != "2012-10-17" {
		t.Errorf("%s is no IAM policy", name)
	}
}

// workdir returns a folder that has of the tree what a page's commands read, and the folders of the programs.
func workdir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"deploy"} {
		harness.OK(t, os.Symlink(filepath.Join(harness.Tree(), name), filepath.Join(dir, name)))
	}
	return dir
}

// The EKS quick start, on a control plane without nodes. eksctl, aws, crane and make are stubs that check flags and files;
// kubectl, helm, the chart and kubectl berth are real. What a pod of berthd prints is not compared.
func TestEKSQuickStart(t *testing.T) {
	harness.StartKube(t)
	c := harness.KubeClient(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ip-192-168-12-34.eu-central-1.compute.internal", Labels: map[string]string{"pod-network": "berth", "eks.amazonaws.com/nodegroup": "ng-1"}}}
	harness.OK(t, c.Create(t.Context(), node))
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	node.Status.NodeInfo.KubeletVersion = "v1.37.1"
	harness.OK(t, c.Status().Update(t.Context(), node))

	dir := workdir(t)
	bin, calls := stubs(t, "eksctl", "aws", "crane", "make")
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	// A pod's command cannot be run without kubelets: the DaemonSet that it names must exist.
	harness.OK(t, os.WriteFile(filepath.Join(bin, "kubectl"), fmt.Appendf(nil, `#!/bin/bash
if [[ " $* " == *" exec "* ]]; then
	%[1]s/kubectl "${@:1:2}" get daemonset berthd -o name >/dev/null && echo "Node ip-192-168-12-34.eu-central-1.compute.internal (i-094880edc221e83d9): ready"
else
	exec %[1]s/kubectl "$@"
fi
`, assets), 0o700))
	harness.OK(t, os.Symlink(os.Getenv(helmVariable), filepath.Join(bin, "helm")))
	harness.OK(t, os.Symlink(filepath.Join(harness.BinDir, "kubectl-berth"), filepath.Join(bin, "kubectl-berth")))
	prepare(t, dir, bin)
	run(t, "eks.md", dir, 3*time.Minute, "KUBECONFIG="+harness.ControlPlane.Kubeconfig, "HOME="+dir, "PATH="+bin+":"+os.Getenv("PATH"))
	checkCalls(t, dir, calls, 12)
}
