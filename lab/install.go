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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/poll"
)

// Release is the release of Berth's chart in a lab with kubelets.
const Release = "berth"

// DefaultTag is the tag of Berth's images that `make lab-images` packs.
const DefaultTag = "lab"

// InstallBerth installs Berth's chart, or changes the release to the values of the lab
// with more over them, and the pools or VPCs that the lab begins with. It returns
// when the API server has the objects; see WaitReady. With Kubelets.Helm it is `helm
// upgrade --install`.
func (l *Lab) InstallBerth(ctx context.Context, more map[string]any) error {
	values := merge(l.chartValues(), more)
	if err := l.nameVPCs(ctx); err != nil {
		return fmt.Errorf("install Berth: %w", err)
	}
	var err error
	if l.Kubelets.Helm != "" {
		err = l.helmInstall(ctx, values)
	} else {
		err = l.applyChart(ctx, values)
	}
	if err != nil {
		return fmt.Errorf("install Berth: %w", err)
	}
	switch l.Mode {
	case PortMode:
		return l.Kube.raiseVPCs(ctx, l.Ports.Access(), l.VPCs)
	case PoolMode:
		return l.installPools(ctx)
	default:
		return nil
	}
}

// installPools makes the pools that the lab begins with.
func (l *Lab) installPools(ctx context.Context) error {
	pools := l.Pools
	if pools == nil {
		pools = DefaultPools()
	}
	for _, p := range pools {
		err := settledPolicies(ctx, func() error { return client.IgnoreAlreadyExists(l.Kube.Client.Create(ctx, p.DeepCopy())) })
		if err != nil {
			return fmt.Errorf("create AddressPool %s: %w", p.Name, err)
		}
	}
	return nil
}

func (l *Lab) applyChart(ctx context.Context, values map[string]any) error {
	objects, err := deploy.Render(deploy.Release{Name: Release, Values: values})
	if err != nil {
		return err
	}
	return l.Kube.ApplyObjects(ctx, objects)
}

// helmInstall has the real program do it, so that Helm knows the release.
func (l *Lab) helmInstall(ctx context.Context, values map[string]any) error {
	dir := filepath.Join(l.Kube.dir, "chart")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.CopyFS(dir, deploy.Chart()); err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	data, err := json.Marshal(values)
	if err != nil {
		return err
	}
	file := filepath.Join(l.Kube.dir, "values.json")
	if err := os.WriteFile(file, data, 0o600); err != nil { // it may hold the operator's key
		return err
	}
	_, err = l.Helm(ctx, "upgrade", "--install", Release, dir, "--namespace="+addons.Namespace, "--values="+file)
	return err
}

// Helm runs Helm against the cluster and returns what it prints.
func (l *Lab) Helm(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, l.Kubelets.Helm, args...)
	home := filepath.Join(l.Kube.dir, "helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Kube.Kubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Kubectl runs the real kubectl against the cluster and returns what it prints.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.KubeAssets, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Kube.Kubeconfig, "HOME="+l.Kube.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// chartValues are what the lab tells Berth: where its cloud and its API server are,
// the images, and the settings that Options have for daemons and operators.
func (l *Lab) chartValues() map[string]any {
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(l.Kube.URL(), "https://"))
	image := func(name string) map[string]any {
		return map[string]any{"repository": name, "tag": l.Kubelets.Tag, "pullPolicy": "Never"}
	}
	daemon := map[string]any{"image": image("berth-node"), "settings": settings(slices.Concat(l.familyArgs(), l.DaemonArgs)), "extraEnv": env(l.BerthdEnv)}
	operator := map[string]any{
		"image": image("berth-operator"), "replicas": l.OperatorCount, "settings": settings(l.OperatorArgs), "extraEnv": env(l.operatorCredentials()),
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
	if l.Egress {
		values["egress"] = map[string]any{"enabled": true, "image": map[string]any{"repository": gatewayProgram, "tag": l.Kubelets.Tag}}
	}
	return values
}

// settings are flags, each --name=value or --name, as the chart has them.
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

// env is an environment in the form of a container's, by name: in another order it would
// be another pod, which a second installation would replace.
func env(of map[string]string) []any {
	out := []any{}
	for _, k := range slices.Sorted(maps.Keys(of)) {
		out = append(out, map[string]any{"name": k, "value": of[k]})
	}
	return out
}

// merge is a with b over it, as Helm merges values.
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

// WaitNodesReady returns once every Node of the lab's machines is Ready, which needs a
// network plugin.
func (l *Lab) WaitNodesReady(ctx context.Context) error {
	return poll.Until(ctx, func() error {
		for _, n := range l.Nodes() {
			node := &corev1.Node{}
			if err := l.Kube.Client.Get(ctx, client.ObjectKey{Name: n.Name}, node); err != nil {
				return err
			}
			if c := condition(node, corev1.NodeReady); c.Status != corev1.ConditionTrue {
				return fmt.Errorf("node %s is not Ready: %s", n.Name, c.Message)
			}
		}
		return nil
	})
}

// condition is a Node's condition of a type; one without a status if there is none.
func condition(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{Type: kind}
}

// WaitDeployment returns once all replicas of a Deployment are Ready and of its
// latest template.
func (l *Lab) WaitDeployment(ctx context.Context, namespace, name string) error {
	return poll.Until(ctx, func() error {
		d := &appsv1.Deployment{}
		if err := l.Kube.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, d); err != nil {
			return err
		}
		s, want := d.Status, int32(1)
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		if s.ObservedGeneration < d.Generation || s.UpdatedReplicas < want || s.Replicas > want || s.ReadyReplicas < want {
			return fmt.Errorf("deployment %s/%s: %d of %d replicas are ready, %d new, %d in all", namespace, name, s.ReadyReplicas, want, s.UpdatedReplicas, s.Replicas)
		}
		return nil
	})
}

// installAddons installs what a cluster has besides Berth.
func (l *Lab) installAddons(ctx context.Context) error {
	return kube.Again(ctx, "install CoreDNS", func() error {
		objects, err := addons.CoreDNS(l.clusterDNS())
		if err != nil {
			return err
		}
		return l.Kube.ApplyObjects(ctx, objects)
	})
}
