package deploy_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness"
)

// In combination with each mode there is an operator for Egresses with its roles, which also does
// the work of the mode.
func TestEgressBesideAMode(t *testing.T) {
	for mode, ipam := range map[string][]string{
		deploy.NodeMode:     nil,
		deploy.OperatorMode: {config.IPAMENIOperator},
		deploy.PoolMode:     {config.IPAMPool},
		deploy.PortMode:     {config.IPAMPort},
	} {
		objects := rendered(t, mode, "egress: {enabled: true, port: 5556, image: {repository: registry.example.com/berth-egress, tag: v1}}")
		operator := loadBy(t, config.NewOperatorLoader, onlyContainer(t, podOf(t, objects, "operator")))
		if !slices.Equal(operator.IPAM, ipam) || !operator.Egress || operator.EgressImage != "registry.example.com/berth-egress:v1" || operator.EgressPort != 5556 {
			t.Errorf("%s: ipam %q, egress %v with %s at %d", mode, operator.IPAM, operator.Egress, operator.EgressImage, operator.EgressPort)
		}
		role, err := deploy.Get[rbacv1.ClusterRole](objects, "ClusterRole", "berth-operator-egress")
		harness.OK(t, err)
		if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "deployments") }) {
			t.Errorf("%s: the operator may make no Deployment: %v", mode, role.Rules)
		}
		if n := len(objects.Of("CustomResourceDefinition")); n != definitions {
			t.Errorf("%s: %d definitions", mode, n)
		}
	}
}

// The mode egress enables only Egresses, without a further value and without other CRDs; another
// network assigns addresses.
func TestEgressAlone(t *testing.T) {
	objects := render(t, deploy.EgressMode)
	pod := podOf(t, objects, "daemon")
	daemon := load(t, onlyContainer(t, pod))
	if daemon.IPAM != config.IPAMNone || !daemon.Egress || daemon.EgressPort != 5555 || !daemon.InstallCNI {
		t.Errorf("berthd: ipam %s, egress %v at %d, installs %v", daemon.IPAM, daemon.Egress, daemon.EgressPort, daemon.InstallCNI)
	}
	operator := loadBy(t, config.NewOperatorLoader, onlyContainer(t, podOf(t, objects, "operator")))
	if len(operator.IPAM) > 0 || !operator.Egress {
		t.Errorf("berth-operator: ipam %v, egress %v", operator.IPAM, operator.Egress)
	}
	for _, name := range []string{"berthd", "berth-operator"} {
		_, err := deploy.Get[rbacv1.ClusterRole](objects, "ClusterRole", name)
		harness.OK(t, err)
	}
	notes, err := deploy.Notes(deploy.InMode(deploy.EgressMode, "test"))
	harness.OK(t, err)
	if !strings.Contains(notes, "docs/install.md#egress-beside-another-network") {
		t.Errorf("notes do not say what to add to the other network:\n%s", notes)
	}
	if _, err := deploy.Render(deploy.Release{Values: map[string]any{"mode": deploy.EgressMode, "clusterName": "test", "ports": map[string]any{"enabled": true}}}); err == nil || !strings.Contains(err.Error(), "ports.enabled is of no use in mode egress") {
		t.Errorf("with ports: %v", err)
	}
}

// Without egress, nothing of it is installed: the operator has no right to create Deployments.
func TestEgressIsWhereItIsAskedFor(t *testing.T) {
	for mode := range modes {
		if mode == deploy.EgressMode {
			continue // always enabled there
		}
		objects := render(t, mode)
		for _, o := range objects.Of("ClusterRole") {
			role, err := deploy.Get[rbacv1.ClusterRole](objects, "ClusterRole", o.GetName())
			harness.OK(t, err)
			for _, r := range role.Rules {
				for _, resource := range []string{"deployments", "roles", "rolebindings", "egresses"} {
					if slices.Contains(r.Resources, resource) {
						t.Errorf("%s: ClusterRole %s is about %s", mode, o.GetName(), resource)
					}
				}
			}
		}
		for _, o := range objects.Of("Deployment") {
			c := onlyContainer(t, podOf(t, objects, "operator"))
			if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "BERTH_EGRESS" }) {
				t.Errorf("%s: %s has egress on", mode, o.GetName())
			}
		}
	}
}
