package lab

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/deploy"
)

// Workloads are the workloads of the chart. A lab without kubelets creates berthd's pods itself.
type Workloads struct{ chart deploy.Objects }

// DaemonPod returns berthd's pod on a node, as the chart's DaemonSet creates it.
func (w Workloads) DaemonPod(node string) (*corev1.Pod, error) {
	set, err := deploy.Get[appsv1.DaemonSet](w.chart, "DaemonSet", daemonAccount.Name)
	return podOf(set.Spec.Template, daemonAccount, node), err
}

// OperatorPod returns a pod of berth-operator on a node, as the chart's Deployment creates it.
func (w Workloads) OperatorPod(node string) (*corev1.Pod, error) {
	d, err := deploy.Get[appsv1.Deployment](w.chart, "Deployment", operatorAccount.Name)
	return podOf(d.Spec.Template, operatorAccount, node), err
}

// podOf returns a workload's pod on a node, with the name that NodeToken expects.
func podOf(t corev1.PodTemplateSpec, of types.NamespacedName, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	p.Namespace, p.Name, p.Spec.NodeName = of.Namespace, of.Name+"-"+node, node
	return p
}
