package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
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
			t.Errorf("probe = %+v, want a request to %s", p, address)
		}
		// AWS's best practices for the Amazon VPC CNI: 10 s, so that a busy node does not lose its daemon.
		if p.TimeoutSeconds < 10 {
			t.Errorf("timeout of probe %s = %d s, want at least 10 s", path, p.TimeoutSeconds)
		}
	}
	start := c.StartupProbe
	if longest := web.StartupPatience + 5*time.Second; float64(start.TimeoutSeconds) < longest.Seconds() {
		t.Errorf("timeout of probe /startupz = %d s, want more than its maximum response time %v", start.TimeoutSeconds, longest)
	}
	// The kubelet probes immediately and then once a period, but not before the program listens.
	if start.InitialDelaySeconds < 1 || start.PeriodSeconds > 1 || start.FailureThreshold < 60 {
		t.Errorf("startup probe = %+v, want one that tolerates a normal start", start)
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

// one returns the object of a type and name.
func one[T any](t *testing.T, objects deploy.Objects, name string) T {
	t.Helper()
	o, err := deploy.Get[T](objects, reflect.TypeFor[T]().Name(), name)
	harness.OK(t, err)
	return o
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
		e.Value = strings.ReplaceAll(e.Value, "$(HOST_IP)", "192.0.2.1") // as the kubelet does
		environ = append(environ, e.Name+"="+e.Value)
	}
	cfg, err := loader.Load(environ)
	harness.OK(t, err)
	return cfg
}

// The configuration for manual installation is the one that berthd installs, except for the socket
// and timeout of the daemon, and with a CNI version that all runtimes and plugins support.
func TestConflistMatchesInstalled(t *testing.T) {
	cfg := load(t, corev1.Container{})
	want, err := install.Network{CNIVersions: []string{"1.0.0"}, Name: cfg.CNINetwork, Chain: cfg.CNIChain}.Conflist()
	if err != nil {
		t.Fatal(err)
	}
	installed, _ := decode(t, want).(map[string]any)
	delete(installed, "berthPlugins") // distinguishes Berth's entries in an upgrade
	if d := cmp.Diff(any(installed), decode(t, readFile(t, "cni/"+cfg.CNIConfName))); d != "" {
		t.Errorf("configuration differs from the installed one (-installed +here):\n%s", d)
	}
}

func decode(t *testing.T, data []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// imagesSpec contains the fields of deploy/images.yaml that must match the programs and manifests.
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

// The images have the programs at the expected paths: the plugin is beside berthd, which installs it.
func TestImagesContainPrograms(t *testing.T) {
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
			t.Errorf("image %s has programs %q and entrypoint %q, want programs %q and the first as entrypoint", image.Name, has, image.Entrypoint, want)
		}
	}
	for name := range programs {
		t.Errorf("program %s has no image", name)
	}
}
