package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/node/install"
	"github.com/berthnet/berth/internal/web"
	"github.com/berthnet/berth/test/harness"
)

// asks reports whether a probe requests a path at the address that the program listens on, from the
// node itself: a pod that reaches the port must not be able to make the probe fail.
func asks(p *corev1.Probe, path, address string, ports []corev1.ContainerPort) bool {
	number := p.HTTPGet.Port.IntValue()
	for _, named := range ports {
		if p.HTTPGet.Port.Type == intstr.String && named.Name == p.HTTPGet.Port.StrVal {
			number = int(named.ContainerPort)
		}
	}
	return p.HTTPGet.Path == path && p.HTTPGet.Host == "127.0.0.1" && address == fmt.Sprintf("127.0.0.1:%d", number)
}

// checkProbes checks that a program's probes request a path that it serves, that their timeouts are
// long enough, and that a normal start causes no event.
func checkProbes(t *testing.T, c corev1.Container, address string) {
	t.Helper()
	for path, p := range map[string]*corev1.Probe{"/startupz": c.StartupProbe, "/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if !asks(p, path, address, c.Ports) {
			t.Errorf("probe %+v, served at %s", p, address)
		}
		// AWS's best practices for the Amazon VPC CNI: 10 s, so that a busy node does not lose its daemon.
		if p.TimeoutSeconds < 10 {
			t.Errorf("%s gives up after %d s", path, p.TimeoutSeconds)
		}
	}
	start := c.StartupProbe
	if longest := web.StartupPatience + 5*time.Second; float64(start.TimeoutSeconds) < longest.Seconds() {
		t.Errorf("/startupz is given up after %d s, answers within %v", start.TimeoutSeconds, longest)
	}
	// The kubelet probes immediately and then once a period, but not before the program listens.
	if start.InitialDelaySeconds < 1 || start.PeriodSeconds > 1 || start.FailureThreshold < 60 {
		t.Errorf("start-up probe %+v", start)
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// modes are the modes of the chart with berthd's setting ipam.
var modes = map[string]string{
	deploy.NodeMode:     config.IPAMENI,
	deploy.OperatorMode: config.IPAMENIOperator,
	deploy.PoolMode:     config.IPAMPool,
	deploy.PortMode:     config.IPAMPort,
	deploy.EgressMode:   config.IPAMNone,
}

// render returns the objects of a mode.
func render(t *testing.T, mode string) deploy.Objects {
	t.Helper()
	objects, err := deploy.Render(deploy.InMode(mode, "test"))
	harness.OK(t, err)
	return objects
}

// get returns one of the objects of a mode.
func get[T any](t *testing.T, mode, kind, name string) T {
	t.Helper()
	o, err := deploy.Get[T](render(t, mode), kind, name)
	harness.OK(t, err)
	return o
}

// forEachMode runs a test with the pod of each mode's DaemonSet and its only container.
func forEachMode(t *testing.T, test func(t *testing.T, pod corev1.PodSpec, c corev1.Container)) {
	t.Helper()
	for mode := range modes {
		t.Run(mode, func(t *testing.T) {
			pod := daemonSet(t, mode).Spec.Template.Spec
			test(t, pod, onlyContainer(t, pod))
		})
	}
}

func daemonSet(t *testing.T, mode string) appsv1.DaemonSet {
	t.Helper()
	return get[appsv1.DaemonSet](t, mode, "DaemonSet", "berthd")
}

func operatorDeployment(t *testing.T, mode string) appsv1.Deployment {
	t.Helper()
	return get[appsv1.Deployment](t, mode, "Deployment", "berth-operator")
}

func onlyContainer(t *testing.T, pod corev1.PodSpec) corev1.Container {
	t.Helper()
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers, want one", len(pod.Containers))
	}
	return pod.Containers[0]
}

// load reads berthd's settings from the container's arguments and environment.
func load(t *testing.T, c corev1.Container) config.Config {
	t.Helper()
	return loadBy(t, config.NewLoader, c)
}

func loadBy[C any](t *testing.T, newLoader func(*pflag.FlagSet) *config.Loader[C], c corev1.Container) C {
	t.Helper()
	flags := pflag.NewFlagSet("program", pflag.ContinueOnError)
	loader := newLoader(flags)
	harness.OK(t, flags.Parse(c.Args))
	var environ []string
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			e.Value = "node-1"
		}
		environ = append(environ, e.Name+"="+e.Value)
	}
	cfg, err := loader.Load(environ)
	harness.OK(t, err)
	return cfg
}

func TestManifestSettingsExist(t *testing.T) { forEachMode(t, settingsExist) }

func settingsExist(t *testing.T, _ corev1.PodSpec, c corev1.Container) {
	cfg := load(t, c)
	if len(cfg.Unknown) > 0 {
		t.Errorf("berthd has no settings %v", cfg.Unknown)
	}
	var reference bytes.Buffer
	if err := config.WriteReference(&reference); err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Env {
		if !strings.Contains(reference.String(), "`"+e.Name+"`") {
			t.Errorf("berthd reads no variable %s", e.Name)
		}
	}
	if cfg.NodeName != "node-1" || !cfg.InstallCNI || cfg.IPAM != modes[path.Base(t.Name())] {
		t.Errorf("settings %+v", cfg)
	}
	if operator := cfg.IPAM == config.IPAMENIOperator; cfg.AutoCreateNodeNetwork != operator || cfg.Kubeconfig != "" {
		t.Errorf("creates NodeNetworks: %v, kubeconfig %q", cfg.AutoCreateNodeNetwork, cfg.Kubeconfig)
	}
}

// Every path that berthd uses is mounted from the node under the same name.
func TestManifestMountsWhatBerthdUses(t *testing.T) { forEachMode(t, mountsWhatBerthdUses) }

func mountsWhatBerthdUses(t *testing.T, pod corev1.PodSpec, c corev1.Container) {
	cfg := load(t, c)
	hostPaths := map[string]string{}
	for _, v := range pod.Volumes {
		hostPaths[v.Name] = v.HostPath.Path
	}
	propagation := map[string]*corev1.MountPropagationMode{}
	for _, m := range c.VolumeMounts {
		propagation[m.MountPath] = m.MountPropagation
		sysctls := hostPaths[m.Name] == "/proc/sys/net" && m.MountPath == cfg.SysctlDir+"/net" // where a runtime lets it be
		if host := hostPaths[m.Name]; host != m.MountPath && "/var"+host != m.MountPath && !sysctls {
			t.Errorf("%s of the node is mounted at %s", host, m.MountPath)
		}
	}
	used := []string{cfg.StateDir, path.Dir(cfg.Socket), path.Dir(cfg.CRISocket), cfg.CNIBinDir, cfg.CNIConfDir}
	if socket, local := strings.CutPrefix(cfg.OVSDB, "unix:"); local && cfg.HasPorts() {
		used = append(used, path.Dir(socket))
	}
	for _, dir := range used {
		if _, ok := propagation[dir]; !ok {
			t.Errorf("%s is not mounted", dir)
		}
	}
	// TestNamespacesReachADaemonInAContainer shows what happens otherwise.
	for _, dir := range []string{"/run/netns", "/var/run/netns"} {
		if p := propagation[dir]; p == nil || *p != corev1.MountPropagationHostToContainer {
			t.Errorf("%s is mounted with propagation %v", dir, p)
		}
	}
}

func TestManifestFitsTheDaemon(t *testing.T) { forEachMode(t, fitsTheDaemon) }

func fitsTheDaemon(t *testing.T, pod corev1.PodSpec, c corev1.Container) {
	cfg := load(t, c)
	if !pod.HostNetwork || pod.DNSPolicy != "Default" || c.SecurityContext.Privileged != nil {
		t.Errorf("host network %v, DNS %q, privileged %v", pod.HostNetwork, pod.DNSPolicy, *c.SecurityContext.Privileged)
	}
	// TestChartCapabilitiesSuffice runs berthd with them.
	want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "SYS_ADMIN", "NET_RAW"}}
	if d := cmp.Diff(want, c.SecurityContext.Capabilities); d != "" {
		t.Errorf("capabilities (-want +got):\n%s", d)
	}
	if len(c.Ports) != 1 || c.Ports[0].ContainerPort != c.Ports[0].HostPort || cfg.MetricsAddr != "127.0.0.1:61678" || c.Ports[0].HostPort != 61678 {
		t.Errorf("ports %+v, metrics at %s", c.Ports, cfg.MetricsAddr)
	}
	checkProbes(t, c, cfg.IntrospectionAddr)
	if m := c.Resources.Limits.Memory().String(); m != "256Mi" {
		t.Errorf("memory is limited to %q", m)
	}
	if float64(*pod.TerminationGracePeriodSeconds) <= cfg.DrainTimeout.Seconds() {
		t.Errorf("killed after %d s, drains for %v", *pod.TerminationGracePeriodSeconds, cfg.DrainTimeout)
	}
}

// A change of mode changes settings, and whether berthd uses the API server.
func TestModesDifferOnlyInTheirSettings(t *testing.T) {
	read := func(mode string) appsv1.DaemonSet {
		d := daemonSet(t, mode)
		c := &d.Spec.Template.Spec.Containers[0]
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool {
			return slices.Contains([]string{"BERTH_IPAM", "BERTH_AUTO_CREATE_NODE_NETWORK", "BERTH_CLUSTER_NAME", "BERTH_EGRESS", "BERTH_EGRESS_PORT"}, e.Name)
		})
		d.Spec.Template.Spec.AutomountServiceAccountToken = nil
		ofPorts := func(name string) bool {
			return mode == deploy.PortMode && slices.Contains([]string{"openvswitch", "tun"}, name)
		}
		d.Spec.Template.Spec.Volumes = slices.DeleteFunc(d.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return ofPorts(v.Name) })
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return ofPorts(m.Name) })
		return d
	}
	for mode := range modes {
		if d := cmp.Diff(read(deploy.NodeMode), read(mode)); d != "" {
			t.Errorf("(-node +%s):\n%s", mode, d)
		}
	}
}

// The configuration for manual installation is the one that berthd installs, except for the socket
// and timeout of the daemon, and with a CNI version that all runtimes and plugins support.
func TestConflistIsTheInstalledOne(t *testing.T) {
	cfg := load(t, corev1.Container{})
	want, err := install.Network{CNIVersions: []string{"1.0.0"}, Name: cfg.CNINetwork, Chain: cfg.CNIChain}.Conflist()
	if err != nil {
		t.Fatal(err)
	}
	installed, _ := decode(t, want).(map[string]any)
	delete(installed, "berthPlugins") // tells Berth's entries from others in an upgrade
	if d := cmp.Diff(any(installed), decode(t, readFile(t, "cni/"+cfg.CNIConfName))); d != "" {
		t.Errorf("differs from what is installed (-installed +here):\n%s", d)
	}
}

func decode(t *testing.T, data []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// imagesSpec has the fields of deploy/images.yaml that must match the programs and manifests.
type imagesSpec struct {
	Images []struct {
		Name       string   `json:"name"`
		Entrypoint []string `json:"entrypoint"`
		User       string   `json:"user"`
		Files      []struct {
			To   string `json:"to"`
			From string `json:"from"`
		} `json:"files"`
	} `json:"images"`
}

// The images have the programs at the expected paths: the plugin is next to berthd, which installs
// it.
func TestImagesHaveThePrograms(t *testing.T) {
	programs := map[string][]string{"berth-node": {"berthd", "berth", "berthctl", "cni/loopback", "cni/portmap", "cni/bandwidth"}, "berth-operator": {"berth-operator"}, "berth-egress": {"berth-egress"}}
	var spec imagesSpec
	if err := yaml.Unmarshal(readFile(t, "images.yaml"), &spec); err != nil {
		t.Fatal(err)
	}
	for _, image := range spec.Images {
		want := programs[image.Name]
		delete(programs, image.Name)
		var has []string
		for _, f := range image.Files {
			if name, found := strings.CutPrefix(f.From, "$ARCH/"); found && f.To == "/"+name {
				has = append(has, name)
				if _, err := os.Stat("../cmd/" + name); err != nil && !strings.HasPrefix(name, "cni/") {
					t.Error(err)
				}
			}
		}
		if !slices.Equal(has, want) || !slices.Equal(image.Entrypoint, []string{"/" + want[0]}) {
			t.Errorf("image %s has %q and starts %q, expected %q and the first of them", image.Name, has, image.Entrypoint, want)
		}
	}
	for name := range programs {
		t.Errorf("there is no image %s", name)
	}
}

// The chart's default images are those that `make images` builds.
func TestManifestsRunTheImages(t *testing.T) {
	for _, tc := range []struct {
		pod   corev1.PodSpec
		image string
	}{
		{daemonSet(t, deploy.NodeMode).Spec.Template.Spec, "berth-node"},
		{daemonSet(t, deploy.OperatorMode).Spec.Template.Spec, "berth-node"},
		{operatorDeployment(t, deploy.OperatorMode).Spec.Template.Spec, "berth-operator"},
		{operatorDeployment(t, deploy.PoolMode).Spec.Template.Spec, "berth-operator"},
	} {
		if image := onlyContainer(t, tc.pod).Image; image != tc.image+":dev" {
			t.Errorf("the chart runs %s, expected %s", image, tc.image+":dev")
		}
	}
}
