package deploy_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ctl/kubectl"
	"github.com/berthnet/berth/test/harness"
)

// chosen are values of all types, and texts that YAML would read as something else.
const chosen = `
mode: operator
clusterName: "007"
apiServer: {host: "fd00::1", port: 6443}
commonLabels: {team: "on", release: "1.10", owner: ""}
daemon:
  image: {repository: registry.example.com/berth-node, tag: "1e3"}
  settings: {cri-socket: null, warm-ip-target: 5, external-snat: true, warm-wait: 30s, subnet-tags: {for: pods, "a b": "yes"}}
  extraEnv: [{name: TEXT, value: "two\nlines: # no comment\t\u0007\u2028end "}]
  tolerations: [{key: a, operator: Equal, value: "true", effect: NoExecute, tolerationSeconds: 3600}]
  serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/berthd"}}
allowed: {addresses: 65536, subnetIDs: ["*"]}
`

// kubectl berth settings prints the values that were given to Helm, for Helm to take them again.
func TestSettingsRoundTrip(t *testing.T) {
	harness.KubeClean(t)
	given := map[string]any{}
	harness.OK(t, yaml.Unmarshal([]byte(chosen), &given))
	objects, err := deploy.Render(deploy.Release{Name: "net", Values: given})
	harness.OK(t, err)
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), objects.Of("DaemonSet")))

	settings := func() (string, error) {
		var out bytes.Buffer
		cmd := kubectl.New(kubectl.Options{Config: harness.ControlPlane.Config()})
		cmd.SetArgs([]string{"settings", "--quiet"})
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	if _, err := settings(); err == nil || !strings.Contains(err.Error(), "applied without Helm") {
		t.Errorf("without a record: error = %v, want one that says so", err)
	}
	c := harness.KubeClient(t)
	for i, tt := range []struct {
		configMap bool
		status    common.Status
		values    map[string]any
		want      map[string]any
	}{
		{true, common.StatusDeployed, given, given},
		{false, common.StatusFailed, nil, map[string]any{}},
		{false, common.StatusDeployed, given, given},
		{false, common.StatusFailed, map[string]any{"clusterName": "broken"}, given},
	} {
		harness.OK(t, c.Create(t.Context(), recorded(t, &release.Release{
			Name: "net", Namespace: "kube-system", Version: i + 1, Info: &release.Info{Status: tt.status},
			Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "berth", Version: "1.2.3"}}, Config: jsonOf(t, tt.values),
		}, tt.configMap)))
		text, err := settings()
		harness.OK(t, err)
		if header, _, _ := strings.Cut(text, "\n"); !strings.HasPrefix(header, "# Values of release net in namespace kube-system: chart berth-1.2.3, revision ") {
			t.Errorf("first line = %q", header)
		}
		restored, err := loader.LoadValues(strings.NewReader(text)) // as helm does for --values
		harness.OK(t, err)
		if d := cmp.Diff(jsonOf(t, tt.want), jsonOf(t, restored)); d != "" {
			t.Errorf("revision %d: values (-given +restored):\n%s\nof\n%s", i+1, d, text)
		}
		if len(tt.want) > 0 {
			again, err := deploy.Render(deploy.Release{Name: "net", Values: restored})
			harness.OK(t, err)
			if d := cmp.Diff(objects, again); d != "" {
				t.Errorf("objects (-given +restored):\n%s", d)
			}
		}
	}
}

// recorded returns a release as Helm records it: the JSON of Helm's own type, compressed and in base64.
func recorded(t *testing.T, r *release.Release, configMap bool) client.Object {
	t.Helper()
	text, err := json.Marshal(r)
	harness.OK(t, err)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err = w.Write(text)
	harness.OK(t, errors.Join(err, w.Close()))
	record := base64.StdEncoding.EncodeToString(packed.Bytes())
	meta := metav1.ObjectMeta{
		Namespace: r.Namespace, Name: fmt.Sprintf("sh.helm.release.v1.%s.v%d", r.Name, r.Version),
		Labels: map[string]string{"owner": "helm", "name": r.Name, "status": string(r.Info.Status), "version": strconv.Itoa(r.Version)},
	}
	if configMap {
		return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"release": record}}
	}
	return &corev1.Secret{ObjectMeta: meta, Type: "helm.sh/release.v1", StringData: map[string]string{"release": record}}
}

// jsonOf returns values as they are after a way through JSON.
func jsonOf(t *testing.T, values map[string]any) (out map[string]any) {
	t.Helper()
	b, err := json.Marshal(values)
	harness.OK(t, err)
	harness.OK(t, json.Unmarshal(b, &out))
	return out
}
