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
	var dir string
	var force, diff bool
	cmd := &cobra.Command{
		Use:   "settings [DIR]",
		Short: "Print, save and compare the user settings of this cluster",
		Long: `Print the chart values that you have set in this cluster, without the chart's defaults, as a
file for helm --values: a backup before an upgrade, or the settings of another cluster.

With --output-dir, write a folder with all user settings:

  values.yaml  the chart values
  objects/     AddressPools, Egresses, NICPolicies, NodeNetworkTemplates, VPCs without their
               Secrets, Berth's annotations and labels of Namespaces, and the ConfigMap
               berthd-allowed if it differs from the chart values
  nodes/       fields of spec.eni that somebody set in NodeNetworks; apply them once the nodes
               have joined

With --diff, list the objects and fields of the Helm release that somebody changed, removed
or added in the cluster; with --diff DIR, also the differences from a folder that --output-dir
wrote. Exits with 2 if there is a difference.

Reads the release that Helm has recorded in Berth's namespace, which requires the right to
list Secrets there; --diff also requires the right to read the objects of the release.
Values may be confidential, such as extraEnv.`,
		Example: `  kubectl berth settings > berth.yaml
  kubectl berth settings --output-dir backup
  kubectl berth settings --diff
  helm upgrade --install berth CHART --namespace kube-system --values backup/values.yaml
  kubectl apply -f backup/objects`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && !diff:
				return fmt.Errorf("argument %q: expected --diff with it, or --output-dir to write a folder", args[0])
			case dir != "" && diff:
				return errors.New("--output-dir and --diff exclude each other")
			case force && dir == "":
				return errors.New("--force is for --output-dir")
			}
			a, err := p.reach(cmd.Context())
			if err != nil {
				return err
			}
			s, err := a.settings(cmd.Context(), p.daemons)
			if err != nil {
				return err
			}
			switch {
			case dir != "":
				c, err := a.choices(cmd.Context(), s)
				if err != nil {
					return err
				}
				return c.write(dir, force)
			case diff:
				return printDrift(a, cmd, s, args)
			}
			text, err := s.text()
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVarP(&dir, "output-dir", "o", "", "write a folder with all user settings")
	cmd.Flags().BoolVar(&force, "force", false, "replace a folder that --output-dir wrote before")
	cmd.Flags().BoolVar(&diff, "diff", false, "list differences between the cluster and the Helm release, and the folder DIR if given")
	return cmd
}

// printDrift prints the differences of the cluster from the release and, if one is given, from a saved folder.
func printDrift(a *api, cmd *cobra.Command, s *settings, dirs []string) error {
	found, err := a.drift(cmd.Context(), s)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		saved, err := readChoices(dir)
		if err != nil {
			return err
		}
		c, err := a.choices(cmd.Context(), s)
		if err != nil {
			return err
		}
		since, err := saved.compare(c)
		if err != nil {
			return err
		}
		found = append(found, since...)
	}
	if err := writeDifferences(cmd.OutOrStdout(), found); err != nil || len(found) == 0 {
		return err
	}
	return errUnwell
}

// settings are the user settings of a cluster.
type settings struct {
	namespace string
	release   helmRelease
}

// text formats the settings as a file for helm --values. Other information is in comments.
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
	Config   json.RawMessage // the values that were given to helm
	Manifest string          // the rendered objects
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

// stored is a Secret or ConfigMap of Helm. The data of a Secret has an additional layer of base64.
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
		return nil, a.err()
	}
	name := ""
	if daemons.Value != nil {
		name = daemons.Value.Metadata.Labels["app.kubernetes.io/instance"]
	}
	if name == "" {
		return nil, fmt.Errorf("no DaemonSet %s of Berth's chart exists in namespace %s: name the namespace of the release with --berth-namespace", connect.DaemonName, namespace)
	}
	for _, kind := range []string{"secrets", "configmaps"} { // Helm's storage by default, and with HELM_DRIVER=configmap
		found := list[stored](ctx, a, kind+" of Helm", "/api/v1/namespaces/"+namespace+"/"+kind, query{"labelSelector": "owner=helm,name=" + name})
		if len(a.unread) > 0 {
			return nil, a.err()
		}
		if newest, ok := current(found); ok {
			return newest.settings(namespace, kind)
		}
	}
	return nil, fmt.Errorf("no Secret or ConfigMap of namespace %s records the release %s: its manifests were applied without Helm (helm template), and their values are in the file that they were rendered with", namespace, name)
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
		return nil, fmt.Errorf("%s %s/%s is not a release record of Helm 3 or 4: %w", strings.TrimSuffix(kind, "s"), namespace, s.Metadata.Name, err)
	}
	return &settings{namespace, r}, nil
}
