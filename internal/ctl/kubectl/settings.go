package kubectl

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/view"
)

func newSettings(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "settings",
		Short: "Print the chart values that were chosen for this cluster",
		Long: `Print the chart values that were chosen for this cluster, without the chart's defaults, as a
file for helm's --values: a backup before an upgrade, or the settings of another cluster.

Reads the release that Helm has recorded in the namespace of Berth, which takes the right
to list Secrets there. Values may contain what only you should read, such as extraEnv.`,
		Example: `  kubectl berth settings > berth.yaml
  helm upgrade --install berth CHART --namespace kube-system --values berth.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := p.reach(cmd.Context())
			if err != nil {
				return err
			}
			s, err := a.settings(cmd.Context(), p.daemons)
			if err != nil {
				return err
			}
			text, err := s.text()
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}
}

// settings is what people chose for a cluster.
type settings struct {
	namespace string
	release   helmRelease
}

// text formats the settings as a file that helm takes as --values. What is no chart value belongs into comments.
func (s *settings) text() (string, error) {
	values, err := yaml.JSONToYAML(s.release.Config)
	if err != nil {
		return "", fmt.Errorf("values of release %s: %w", s.release.Name, err)
	}
	m := s.release.Chart.Metadata
	return fmt.Sprintf("# Values of release %s in namespace %s: chart %s, revision %d, %s\n%s", s.release.Name, s.namespace,
		view.Printable(m.Name+"-"+m.Version), s.release.Version, view.Printable(s.release.Info.Status), values), nil
}

// helmRelease is the part of Helm's record of a release that is used here.
type helmRelease struct {
	Name    string
	Version int // the revision
	Info    struct{ Status string }
	Chart   struct {
		Metadata struct{ Name, Version string }
	}
	Config json.RawMessage // the values that were given to helm
}

// maxRelease bounds the size of a decompressed record. The API server stores at most 1 MiB of a compressed one.
const maxRelease = 64 << 20

// readRelease decodes the field "release" of Helm's Secret or ConfigMap: JSON, compressed, in base64.
func readRelease(record []byte) (r helmRelease, err error) {
	packed, err := base64.StdEncoding.DecodeString(string(record))
	if err != nil {
		return r, err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return r, err
	}
	text, err := io.ReadAll(io.LimitReader(unpacked, maxRelease+1))
	if err != nil {
		return r, err
	}
	if len(text) > maxRelease {
		return r, fmt.Errorf("more than %d bytes", maxRelease)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	if len(r.Config) == 0 || string(r.Config) == "null" {
		r.Config = json.RawMessage("{}")
	}
	return r, nil
}

// stored is a Secret or ConfigMap of Helm. The data of a Secret is in base64 once more.
type stored struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Data     map[string]string `json:"data"`
}

// settings reads the release that the DaemonSet of berthd belongs to.
func (a *api) settings(ctx context.Context, namespace string) (*settings, error) {
	daemons := one[struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}](ctx, a, "DaemonSet "+connect.DaemonName, "/apis/apps/v1/namespaces/"+namespace+"/daemonsets/"+connect.DaemonName)
	if len(a.unread) > 0 {
		return nil, errors.New("could not be read: " + strings.Join(a.unread, "; "))
	}
	name := daemons.Value.Metadata.Labels["app.kubernetes.io/instance"]
	if name == "" {
		return nil, fmt.Errorf("no DaemonSet %s of Berth's chart exists in namespace %s: name the namespace of the release with --berth-namespace", connect.DaemonName, namespace)
	}
	for _, kind := range []string{"secrets", "configmaps"} { // Helm's storage by default, and with HELM_DRIVER=configmap
		found := list[stored](ctx, a, kind+" of Helm", "/api/v1/namespaces/"+namespace+"/"+kind, query{"labelSelector": "owner=helm,name=" + name})
		if len(a.unread) > 0 {
			return nil, errors.New("could not be read: " + strings.Join(a.unread, "; "))
		}
		if newest, ok := current(found); ok {
			return newest.settings(namespace, kind)
		}
	}
	return nil, fmt.Errorf("no Secret or ConfigMap of namespace %s records the release %s: its manifests were applied without Helm (helm template), and their values are in the file that they were made with", namespace, name)
}

// current returns the newest deployed revision, or the newest of all if none is deployed.
func current(revisions []stored) (out stored, ok bool) {
	order := func(s stored) (n int) {
		n, _ = strconv.Atoi(s.Metadata.Labels["version"])
		if s.Metadata.Labels["status"] == "deployed" {
			n += 1 << 30
		}
		return n
	}
	for _, s := range revisions {
		if !ok || order(s) > order(out) {
			out, ok = s, true
		}
	}
	return out, ok
}

func (s stored) settings(namespace, kind string) (*settings, error) {
	record := []byte(s.Data["release"])
	var err error
	if kind == "secrets" {
		record, err = base64.StdEncoding.DecodeString(s.Data["release"])
	}
	var r helmRelease
	if err == nil {
		r, err = readRelease(record)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s is no record of a release by Helm 3 or 4: %w", strings.TrimSuffix(kind, "s"), namespace, s.Metadata.Name, err)
	}
	return &settings{namespace, r}, nil
}
