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

// In combination with another mode, both programs enable ports, and the first interface belongs to
// that mode.
func TestPortsBesideAMode(t *testing.T) {
	for mode, ipam := range map[string][]string{
		deploy.NodeMode:     {config.IPAMPort},
		deploy.OperatorMode: {config.IPAMENIOperator, config.IPAMPort},
		deploy.PoolMode:     {config.IPAMPool, config.IPAMPort},
		deploy.PortMode:     {config.IPAMPort},
	} {
		objects := rendered(t, mode, "ports: {enabled: true}")
		pod := podOf(t, objects, "daemon")
		c := onlyContainer(t, pod)
		mountsWhatBerthdUses(t, pod, c)
		daemon := load(t, c)
		if daemon.IPAM != modes[mode] || !daemon.HasPorts() {
			t.Errorf("%s: berthd has ipam %s, ports %v", mode, daemon.IPAM, daemon.HasPorts())
		}
		operator := loadBy(t, config.NewOperatorLoader, onlyContainer(t, podOf(t, objects, "operator")))
		if !slices.Equal(operator.IPAM, ipam) || operator.FirstIsPort != (mode == deploy.PortMode) || operator.ClusterName != "test" {
			t.Errorf("%s: berth-operator has ipam %v, the first interface a port %v, cluster %q", mode, operator.IPAM, operator.FirstIsPort, operator.ClusterName)
		}
		if n := len(objects.Of("ValidatingAdmissionPolicy")) - len(render(t, mode).Of("ValidatingAdmissionPolicy")); (n >= 5) != (mode != deploy.PortMode) {
			t.Errorf("%s: %d policies more", mode, n)
		}
	}
}

// The rights and mounts for ports exist only where ports are enabled: no right to read Secrets, and
// no Open vSwitch folder otherwise.
func TestPortsAreWhereTheyAreAskedFor(t *testing.T) {
	for mode := range modes {
		objects := render(t, mode)
		secrets := ""
		for _, o := range objects.Of("Role", "ClusterRole") {
			var rules []rbacv1.PolicyRule
			if o.GetKind() == "Role" {
				r, err := deploy.Get[rbacv1.Role](deploy.Objects{o}, "Role", o.GetName())
				harness.OK(t, err)
				rules = r.Rules
			} else {
				r, err := deploy.Get[rbacv1.ClusterRole](objects, "ClusterRole", o.GetName())
				harness.OK(t, err)
				rules = r.Rules
			}
			for _, r := range rules {
				if slices.Contains(r.Resources, "secrets") {
					secrets += o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName() + " " + strings.Join(r.Verbs, ",") + " " + strings.Join(r.ResourceNames, ",") + ";"
				}
			}
		}
		want := map[string]string{
			deploy.PortMode: "Role kube-system/berth-operator get,watch ;Role kube-system/berth-operator-webhook get,patch berth-operator-webhook;",
		}[mode]
		if secrets != want {
			t.Errorf("%s: secrets by %q, want %q", mode, secrets, want)
		}
		mounted := slices.ContainsFunc(podOf(t, objects, "daemon").Volumes, func(v corev1.Volume) bool { return v.Name == "openvswitch" })
		if mounted != (mode == deploy.PortMode) {
			t.Errorf("%s: Open vSwitch's folder is mounted: %v", mode, mounted)
		}
	}
	for settings, want := range map[string]string{
		"{}": "/run/openvswitch", "{ovsdb: 'unix:/run/ovs/db.sock'}": "/run/ovs", "{ovsdb: 'tcp:127.0.0.1:6640'}": "", "{ovsdb: ''}": "",
	} {
		pod := podOf(t, rendered(t, deploy.PortMode, "daemon: {settings: "+settings+"}"), "daemon")
		mountsWhatBerthdUses(t, pod, onlyContainer(t, pod))
		got := ""
		for _, v := range pod.Volumes {
			if v.Name == "openvswitch" {
				got = v.HostPath.Path
			}
		}
		if got != want {
			t.Errorf("%s: %q is mounted, want %q", settings, got, want)
		}
	}
}

// Without the webhook the operator has no right to change webhook configurations.
func TestWebhookCanBeLeftOut(t *testing.T) {
	kinds := []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "Service", "Secret"}
	for values, want := range map[string]int{"{}": 4, "{ports: {webhook: {enabled: false}}}": 0} {
		objects := rendered(t, deploy.PortMode, values)
		if got := len(objects.Of(kinds...)); got != want {
			t.Errorf("%s: %d objects of the webhook, want %d", values, got, want)
		}
		_, err := deploy.Get[rbacv1.ClusterRole](objects, "ClusterRole", "berth-operator-webhook")
		_, errCallers := deploy.Get[rbacv1.ClusterRole](objects, "ClusterRole", "berth-operator-callers")
		c := onlyContainer(t, podOf(t, objects, "operator"))
		cfg := loadBy(t, config.NewOperatorLoader, c)
		listens := slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "webhook" && p.HostPort == 61682 })
		if asked := want > 0; (err == nil) != asked || (errCallers == nil) != asked || (cfg.WebhookAddr == ":61682") != asked || listens != asked {
			t.Errorf("%s: roles %v and %v, address %q, port %v", values, err, errCallers, cfg.WebhookAddr, c.Ports)
		}
	}
}
