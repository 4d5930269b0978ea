// Package deploy holds what Berth is installed with; its tests compare that
// with the programs.
package deploy

import (
	"bytes"
	"encoding/json"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/install"
)

// The parts of a DaemonSet that berthd depends on.
type daemonSet struct {
	Kind string
	Spec struct{ Template struct{ Spec podSpec } }
}

type podSpec struct {
	HostNetwork                   bool
	DNSPolicy                     string
	TerminationGracePeriodSeconds int
	Containers                    []container
	Volumes                       []struct {
		Name     string
		HostPath struct{ Path string }
	}
}

type container struct {
	Args []string
	Env  []struct {
		Name, Value string
		ValueFrom   *struct{ FieldRef struct{ FieldPath string } }
	}
	SecurityContext               struct{ Privileged bool }
	Ports                         []struct{ ContainerPort, HostPort int }
	LivenessProbe, ReadinessProbe struct {
		HTTPGet        struct{ Path string }
		TimeoutSeconds int
	}
	VolumeMounts []struct{ Name, MountPath, MountPropagation string }
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// readPod returns the pod of the node-mode manifest and its one container.
func readPod(t *testing.T) (podSpec, container) {
	t.Helper()
	for _, doc := range bytes.Split(readFile(t, "node-mode/daemonset.yaml"), []byte("\n---\n")) {
		var strict map[string]any
		if err := yaml.UnmarshalStrict(doc, &strict); err != nil {
			t.Fatal(err)
		}
		var ds daemonSet
		if err := yaml.Unmarshal(doc, &ds); err != nil {
			t.Fatal(err)
		}
		if pod := ds.Spec.Template.Spec; ds.Kind == "DaemonSet" && len(pod.Containers) == 1 {
			return pod, pod.Containers[0]
		}
	}
	t.Fatal("daemonset.yaml has no DaemonSet with one container")
	return podSpec{}, container{}
}

// load starts berthd's settings as the container would.
func load(t *testing.T, c container) config.Config {
	t.Helper()
	flags := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	loader := config.NewLoader(flags)
	if err := flags.Parse(c.Args); err != nil {
		t.Fatal(err)
	}
	var environ []string
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			e.Value = "node-1"
		}
		environ = append(environ, e.Name+"="+e.Value)
	}
	cfg, err := loader.Load(environ)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestManifestSettingsExist(t *testing.T) {
	_, c := readPod(t)
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
	if cfg.NodeName != "node-1" || !cfg.InstallCNI {
		t.Errorf("settings %+v", cfg)
	}
}

// Whatever path berthd uses is the node's, under the same name.
func TestManifestMountsWhatBerthdUses(t *testing.T) {
	pod, c := readPod(t)
	cfg := load(t, c)
	hostPaths := map[string]string{}
	for _, v := range pod.Volumes {
		hostPaths[v.Name] = v.HostPath.Path
	}
	propagation := map[string]string{}
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
		if propagation[dir] != "HostToContainer" {
			t.Errorf("%s is mounted with propagation %q", dir, propagation[dir])
		}
	}
}

func TestManifestFitsTheDaemon(t *testing.T) {
	pod, c := readPod(t)
	cfg := load(t, c)
	if !pod.HostNetwork || pod.DNSPolicy != "Default" || !c.SecurityContext.Privileged {
		t.Errorf("host network %v, DNS %q, privileged %v", pod.HostNetwork, pod.DNSPolicy, c.SecurityContext.Privileged)
	}
	if len(c.Ports) != 1 || c.Ports[0].ContainerPort != c.Ports[0].HostPort || cfg.MetricsAddr != ":61678" || c.Ports[0].HostPort != 61678 {
		t.Errorf("ports %+v, metrics at %s", c.Ports, cfg.MetricsAddr)
	}
	if c.LivenessProbe.HTTPGet.Path != "/livez" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("probes %+v and %+v", c.LivenessProbe, c.ReadinessProbe)
	}
	// Document 004: 10 s, so that a busy node does not lose its daemon.
	if c.LivenessProbe.TimeoutSeconds < 10 || c.ReadinessProbe.TimeoutSeconds < 10 {
		t.Errorf("probes give up after %d and %d s", c.LivenessProbe.TimeoutSeconds, c.ReadinessProbe.TimeoutSeconds)
	}
	if float64(pod.TerminationGracePeriodSeconds) <= cfg.DrainTimeout.Seconds() {
		t.Errorf("killed after %d s, drains for %v", pod.TerminationGracePeriodSeconds, cfg.DrainTimeout)
	}
}

// The configuration for those who install by hand is the one that berthd
// installs, but for what it says of the daemon's socket and time-out.
func TestConflist(t *testing.T) {
	cfg := load(t, container{})
	want, err := install.Network{CNIVersion: cfg.CNIVersion, Name: cfg.CNINetwork, Chain: cfg.CNIChain}.Conflist()
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

// The image is built by the Go version of go.mod, and has the programs where
// berthd looks for the plugin: beside itself.
func TestDockerfile(t *testing.T) {
	text := string(readFile(t, "node-mode/Dockerfile"))
	mod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(readFile(t, "../go.mod"))
	if mod == nil || !strings.Contains(text, "FROM golang:"+string(mod[1])+" AS build") {
		t.Errorf("Dockerfile is not FROM golang:%s", mod[1])
	}
	copied := regexp.MustCompile(`/src/bin/(\w+)`).FindAllString(text, -1)
	for _, program := range []string{"berthd", "berth", "berthctl"} {
		if !slices.Contains(copied, "/src/bin/"+program) {
			t.Errorf("%s is not in the image", program)
		}
		if _, err := os.Stat("../cmd/" + program); err != nil {
			t.Error(err)
		}
	}
}
