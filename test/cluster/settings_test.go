//go:build e2e

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/test/harness"
)

// givenValues are values of a file for helm --values. Those that are false, null or empty replace defaults of the chart.
const givenValues = `
mode: operator
clusterName: "007"
commonLabels: {team: "on", owner: ""}
operator: {replicas: 1, podDisruptionBudget: {create: false}, tolerations: []}
daemon:
  settings: {cri-socket: null, install-cni: false, subnet-tags: {for: pods, "a b": "yes"}, warm-ip-target: 5}
  extraEnv: [{name: TEXT, value: "two\nlines: # no comment\t\u0007\u2028end $(HOST_IP) 1e3 "}]
allowed: {securityGroups: [sg-1], addresses: 512}
`

// userOfHelm runs helm and kubectl on a control plane without nodes.
type userOfHelm struct{ env []string }

func newUserOfHelm(t *testing.T) userOfHelm {
	t.Helper()
	harness.StartKube(t)
	bin, _ := commands(t)
	u := userOfHelm{append(os.Environ(), "KUBECONFIG="+harness.ControlPlane.AdminKubeconfig(), "HOME="+t.TempDir(), "PATH="+bin+":"+os.Getenv("PATH"))}
	u.run(t, 0, "kubectl", "delete", "crds", "--all", "--timeout=60s") // of the harness
	return u
}

// run runs a command and checks its exit code.
func (u userOfHelm) run(t *testing.T, code int, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(filepath.SplitList(strings.TrimPrefix(u.env[len(u.env)-1], "PATH="))[0], name)
	cmd := exec.CommandContext(t.Context(), path, args...)
	var out strings.Builder
	cmd.Env, cmd.Stdout, cmd.Stderr = u.env, &out, t.Output()
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == code {
		err = nil
	}
	if err != nil || cmd.ProcessState.ExitCode() != code {
		t.Fatalf("%s %s: exit code %d, want %d: %v\n%s", name, strings.Join(args, " "), cmd.ProcessState.ExitCode(), code, err, &out)
	}
	return out.String()
}

func (u userOfHelm) helm(t *testing.T, args ...string) string {
	t.Helper()
	return u.run(t, 0, "helm", append(args, "--namespace=kube-system")...)
}

func (u userOfHelm) settings(t *testing.T, code int, args ...string) string {
	t.Helper()
	return u.run(t, code, "kubectl", append([]string{"berth", "--quiet", "settings"}, args...)...)
}

// values checks that kubectl berth settings prints the values that Helm was given, and returns them.
func (u userOfHelm) values(t *testing.T) (out map[string]any) {
	t.Helper()
	var given map[string]any
	harness.OK(t, yaml.Unmarshal([]byte(u.helm(t, "get", "values", "berth", "--output=yaml")), &given))
	harness.OK(t, yaml.Unmarshal([]byte(u.settings(t, 0)), &out))
	if d := cmp.Diff(given, out); d != "" {
		t.Errorf("values (-Helm +kubectl berth settings):\n%s", d)
	}
	return out
}

// allowed returns the data of the ConfigMap berthd-allowed.
func (u userOfHelm) allowed(t *testing.T) (data map[string]string) {
	t.Helper()
	harness.OK(t, yaml.Unmarshal([]byte(u.run(t, 0, "kubectl", "get", "configmap", "berthd-allowed", "--namespace=kube-system", "--output=jsonpath={.data}")), &data))
	return data
}

// without checks that the cluster differs neither from the release nor from a saved folder.
func (u userOfHelm) without(t *testing.T, saved ...string) {
	t.Helper()
	if out := u.settings(t, 0, append([]string{"--diff"}, saved...)...); out != "" {
		t.Errorf("differences:\n%s\nwant none", out)
	}
}

// What Helm was given in a file, by --set and in upgrades is in the values that are saved, and restored in a new cluster. What
// somebody changed by hand is found, saved and restored, too.
func TestSettingsOfHelm(t *testing.T) {
	pluginPath(t)
	charts, err := filepath.Glob(filepath.Join(os.Getenv(releaseVariable), "berth-[0-9]*.tgz"))
	harness.OK(t, errors.Join(err, atLeastOne(charts)))
	chart, dir := charts[0], t.TempDir()
	file, clean, changed := filepath.Join(dir, "values.yaml"), filepath.Join(dir, "clean"), filepath.Join(dir, "changed")
	harness.OK(t, os.WriteFile(file, []byte(givenValues), 0o600))
	drift := func(subnets, by string) string {
		return fmt.Sprintf(`ConfigMap kube-system/berthd-allowed
  data.securityGroups: "sg-1,sg-2", expected "sg-1"
  data.subnetIDs: %s, expected "subnet-1,subnet-2"
  data.mine: "x", expected to be unset (set by %s)
`, subnets, by)
	}
	var given map[string]any
	t.Run("saved", func(t *testing.T) {
		u := newUserOfHelm(t)
		u.helm(t, "install", "berth", chart, "--values="+file, "--set=allowed.subnetIDs={subnet-1,subnet-2}", "--set-string=commonLabels.release=1.10", "--set=daemon.priorityClassName=null")
		first := u.values(t)
		u.without(t)
		u.helm(t, "upgrade", "berth", chart, "--reset-then-reuse-values", "--set=allowed.addresses=4096", "--set=daemon.settings.warm-ip-target=7", `--set-json=daemon.tolerations=[{"key":"a","effect":"NoExecute","tolerationSeconds":3600}]`)
		given = u.values(t)
		u.without(t)
		if data := u.allowed(t); data["addresses"] != "4096" || data["subnetIDs"] != "subnet-1,subnet-2" {
			t.Errorf("berthd-allowed = %v after the upgrade", data)
		}
		u.settings(t, 0, "--output-dir="+clean)
		u.without(t, clean)
		u.helm(t, "rollback", "berth", "1")
		if d := cmp.Diff(first, u.values(t)); d != "" {
			t.Errorf("values after the rollback (-first +now):\n%s", d)
		}
		u.settings(t, 2, "--diff", clean)
		u.helm(t, "rollback", "berth", "2")
		u.without(t, clean)

		u.run(t, 0, "kubectl", "patch", "configmap", "berthd-allowed", "--namespace=kube-system", "--type=merge", `--patch={"data":{"subnetIDs":null,"securityGroups":"sg-1,sg-2","mine":"x"}}`)
		if out, want := u.settings(t, 2, "--diff", clean), drift("missing", "kubectl-patch")+"ConfigMap kube-system/berthd-allowed: in the cluster, but not in the folder\n"; out != want {
			t.Errorf("differences:\n%swant\n%s", out, want)
		}
		u.settings(t, 0, "--output-dir="+changed)
	})
	t.Run("restored", func(t *testing.T) {
		u := newUserOfHelm(t)
		u.helm(t, "install", "berth", chart, "--values="+filepath.Join(clean, "values.yaml"))
		if d := cmp.Diff(given, u.values(t)); d != "" {
			t.Errorf("values (-saved +restored):\n%s", d)
		}
		u.without(t, clean)
		u.run(t, 0, "kubectl", "apply", "--filename="+filepath.Join(changed, "objects"))
		if data := u.allowed(t); data["subnetIDs"] != "" || data["securityGroups"] != "sg-1,sg-2" || data["mine"] != "x" || data["addresses"] != "4096" {
			t.Errorf("berthd-allowed = %v, want what somebody changed", data)
		}
		if out, want := u.settings(t, 2, "--diff", changed), drift(`""`, "kubectl-client-side-apply"); out != want {
			t.Errorf("differences of the restored cluster:\n%swant those from the release alone:\n%s", out, want)
		}
		u.run(t, 0, "kubectl", "set", "env", "daemonset/berthd", "--namespace=kube-system", "BERTH_WARM_IP_TARGET=9")
		if out := u.settings(t, 2, "--diff", changed); !strings.Contains(out, "DaemonSet kube-system/berthd\n") || !strings.Contains(out, "env[name=BERTH_WARM_IP_TARGET]") {
			t.Errorf("differences after kubectl set env:\n%s", out)
		}
		u.helm(t, "upgrade", "berth", chart, "--force-conflicts", "--reset-then-reuse-values", "--set=daemon.settings.install-cni=null")
		if out, want := u.settings(t, 2, "--diff", clean), "chart values\n  daemon.settings.install-cni: "; !strings.Contains(out, want) {
			t.Errorf("differences after another upgrade:\n%swant %s", out, want)
		}
	})
}
