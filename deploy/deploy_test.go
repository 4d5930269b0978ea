// Package deploy holds what Berth is installed with; its tests compare that
// with the programs.
package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/install"
	"github.com/berthnet/berth/test/harness"
)

// asks tells whether a probe asks for a path of what listens at an address, from
// the node itself: a pod that reaches the port must not keep it out.
func asks(p *corev1.Probe, path, address string, ports []corev1.ContainerPort) bool {
	number := p.HTTPGet.Port.IntValue()
	for _, named := range ports {
		if p.HTTPGet.Port.Type == intstr.String && named.Name == p.HTTPGet.Port.StrVal {
			number = int(named.ContainerPort)
		}
	}
	return p.HTTPGet.Path == path && p.HTTPGet.Host == "127.0.0.1" && address == fmt.Sprintf("127.0.0.1:%d", number)
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// daemonSets are those of berthd, by the mode that they are of.
var daemonSets = map[string]string{
	config.IPAMENI:         "node-mode/daemonset.yaml",
	config.IPAMENIOperator: "operator-mode/daemonset.yaml",
}

// forEachMode runs a test with each DaemonSet's pod and its one container.
func forEachMode(t *testing.T, test func(t *testing.T, pod corev1.PodSpec, c corev1.Container)) {
	t.Helper()
	for mode := range daemonSets {
		t.Run(mode, func(t *testing.T) {
			pod := daemonSet(t, mode).Spec.Template.Spec
			test(t, pod, onlyContainer(t, pod))
		})
	}
}

func daemonSet(t *testing.T, mode string) (d appsv1.DaemonSet) {
	t.Helper()
	readObject(t, daemonSets[mode], "DaemonSet", &d)
	return d
}

func operatorDeployment(t *testing.T) (d appsv1.Deployment) {
	t.Helper()
	readObject(t, "operator-mode/operator.yaml", "Deployment", &d)
	return d
}

func onlyContainer(t *testing.T, pod corev1.PodSpec) corev1.Container {
	t.Helper()
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers, want one", len(pod.Containers))
	}
	return pod.Containers[0]
}

// readObject reads the object of a kind in a manifest.
func readObject(t *testing.T, file, kind string, to any) {
	t.Helper()
	for _, doc := range bytes.Split(readFile(t, file), []byte("\n---\n")) {
		var of metav1.TypeMeta
		harness.OK(t, yaml.Unmarshal(doc, &of))
		if of.Kind == kind {
			harness.OK(t, yaml.UnmarshalStrict(doc, to))
			return
		}
	}
	t.Fatalf("%s has no %s", file, kind)
}

// load starts berthd's settings as the container would.
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
	if cfg.NodeName != "node-1" || !cfg.InstallCNI || !strings.HasSuffix(t.Name(), "/"+cfg.IPAM) {
		t.Errorf("settings %+v", cfg)
	}
	if operator := cfg.IPAM == config.IPAMENIOperator; cfg.AutoCreateNodeNetwork != operator || cfg.Kubeconfig != "" {
		t.Errorf("creates NodeNetworks: %v, kubeconfig %q", cfg.AutoCreateNodeNetwork, cfg.Kubeconfig)
	}
}

// Whatever path berthd uses is the node's, under the same name.
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
		if host := hostPaths[m.Name]; host != m.MountPath && "/var"+host != m.MountPath {
			t.Errorf("%s of the node is mounted at %s", host, m.MountPath)
		}
	}
	for _, dir := range []string{cfg.StateDir, path.Dir(cfg.Socket), path.Dir(cfg.CRISocket), cfg.CNIBinDir, cfg.CNIConfDir} {
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
	if !pod.HostNetwork || pod.DNSPolicy != "Default" || !*c.SecurityContext.Privileged {
		t.Errorf("host network %v, DNS %q, privileged %v", pod.HostNetwork, pod.DNSPolicy, *c.SecurityContext.Privileged)
	}
	if len(c.Ports) != 1 || c.Ports[0].ContainerPort != c.Ports[0].HostPort || cfg.MetricsAddr != "127.0.0.1:61678" || c.Ports[0].HostPort != 61678 {
		t.Errorf("ports %+v, metrics at %s", c.Ports, cfg.MetricsAddr)
	}
	if !asks(c.LivenessProbe, "/livez", cfg.IntrospectionAddr, c.Ports) || !asks(c.ReadinessProbe, "/readyz", cfg.IntrospectionAddr, c.Ports) {
		t.Errorf("probes %+v and %+v, served at %s", c.LivenessProbe, c.ReadinessProbe, cfg.IntrospectionAddr)
	}
	if m := c.Resources.Limits.Memory().String(); m != "256Mi" {
		t.Errorf("memory is limited to %q", m)
	}
	// AWS's best practices for the Amazon VPC CNI: 10 s, so that a busy node does not lose its daemon.
	if c.LivenessProbe.TimeoutSeconds < 10 || c.ReadinessProbe.TimeoutSeconds < 10 {
		t.Errorf("probes give up after %d and %d s", c.LivenessProbe.TimeoutSeconds, c.ReadinessProbe.TimeoutSeconds)
	}
	if float64(*pod.TerminationGracePeriodSeconds) <= cfg.DrainTimeout.Seconds() {
		t.Errorf("killed after %d s, drains for %v", *pod.TerminationGracePeriodSeconds, cfg.DrainTimeout)
	}
}

// A change of one mode's DaemonSet that the other wants too is not forgotten.
func TestModesDifferOnlyInTheirSettings(t *testing.T) {
	read := func(mode string) appsv1.DaemonSet {
		d := daemonSet(t, mode)
		c := &d.Spec.Template.Spec.Containers[0]
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == "BERTH_IPAM" || e.Name == "BERTH_AUTO_CREATE_NODE_NETWORK"
		})
		return d
	}
	if d := cmp.Diff(read(config.IPAMENI), read(config.IPAMENIOperator)); d != "" {
		t.Errorf("(-node mode +operator mode):\n%s", d)
	}
}

// The configuration for those who install by hand is the one that berthd
// installs, but for what it says of the daemon's socket and time-out, and in a CNI
// version that goes with any runtime and any plugins.
func TestConflistIsTheInstalledOne(t *testing.T) {
	cfg := load(t, corev1.Container{})
	want, err := install.Network{CNIVersions: []string{"1.0.0"}, Name: cfg.CNINetwork, Chain: cfg.CNIChain}.Conflist()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(decode(t, want), decode(t, readFile(t, "node-mode/"+cfg.CNIConfName))); d != "" {
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

// The images are built by the Go version of go.mod, and have the programs where
// they are looked for: the plugin beside berthd, which installs it.
func TestDockerfilesHaveThePrograms(t *testing.T) {
	for file, programs := range map[string][]string{
		"node-mode/Dockerfile":     {"berthd", "berth", "berthctl"},
		"operator-mode/Dockerfile": {"berth-operator"},
	} {
		text := string(readFile(t, file))
		mod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(readFile(t, "../go.mod"))
		if mod == nil || !strings.Contains(text, "FROM golang:"+string(mod[1])+" AS build") {
			t.Errorf("%s is not FROM golang:%s", file, mod[1])
		}
		copied := regexp.MustCompile(`/src/bin/[\w-]+`).FindAllString(text, -1)
		for _, program := range programs {
			if !slices.Contains(copied, "/src/bin/"+program) {
				t.Errorf("%s is not in the image of %s", program, file)
			}
			if _, err := os.Stat("../cmd/" + program); err != nil {
				t.Error(err)
			}
		}
		if !strings.Contains(text, "ENTRYPOINT [\"/"+programs[0]+"\"]") || !strings.Contains(text, "-f deploy/"+file+" ") {
			t.Errorf("%s does not start %s, or says otherwise how it is built", file, programs[0])
		}
	}
}

// What a manifest runs is what its mode's Dockerfile says it builds.
func TestManifestsRunTheImagesOfTheDockerfiles(t *testing.T) {
	for _, tc := range []struct {
		pod        corev1.PodSpec
		dockerfile string
	}{
		{daemonSet(t, config.IPAMENI).Spec.Template.Spec, "node-mode/Dockerfile"},
		{daemonSet(t, config.IPAMENIOperator).Spec.Template.Spec, "node-mode/Dockerfile"},
		{operatorDeployment(t).Spec.Template.Spec, "operator-mode/Dockerfile"},
	} {
		if image := onlyContainer(t, tc.pod).Image; !strings.Contains(string(readFile(t, tc.dockerfile)), " -t "+image+" .") {
			t.Errorf("a manifest runs %s, which is not what %s makes", image, tc.dockerfile)
		}
	}
}
