package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/diagnose"
)

// daemon is a berthd, as described by its pod.
type daemon struct {
	pod      *corev1.Pod
	node     string
	mode     diagnose.Mode
	port     uint16 // of introspection; 0 if it is disabled or not on localhost
	policies bool   // it is set to enforce network policies
	version  string // of its image
	ready    bool
	why      string // why it is not ready
	restarts int32
}

// daemonsOf returns the daemons by node. If a node has two, as during a rollout, it prefers
// the ready one, then the newer one.
func daemonsOf(pods []corev1.Pod) map[string]daemon {
	out := map[string]daemon{}
	for i := range pods {
		d := daemonOf(&pods[i])
		old, had := out[d.node]
		if d.node == "" || pods[i].Status.Phase == corev1.PodSucceeded || pods[i].Status.Phase == corev1.PodFailed && had ||
			had && old.ready && !d.ready || had && old.ready == d.ready && !old.pod.CreationTimestamp.Before(&d.pod.CreationTimestamp) {
			continue
		}
		out[d.node] = d
	}
	return out
}

func daemonOf(pod *corev1.Pod) daemon {
	d := daemon{pod: pod, node: pod.Spec.NodeName, port: 6666}
	if c, ok := connect.Container(pod, connect.DaemonName); ok {
		d.version = imageVersion(c.Image)
		d.mode = modeOf(connect.Setting(c, "ipam", "BERTH_IPAM"))
		if at, set := connect.LookupSetting(c, "introspection-address", "BERTH_INTROSPECTION_ADDRESS"); set {
			d.port = connect.LoopbackPort(at)
		}
		d.policies, _ = strconv.ParseBool(connect.Setting(c, "network-policies", "BERTH_NETWORK_POLICIES"))
	}
	d.ready, d.why = readiness(pod)
	for _, s := range pod.Status.ContainerStatuses {
		d.restarts += s.RestartCount
	}
	return d
}

// modeOf returns the mode for a value of --ipam.
func modeOf(ipam string) diagnose.Mode {
	switch ipam {
	case "eni-operator":
		return diagnose.OperatorMode
	case "pool":
		return diagnose.PoolMode
	case "port":
		return diagnose.PortMode
	case "none":
		return diagnose.EgressMode
	default:
		return diagnose.NodeMode
	}
}

// imageVersion returns the tag of an image, or the beginning of its digest.
func imageVersion(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		return name[i+1:]
	}
	return cmp.Or(digest[:min(len(digest), len("sha256:")+12)], "latest")
}

// readiness reports whether a pod is ready and, if not, why.
func readiness(pod *corev1.Pod) (ready bool, why string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
			return true, ""
		}
	}
	if pod.DeletionTimestamp != nil {
		return false, "its pod is being deleted"
	}
	for _, s := range pod.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil {
			return false, strings.TrimSpace(fmt.Sprintf("its container waits (%s) %s", w.Reason, w.Message))
		}
		if e := s.State.Terminated; e != nil {
			return false, strings.TrimSpace(fmt.Sprintf("its container ended with %d (%s) %s", e.ExitCode, e.Reason, e.Message))
		}
	}
	if pod.Status.Phase == corev1.PodRunning {
		return false, "its readiness probe fails"
	}
	return false, fmt.Sprintf("its pod is %s", cmp.Or(pod.Status.Phase, corev1.PodPending))
}

// facts returns the input for a diagnosis.
func (d daemon) facts() diagnose.Daemon {
	return diagnose.Daemon{Pod: "-n " + d.pod.Namespace + " " + d.pod.Name, Mode: d.mode, Ready: d.ready, Why: d.why}
}

// daemonPods returns the daemons by node, of one node or, if node is empty, of all.
func (p *program) daemonPods(ctx context.Context, a *api, node string) map[string]daemon {
	return daemonsOf(a.berthPods(ctx, p.daemons, connect.DaemonName, node))
}

// Operator is the state of berth-operator.
type Operator struct {
	Pods   int    `json:"pods"`
	Ready  int    `json:"ready"`
	Leader string `json:"leader,omitempty"` // holder of the Lease
	Why    string `json:"why,omitempty"`    // why a pod is not ready
}

func operatorOf(pods []corev1.Pod) Operator {
	o := Operator{Pods: len(pods)}
	for i := range pods {
		if ready, why := readiness(&pods[i]); ready {
			o.Ready++
		} else if o.Why == "" {
			o.Why = pods[i].Name + ": " + why
		}
	}
	return o
}

func (p *program) operatorPods(ctx context.Context, a *api) []corev1.Pod {
	return a.berthPods(ctx, p.daemons, connect.OperatorName, "")
}
