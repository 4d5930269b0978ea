package kubectl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// The pods of the node tool: one for each node, in Berth's namespace.
const (
	toolLabel     = "berth-migrate" // their app.kubernetes.io/name
	toolVerb      = "berth.dev/migrate"
	toolContainer = "migrate"
	toolSeconds   = 600 // deadline of such a pod
	maxToolSaid   = 512 // maximum number of bytes of its output in an error
)

// toolName returns the name of the node tool's pod for a Node.
func toolName(node string) string {
	sum := sha256.Sum256([]byte(node))
	return toolLabel + "-" + hex.EncodeToString(sum[:8])
}

// toolRunner runs the node tool on nodes.
type toolRunner struct {
	*requests
	from                        former
	formerNamespace, formerName string // of its DaemonSet
	image                       string // of the pods; berthd's if empty
	dump                        []byte // of etcd; nil unless the former system needs one
	// Last observed state.
	formerSpec, berthdSpec corev1.PodSpec
}

// toolPod contains the parts in which pods of the node tool differ.
type toolPod struct {
	container corev1.Container
	volumes   []corev1.Volume
	secrets   []corev1.LocalObjectReference
}

// toolPods returns the pods of the node tool by Node. It ignores pods with another name, or on another node.
func (r *toolRunner) toolPods(ctx context.Context, a *api) map[string]corev1.Pod {
	out := map[string]corev1.Pod{}
	for _, pod := range list[corev1.Pod](ctx, a, "pods of the node tool", r.in("pods"), query{"labelSelector": connect.NameLabel + "=" + toolLabel}) {
		if pod.Name == toolName(pod.Spec.NodeName) {
			out[pod.Spec.NodeName] = pod
		}
	}
	return out
}

func (r *toolRunner) startTool(ctx context.Context, node, verb string) error {
	pod, err := r.newTool(node, verb)
	if err != nil {
		return err
	}
	return r.send(ctx, r.in("pods"), pod)
}

// newTool returns the pod of the node tool for a verb.
func (r *toolRunner) newTool(node, verb string) (*corev1.Pod, error) {
	t, err := r.from.tool(r, verb)
	if err != nil {
		return nil, err
	}
	t.container.Name = toolContainer
	t.container.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: toolName(node), Namespace: r.berth, Labels: map[string]string{connect.NameLabel: toolLabel, "app.kubernetes.io/part-of": "berth", toolVerb: verb},
		},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, HostPID: true, RestartPolicy: corev1.RestartPolicyNever, DNSPolicy: corev1.DNSDefault,
			AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false), PriorityClassName: "system-node-critical",
			ActiveDeadlineSeconds: new(int64(toolSeconds)), TerminationGracePeriodSeconds: new(int64(5)),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{t.container}, Volumes: t.volumes, ImagePullSecrets: t.secrets,
		},
	}, nil
}

// berthctl returns the container that runs `berthctl migrate`, with the image, the settings and the folders of berthd.
func (r *toolRunner) berthctl(verb string) (toolPod, error) {
	spec := r.berthdSpec
	i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == connect.DaemonName })
	if i < 0 {
		return toolPod{}, fmt.Errorf("DaemonSet %s/%s has no container %s", r.berth, connect.DaemonName, connect.DaemonName)
	}
	of := &spec.Containers[i]
	t := toolPod{secrets: spec.ImagePullSecrets}
	t.container = corev1.Container{Image: of.Image, ImagePullPolicy: of.ImagePullPolicy, Env: of.Env, EnvFrom: of.EnvFrom}
	if r.image != "" {
		t.container.Image = r.image
	}
	t.container.Command = []string{"/berthctl", "migrate", r.from.name}
	if verb == string(rollout.Finish) {
		t.container.Command = append(t.container.Command, string(rollout.Apply), "--finish", "-o", "json")
	} else {
		t.container.Command = append(t.container.Command, verb, "-o", "json")
	}
	t.container.Args = of.Args // settings of berthd, which the node tool accepts too
	// Where the former system and the runtime keep their state; then berthd's folders, where berthd has them.
	t.mount("migrate-lib-cni", "/var/lib/cni", "/var/lib/cni")
	t.mount("migrate-run", "/run", "/run", "/var/run")
	t.hostPaths(&spec, of.VolumeMounts)
	for i := range t.container.VolumeMounts { // berthd only reads the former system's state
		t.container.VolumeMounts[i].ReadOnly = false
	}
	if r.from.dump {
		t.volumes = append(t.volumes, corev1.Volume{Name: dumpName, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: dumpName}}}})
		t.container.VolumeMounts = append(t.container.VolumeMounts, corev1.VolumeMount{Name: dumpName, MountPath: "/etc/berth-migration"})
		t.container.Args = append(slices.Clone(t.container.Args), "--etcd-dump=/etc/berth-migration/"+dumpKey)
	}
	return t, nil
}

// The ConfigMap with the dump of etcd, in Berth's namespace.
const (
	dumpName = "berth-migration-etcd"
	dumpKey  = "dump.json"
	maxDump  = 1_000_000 // bytes: a ConfigMap has at most 1 MiB
)

// storeDump stores a dump of etcd for the pods of the node tool, and replaces an earlier one.
func (r *toolRunner) storeDump(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	r.dump = text
	if len(text) > maxDump {
		return fmt.Errorf("--etcd-dump %s has %d bytes: expected at most %d, the size of a ConfigMap; run berthctl migrate %s on the nodes instead", file, len(text), maxDump, r.from.name)
	}
	if err := r.deleteConfig(ctx, dumpName); err != nil {
		return fmt.Errorf("delete ConfigMap %s/%s: %w", r.berth, dumpName, err)
	}
	return r.send(ctx, r.in("configmaps"), &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: dumpName, Namespace: r.berth, Labels: map[string]string{"app.kubernetes.io/part-of": "berth"}},
		Data: map[string]string{dumpKey: string(text)},
	})
}

// mount adds a folder of the node.
func (t *toolPod) mount(name, path string, at ...string) {
	t.volumes = append(t.volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: new(corev1.HostPathDirectoryOrCreate)}}})
	for _, to := range at {
		t.container.VolumeMounts = append(t.container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: to, MountPropagation: new(corev1.MountPropagationHostToContainer)})
	}
}

// hostPaths adds the mounts of a container that are folders of the node, and their volumes.
func (t *toolPod) hostPaths(spec *corev1.PodSpec, mounts []corev1.VolumeMount) {
	for _, v := range spec.Volumes {
		if v.HostPath == nil {
			continue
		}
		used := slices.DeleteFunc(slices.Clone(mounts), func(of corev1.VolumeMount) bool { return of.Name != v.Name })
		if len(used) > 0 {
			t.volumes = append(t.volumes, v)
			t.container.VolumeMounts = append(t.container.VolumeMounts, used...)
		}
	}
}

// cilium returns the container that removes Cilium's state from a node or, to finish, its plugin.
func (r *toolRunner) cilium(verb string) (toolPod, error) {
	if verb == string(rollout.Finish) {
		return r.berthctl(verb)
	}
	return r.ciliumCleanup()
}

// ciliumCleanup returns the container that removes Cilium's state from a node: Cilium's own init container for that
// purpose, enabled.
func (r *toolRunner) ciliumCleanup() (toolPod, error) {
	const name = "clean-cilium-state"
	spec := r.formerSpec
	i := slices.IndexFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		return toolPod{}, fmt.Errorf("DaemonSet %s/%s has no init container %s, which would remove Cilium's state", r.formerNamespace, r.formerName, name)
	}
	of := spec.InitContainers[i]
	t := toolPod{secrets: spec.ImagePullSecrets}
	t.container = corev1.Container{Image: of.Image, ImagePullPolicy: of.ImagePullPolicy, Command: []string{"cilium-dbg", "post-uninstall-cleanup", "-f", "--all-state"}}
	t.hostPaths(&spec, of.VolumeMounts)
	t.mount("migrate-cni", "/etc/cni/net.d", "/etc/cni/net.d") // so that it also removes Cilium's network configuration
	return t, nil
}

// toolState returns the state of a pod of the node tool, with its result, which is only as trustworthy as the node.
func (r *toolRunner) toolState(ctx context.Context, pod *corev1.Pod) (*rollout.Tool, error) {
	t := &rollout.Tool{Verb: pod.Labels[toolVerb]}
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if !ended || pod.DeletionTimestamp != nil {
		t.Running = true
		return t, nil
	}
	text, err := r.toolLog(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("log of pod %s/%s on Node %s: %w", pod.Namespace, pod.Name, pod.Spec.NodeName, err)
	}
	silent := t.Verb == r.from.silent
	switch answer := answerOf(text); {
	case silent && pod.Status.Phase == corev1.PodSucceeded:
		t.Report = &migrate.Report{From: r.from.name, Command: t.Verb}
	case answer == nil || silent:
		t.Err = "it failed: " + view.Printable(tail(text))
	case t.Verb == rollout.Survey:
		t.Plan = new(migrate.Plan)
		err = json.Unmarshal(answer, t.Plan)
	default:
		t.Report = new(migrate.Report)
		err = json.Unmarshal(answer, t.Report)
	}
	if err != nil {
		t.Err = "its answer is not of this command: " + view.Printable(err.Error())
	}
	if of := t.Report; of != nil && pod.Status.Phase == corev1.PodFailed && len(of.Problems) == 0 {
		t.Err = "it failed: " + view.Printable(tail(text))
	}
	return t, nil
}

// toolLog reads the log of a pod of the node tool.
func (r *toolRunner) toolLog(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	ctx, cancel := r.quick(ctx)
	defer cancel()
	req := r.api.rest.Get().AbsPath(podsPath(pod.Namespace)+join(pod.Name, "log")).Param("container", toolContainer).Param("limitBytes", strconv.Itoa(maxAnswer+1))
	stream, err := req.Stream(ctx)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(stream, maxAnswer+1))
	if err = errors.Join(err, stream.Close()); err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("it exceeds %d MiB", maxAnswer>>20)
	}
	return text, err
}

// answerOf returns the last JSON object in a log that begins at the start of a line, or nil. It is surrounded by log lines of
// the tool.
func answerOf(text []byte) (answer []byte) {
	for at := 0; at < len(text); {
		line, _, _ := bytes.Cut(text[at:], []byte("\n"))
		if bytes.HasPrefix(line, []byte("{")) {
			var found struct {
				From string `json:"from"`
			}
			dec := json.NewDecoder(bytes.NewReader(text[at:]))
			if dec.Decode(&found) == nil && found.From != "" {
				end := at + int(dec.InputOffset())
				answer, at = text[at:end], end
				continue
			}
		}
		at += len(line) + 1
	}
	return answer
}

// tail returns the end of a log, for an error.
func tail(text []byte) string {
	return strings.TrimSpace(string(text[max(0, len(text)-maxToolSaid):]))
}
