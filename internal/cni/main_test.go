package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// must ends the test with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pluginDir holds the plugin, built once as it is shipped.
var pluginDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "berth-cni-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := build(filepath.Join(dir, "berth"), "github.com/berthnet/berth/cmd/berth"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pluginDir = dir
	return m.Run()
}

// build builds a program as `make build` does.
func build(to, pkg string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", to, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// invocation is one execution of the plugin, as a runtime would make it.
type invocation struct {
	verb string
	env  map[string]string // over the usual ones; an empty value removes
	conf string            // standard input
}

// command is the invocation's process, not started.
func (i invocation) command(ctx context.Context) *exec.Cmd {
	env := map[string]string{
		"CNI_COMMAND": i.verb, "CNI_CONTAINERID": "c0ffee", "CNI_NETNS": "/run/netns/berth-cni-test-none",
		"CNI_IFNAME": "eth0", "CNI_PATH": pluginDir,
	}
	for k, v := range i.env {
		env[k] = v
	}
	cmd := exec.CommandContext(ctx, filepath.Join(pluginDir, "berth"))
	cmd.Env = []string{} // nothing of the test's own
	for k, v := range env {
		if v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.Stdin = bytes.NewReader([]byte(i.conf))
	return cmd
}

// run executes it and returns what it printed, and the error it printed
// instead, if any.
func (i invocation) run(t testing.TB) (stdout []byte, failure *types.Error) {
	t.Helper()
	stdout, err := i.command(t.Context()).Output()
	if err == nil {
		return stdout, nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("executing the plugin: %v", err)
	}
	failure = &types.Error{}
	if err := json.Unmarshal(stdout, failure); err != nil {
		t.Fatalf("the plugin failed (%v) and printed no CNI error but %q, on standard error %q", exit, stdout, exit.Stderr)
	}
	if len(exit.Stderr) > 0 {
		t.Errorf("the plugin printed on standard error: %q", exit.Stderr)
	}
	return nil, failure
}

// conf is a network configuration of the plugin with further fields, JSON
// text by key.
func conf(socket, cniVersion string, more ...string) string {
	m := map[string]json.RawMessage{
		"name": json.RawMessage(`"berth"`), "type": json.RawMessage(`"berth"`),
		"cniVersion": quote(cniVersion), "socket": quote(socket),
	}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = json.RawMessage(more[i+1])
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func quote(s string) json.RawMessage {
	b, _ := json.Marshal(s)
	return b
}

// runtime is libcni with the plugin, and a list made of plugins' configurations.
func runtime(t testing.TB, cniVersion string, plugins ...string) (*libcni.CNIConfig, *libcni.NetworkConfigList) {
	t.Helper()
	var raw []json.RawMessage
	for _, p := range plugins {
		raw = append(raw, json.RawMessage(p))
	}
	text, err := json.Marshal(map[string]any{"name": "berth", "cniVersion": cniVersion, "plugins": raw})
	must(t, err)
	list, err := libcni.ConfListFromBytes(text)
	must(t, err)
	return libcni.NewCNIConfigWithCacheDir([]string{pluginDir, referencePlugins}, t.TempDir(), nil), list
}

// referencePlugins is where Debian's containernetworking-plugins are.
const referencePlugins = "/usr/lib/cni"
