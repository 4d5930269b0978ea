//go:build e2e

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/walkthrough"
)

// flags are the commands of eksctl and aws on the page, with the flags that their documentation has.
var flags = map[string][]string{
	"aws eks describe-addon-configuration":     {"--addon-name", "--addon-version"},
	"aws eks update-addon":                     {"--cluster-name", "--addon-name", "--resolve-conflicts", "--configuration-values"},
	"aws iam create-policy":                    {"--policy-name", "--policy-document"},
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
		count++
		known, ok := flags[strings.Join(args[:min(3, len(args))], " ")]
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
				checkFile(t, filepath.Join(dir, strings.TrimSuffix(name, " ")))
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

func checkFile(t *testing.T, name string) {
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

// downloads replaces curl: files of the release come from the directory of the release under test.
const downloads = `#!/bin/bash
url=${!#} dir=.
for ((i = 1; i < $#; i++)); do
	if [ "${!i}" = --output-dir ]; then j=$((i + 1)) dir=${!j}; fi
done
case $url in
https://github.com/berthnet/berth/releases/download/v*/*)
	mkdir -p "$dir" && exec cp "$BERTH_RELEASE/${url##*/}" "$dir/"
	;;
esac
echo "curl: $url is no file of a release" >&2
exit 22
`

// commands returns a folder with the programs that users have besides those of the system.
func commands(t *testing.T, stubbed ...string) (dir, calls string) {
	t.Helper()
	dir, calls = stubs(t, stubbed...)
	harness.OK(t, os.WriteFile(filepath.Join(dir, "curl"), []byte(downloads), 0o700))
	for name, program := range map[string]string{"helm": os.Getenv(helmVariable), "kubectl": filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")} {
		harness.OK(t, os.Symlink(program, filepath.Join(dir, name)))
	}
	return dir, calls
}

// The EKS quick start, on a control plane without nodes. eksctl and aws are stubs, whose flags and files are checked; the
// release, kubectl and Helm are real. Without kubelets no command runs in a pod: for kubectl exec the DaemonSet must exist.
func TestEKSQuickStart(t *testing.T) {
	harness.StartKube(t)
	c := harness.KubeClient(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "ip-192-168-12-34.eu-central-1.compute.internal", Labels: map[string]string{"pod-network": "berth", "eks.amazonaws.com/nodegroup": "ng-1"},
	}}
	harness.OK(t, c.Create(t.Context(), node))
	node.Spec.Taints = nil
	harness.OK(t, c.Update(t.Context(), node))
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	node.Status.NodeInfo.KubeletVersion = "v1.37.1"
	harness.OK(t, c.Status().Update(t.Context(), node))

	dir := t.TempDir()
	bin, calls := commands(t, "eksctl", "aws")
	harness.OK(t, os.Remove(filepath.Join(bin, "kubectl")))
	harness.OK(t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(`#!/bin/bash
if [[ " $* " == *" exec "* ]]; then
	"$KUBEBUILDER_ASSETS/kubectl" --namespace=kube-system get daemonset berthd >/dev/null && echo "Node ip-192-168-12-34.eu-central-1.compute.internal (i-094880edc221e83d9): ready"
else
	exec "$KUBEBUILDER_ASSETS/kubectl" "$@"
fi
`), 0o700))
	walkthrough.Run(t, "eks.md", dir, 3*time.Minute, "KUBECONFIG="+harness.ControlPlane.AdminKubeconfig(), "HOME="+dir, "PATH="+bin+":"+os.Getenv("PATH"))
	checkCalls(t, dir, calls, 11)
}

// The bare-metal quick start, in a cluster of the lab whose nodes have the images of the release.
func TestBareMetalQuickStart(t *testing.T) {
	w := raiseEmpty(t, lab.Options{Mode: lab.PoolMode, NoDaemons: true, Kubelets: &lab.Kubelets{}})
	dir := t.TempDir()
	bin, _ := commands(t)
	walkthrough.Run(t, "bare-metal.md", dir, soon, "KUBECONFIG="+w.Kube.Kubeconfig, "HOME="+dir, "PATH="+bin+":"+os.Getenv("PATH"))
}

// The tutorial, as it is, in this tree.
func TestTutorial(t *testing.T) {
	bin, _ := commands(t)
	t.Cleanup(func() { harness.OK(t, os.RemoveAll(filepath.Join(harness.Tree(), "dist", "v0.1.0"))) })
	t.Cleanup(func() { // of a tutorial that failed
		if out, err := exec.Command(filepath.Join(harness.Tree(), "bin", "vpclab"), "down").CombinedOutput(); err != nil {
			t.Logf("vpclab down: %v: %s", err, out)
		}
	})
	walkthrough.Run(t, "lab.md", harness.Tree(), 2*soon, "PATH="+bin+":"+os.Getenv("PATH"))
}
