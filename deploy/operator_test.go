package deploy_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness"
)

// A real API server accepts all objects and knows all their fields.
func TestManifestsApply(t *testing.T) {
	for mode := range modes {
		harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), render(t, mode)))
	}
}

// The subjects and roles of all bindings exist: the service accounts of the workloads, and the
// roles generated from the code.
func TestRolesAreBound(t *testing.T) {
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), render(t, deploy.OperatorMode)))
	c := harness.KubeClient(t)
	for _, pod := range []corev1.PodTemplateSpec{operatorDeployment(t, deploy.OperatorMode).Spec.Template, daemonSet(t, deploy.OperatorMode).Spec.Template} {
		name := pod.Spec.ServiceAccountName
		account := types.NamespacedName{Namespace: "kube-system", Name: name}
		harness.OK(t, c.Get(t.Context(), account, &corev1.ServiceAccount{}))
		binding := &rbacv1.ClusterRoleBinding{}
		harness.OK(t, c.Get(t.Context(), types.NamespacedName{Name: name}, binding))
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: account.Namespace}}
		if d := cmp.Diff(want, binding.Subjects); d != "" {
			t.Errorf("%s binds others (-want +got):\n%s", name, d)
		}
		local := &rbacv1.RoleList{}
		harness.OK(t, c.List(t.Context(), local, client.InNamespace(account.Namespace), client.MatchingFields{"metadata.name": name}))
		for _, r := range local.Items {
			bound := &rbacv1.RoleBinding{}
			harness.OK(t, c.Get(t.Context(), account, bound))
			if d := cmp.Diff(want, bound.Subjects); d != "" || bound.RoleRef.Name != r.Name {
				t.Errorf("%s in %s is bound otherwise: role %s (-want +got):\n%s", name, r.Namespace, bound.RoleRef.Name, d)
			}
		}
		role := &rbacv1.ClusterRole{}
		harness.OK(t, c.Get(t.Context(), types.NamespacedName{Name: binding.RoleRef.Name}, role))
		if len(role.Rules) == 0 {
			t.Errorf("the role of %s allows nothing", name)
		}
		for _, rule := range role.Rules {
			if slices.Contains(append(append(rule.Verbs, rule.Resources...), rule.APIGroups...), "*") {
				t.Errorf("the role of %s allows %v", name, rule)
			}
		}
	}
}

// The operator must start before there is a pod network, without unused rights, and with two
// replicas.
func TestOperatorDeployment(t *testing.T) {
	for _, mode := range []string{deploy.OperatorMode, deploy.PoolMode} {
		t.Run(mode, func(t *testing.T) { checkOperator(t, mode) })
	}
}

func checkOperator(t *testing.T, mode string) {
	d := operatorDeployment(t, mode)
	pod := d.Spec.Template.Spec
	c := onlyContainer(t, pod)
	if *d.Spec.Replicas != 2 || !pod.HostNetwork || pod.DNSPolicy != "Default" || c.SecurityContext.Privileged != nil {
		t.Errorf("%d replicas, host network %v, DNS %q, security context %+v", *d.Spec.Replicas, pod.HostNetwork, pod.DNSPolicy, c.SecurityContext)
	}
	cfg := loadBy(t, config.NewOperatorLoader, c)
	if len(cfg.Unknown) > 0 {
		t.Errorf("berth-operator has no settings %v", cfg.Unknown)
	}
	if !cfg.LeaderElect || cfg.LeaseNamespace != "kube-system" || cfg.Kubeconfig != "" {
		t.Errorf("settings %+v", cfg)
	}
	if len(c.Ports) != 2 || c.Ports[0].ContainerPort != c.Ports[0].HostPort || cfg.MetricsAddr != fmt.Sprintf("127.0.0.1:%d", c.Ports[0].HostPort) {
		t.Errorf("ports %+v, metrics at %s", c.Ports, cfg.MetricsAddr)
	}
	checkProbes(t, c, cfg.HealthAddr)
	if m := c.Resources.Limits.Memory().String(); m != "1Gi" {
		t.Errorf("memory is limited to %q", m)
	}
	daemon := load(t, onlyContainer(t, daemonSet(t, mode).Spec.Template.Spec))
	if want := []string{modes[mode]}; mode != deploy.EgressMode && !slices.Equal(cfg.IPAM, want) || mode == deploy.EgressMode && len(cfg.IPAM) > 0 {
		t.Errorf("the operator works for %v", cfg.IPAM)
	}
	if cfg.ClusterName != daemon.ClusterName {
		t.Errorf("the operator's cluster is %q, the daemons' is %q", cfg.ClusterName, daemon.ClusterName)
	}
}
