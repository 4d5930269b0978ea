package resolve

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy/compile"
)

// ReadPod reads a Pod. ok is false if policies do not see it: it is on the host's network, or has ended.
func ReadPod(in *corev1.Pod) (p Pod, ok bool) {
	if in.Spec.HostNetwork || in.Status.Phase == corev1.PodSucceeded || in.Status.Phase == corev1.PodFailed {
		return Pod{}, false
	}
	p = Pod{NamespacedName: types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, UID: runtimeUID(in), Node: in.Spec.NodeName, Labels: in.Labels}
	for _, ip := range in.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			p.Addrs = append(p.Addrs, a)
		}
	}
	for _, c := range in.Spec.Containers {
		p.addPorts(c)
	}
	for _, c := range in.Spec.InitContainers { // sidecars have ports too
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			p.addPorts(c)
		}
	}
	return p, true
}

// runtimeUID returns the UID by which the runtime knows a pod. For a mirror pod, it is that of the static pod.
func runtimeUID(in *corev1.Pod) types.UID {
	if uid := in.Annotations[corev1.MirrorPodAnnotationKey]; uid != "" {
		return types.UID(uid)
	}
	return in.UID
}

func (p *Pod) addPorts(c corev1.Container) {
	for _, port := range c.Ports {
		if protocol, known := compile.ProtocolOf(port.Protocol); known && port.Name != "" {
			p.Ports = append(p.Ports, NamedPort{Name: port.Name, Protocol: protocol, Number: uint16(port.ContainerPort)})
		}
	}
}
