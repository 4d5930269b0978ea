package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/kube"
)

// Release is the release of Berth's chart in a lab with kubelets.
const Release = "berth"

// DefaultTag is the tag of the Berth images that `make lab-images` packs.
const DefaultTag = "lab"

// Chart is Berth's release in a lab with kubelets.
type Chart struct{ lab *Lab }

// Install installs Berth's chart, or upgrades the release to the lab's values merged with more, and creates the pools or
// VPCs of the lab. It does not wait for pods (see WaitReady). With Kubelets.Helm it runs `helm upgrade --install`.
func (s *Chart) Install(ctx context.Context, more map[string]any) error {
	l := s.lab
	values := merge(s.values(), more)
	if err := s.nameVPCs(ctx); err != nil {
		return fmt.Errorf("install Berth: %w", err)
	}
	var err error
	if l.Kubelets.Helm != "" {
		err = s.helmInstall(ctx, values)
	} else {
		err = s.apply(ctx, values)
	}
	if err != nil {
		return fmt.Errorf("install Berth: %w", err)
	}
	switch l.Mode {
	case PortMode:
		return l.Kube.raiseVPCs(ctx, l.Ports.Access(), l.VPCs)
	case PoolMode:
		return l.Kube.createPools(ctx, l.Pools)
	default:
		return nil
	}
}

func (s *Chart) apply(ctx context.Context, values map[string]any) error {
	l := s.lab
	render := deploy.Render
	if l.Kubelets.Release != "" {
		file, err := releaseChart(l.Kubelets.Release)
		if err != nil {
			return err
		}
		p, err := deploy.ReadPackage(file)
		if err != nil {
			return err
		}
		render = p.Render
	}
	objects, err := render(deploy.Release{Name: Release, Values: values})
	if err != nil {
		return err
	}
	return l.Kube.ApplyObjects(ctx, objects)
}

// helmInstall installs with Helm, so that Helm manages the release.
func (s *Chart) helmInstall(ctx context.Context, values map[string]any) error {
	l := s.lab
	chart, err := s.Path()
	if err != nil {
		return err
	}
	data, err := json.Marshal(values)
	if err != nil {
		return err
	}
	file := filepath.Join(l.Kube.dir, "values.json")
	if err := os.WriteFile(file, data, 0o600); err != nil { // it may contain the operator's key
		return err
	}
	_, err = s.Helm(ctx, "upgrade", "--install", Release, chart, "--namespace="+addons.Namespace, "--values="+file)
	return err
}

// writeChart writes the chart of the sources to a directory.
func writeChart(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.CopyFS(dir, deploy.Chart()); err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	return nil
}

// Helm runs Helm against the cluster and returns its output.
func (s *Chart) Helm(ctx context.Context, args ...string) (string, error) {
	l := s.lab
	cmd := exec.CommandContext(ctx, l.Kubelets.Helm, args...)
	home := filepath.Join(l.Kube.dir, "helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Kube.Kubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// values returns the values of the chart: the addresses of the cloud and the API server, the images, and the settings of
// daemons and operators.
func (s *Chart) values() map[string]any {
	l := s.lab
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(l.Kube.URL(), "https://"))
	image := func(name string) map[string]any {
		if l.Kubelets.Release != "" {
			return map[string]any{"pullPolicy": "Never"} // the chart's own image
		}
		return map[string]any{"repository": name, "tag": DefaultTag, "pullPolicy": "Never"}
	}
	daemon := map[string]any{"image": image("berth-node"), "settings": settings(slices.Concat(l.familyArgs(), l.DaemonArgs)), "extraEnv": env(l.BerthdEnv)}
	args := l.OperatorArgs
	if l.Mode == PortMode { // the API server is on the router, and its requests come from another address
		args = append([]string{"--webhook-clients=" + site.Links}, args...)
	}
	operator := map[string]any{
		"image": image("berth-operator"), "replicas": l.OperatorCount, "settings": settings(args), "extraEnv": env(l.operators.credentials()),
	}
	switch l.Mode {
	case NodeMode:
		daemon["settings"].(map[string]any)["ec2-endpoint"] = EC2URL
	case OperatorMode:
		operator["settings"].(map[string]any)["ec2-endpoint"] = EC2URL
	}
	values := map[string]any{
		"mode": string(l.Mode), "clusterName": l.clusterName(), "daemon": daemon, "operator": operator,
		"apiServer": map[string]any{"host": host, "port": json.Number(port)},
	}
	if l.NetworkPolicies {
		values["networkPolicies"] = map[string]any{"enabled": true}
	}
	if l.Egress {
		gateways := image(gatewayProgram)
		delete(gateways, "pullPolicy") // templates of Egresses have their own
		values["egress"] = map[string]any{"enabled": true, "image": gateways}
	}
	return values
}

// nameVPCs assigns pods that name no VPC to the first one, even in namespaces that are created later. The VPC need
// not exist.
func (s *Chart) nameVPCs(ctx context.Context) error {
	l := s.lab
	if l.Mode != PortMode || len(l.VPCs) == 0 {
		return nil
	}
	for _, namespace := range []string{metav1.NamespaceDefault, addons.Namespace} {
		if err := l.Kube.setVPC(ctx, namespace, l.VPCs[0].Name); err != nil {
			return err
		}
	}
	objects, err := addons.DefaultVPC(l.VPCs[0].Name)
	if err != nil {
		return err
	}
	return kube.Retry(ctx, "set the default VPC of namespaces", func() error { return l.Kube.ApplyObjects(ctx, objects) })
}

// settings converts flags (--name=value or --name) to values of the chart.
func settings(flags []string) map[string]any {
	out := map[string]any{}
	for _, f := range flags {
		name, value, ok := strings.Cut(strings.TrimLeft(f, "-"), "=")
		if !ok {
			value = "true"
		}
		out[name] = value
	}
	return out
}

// env converts an environment to that of a container. It is sorted: a different order would replace pods in an upgrade.
func env(of map[string]string) []any {
	out := []any{}
	for _, k := range slices.Sorted(maps.Keys(of)) {
		out = append(out, map[string]any{"name": k, "value": of[k]})
	}
	return out
}

// merge merges b over a, like Helm merges values.
func merge(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	for k, v := range b {
		if of, ok := v.(map[string]any); ok {
			if under, ok := out[k].(map[string]any); ok {
				v = merge(under, of)
			}
		}
		out[k] = v
	}
	return out
}

// condition returns a Node's condition of a type, or a zero one if it is missing.
func condition(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{Type: kind}
}

// installAddons installs CoreDNS.
func (b builder) installAddons(ctx context.Context) error {
	l := b.lab
	return kube.Retry(ctx, "install CoreDNS", func() error {
		objects, err := addons.CoreDNS(l.clusterDNS())
		if err != nil {
			return err
		}
		return l.Kube.ApplyObjects(ctx, objects)
	})
}
