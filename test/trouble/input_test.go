package trouble

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/test/harness"
)

// TestBadInput gives the plugin what no runtime should, and wants an error
// that names the field, and no trace.
func TestBadInput(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small"})
	n := l.Nodes()[0]
	s := harness.NewSandbox(t, n)
	conf := func(change string) string {
		c := map[string]any{"cniVersion": "1.0.0", "name": "berth", "type": "berth", "socket": n.Socket()}
		var more map[string]any
		harness.OK(t, json.Unmarshal([]byte("{"+change+"}"), &more))
		for k, v := range more {
			if c[k] = v; v == nil {
				delete(c, k)
			}
		}
		b, err := json.Marshal(c)
		harness.OK(t, err)
		return string(b)
	}
	file := filepath.Join(t.TempDir(), "file")
	harness.OK(t, os.WriteFile(file, nil, 0o600))
	fifo := filepath.Join(t.TempDir(), "fifo")
	harness.OK(t, syscall.Mkfifo(fifo, 0o600))
	good := map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": s.ContainerID, "CNI_NETNS": s.NetNS, "CNI_IFNAME": "eth0"}
	for name, tt := range map[string]struct {
		conf string
		env  map[string]string
		code uint
		want []string
	}{
		"no JSON":                 {"{", nil, types.ErrDecodingFailure, nil},
		"nothing":                 {"", nil, types.ErrDecodingFailure, nil},
		"a list":                  {"[1]", nil, types.ErrDecodingFailure, nil},
		"no name":                 {conf(`"name":null`), nil, types.ErrInvalidNetworkConfig, []string{"name"}},
		"name with a slash":       {conf(`"name":"a/b"`), nil, types.ErrInvalidNetworkConfig, []string{"name"}},
		"unknown version":         {conf(`"cniVersion":"9.0.0"`), nil, types.ErrIncompatibleCNIVersion, []string{"9.0.0"}},
		"mtu a string":            {conf(`"mtu":"big"`), nil, types.ErrInvalidNetworkConfig, []string{"mtu", "number"}},
		"mtu too small":           {conf(`"mtu":100`), nil, types.ErrInvalidNetworkConfig, []string{"mtu", "576"}},
		"mtu a fraction":          {conf(`"mtu":1500.5`), nil, types.ErrInvalidNetworkConfig, []string{"mtu"}},
		"mtu negative":            {conf(`"mtu":-1`), nil, types.ErrInvalidNetworkConfig, []string{"mtu"}},
		"socket a number":         {conf(`"socket":7`), nil, types.ErrInvalidNetworkConfig, []string{"socket", "string"}},
		"socket relative":         {conf(`"socket":"run/berthd.sock"`), nil, types.ErrInvalidNetworkConfig, []string{"socket", "absolute"}},
		"socket too long":         {conf(`"socket":"/` + strings.Repeat("x", 200) + `"`), nil, types.ErrInvalidNetworkConfig, []string{"socket", "107"}},
		"timeout a number":        {conf(`"timeout":60`), nil, types.ErrInvalidNetworkConfig, []string{"timeout", `"60s"`}},
		"timeout no duration":     {conf(`"timeout":"soon"`), nil, types.ErrInvalidNetworkConfig, []string{"timeout", "soon"}},
		"timeout too short":       {conf(`"timeout":"1ms"`), nil, types.ErrInvalidNetworkConfig, []string{"timeout"}},
		"dns a string":            {conf(`"dns":"10.0.0.2"`), nil, types.ErrInvalidNetworkConfig, []string{"dns"}},
		"runtimeConfig a list":    {conf(`"runtimeConfig":[1]`), nil, types.ErrInvalidNetworkConfig, []string{"runtimeConfig"}},
		"ipam":                    {conf(`"ipam":{"type":"host-local"}`), nil, types.ErrUnsupportedField, []string{"ipam", "host-local"}},
		"an address wished":       {conf(`"runtimeConfig":{"ips":["10.0.0.9/22"]}`), nil, types.ErrUnsupportedField, []string{"ips", "10.0.0.9"}},
		"a MAC wished":            {conf(`"runtimeConfig":{"mac":"02:00:00:00:00:09"}`), nil, types.ErrUnsupportedField, []string{"mac"}},
		"not first in its list":   {conf(`"prevResult":{"cniVersion":"1.0.0","ips":[]}`), nil, types.ErrInvalidNetworkConfig, []string{"prevResult", "first"}},
		"netns not there":         {conf(""), map[string]string{"CNI_NETNS": "/run/netns/no-such"}, 0, []string{"/run/netns/no-such"}},
		"netns a file":            {conf(""), map[string]string{"CNI_NETNS": file}, 0, []string{file}},
		"netns a FIFO":            {conf(""), map[string]string{"CNI_NETNS": fifo}, types.ErrInvalidNetNS, []string{fifo, "a FIFO", "is not a network namespace"}},
		"netns relative":          {conf(""), map[string]string{"CNI_NETNS": "netns"}, types.ErrInvalidEnvironmentVariables, []string{"CNI_NETNS", "absolute"}},
		"netns of the node":       {conf(""), map[string]string{"CNI_NETNS": n.Netns}, types.ErrInvalidNetNS, []string{n.Netns}},
		"no netns":                {conf(""), map[string]string{"CNI_NETNS": ""}, types.ErrInvalidEnvironmentVariables, []string{"CNI_NETNS"}},
		"no container":            {conf(""), map[string]string{"CNI_CONTAINERID": ""}, types.ErrInvalidEnvironmentVariables, []string{"CNI_CONTAINERID"}},
		"container with a path":   {conf(""), map[string]string{"CNI_CONTAINERID": "../x"}, types.ErrInvalidEnvironmentVariables, []string{"../x"}},
		"no interface":            {conf(""), map[string]string{"CNI_IFNAME": ""}, types.ErrInvalidEnvironmentVariables, []string{"CNI_IFNAME"}},
		"interface name too long": {conf(""), map[string]string{"CNI_IFNAME": "a-very-long-name"}, types.ErrInvalidEnvironmentVariables, nil},
		"args without a value":    {conf(""), map[string]string{"CNI_ARGS": "K8S_POD_NAME"}, types.ErrInvalidEnvironmentVariables, []string{"CNI_ARGS"}},
		"unknown command":         {conf(""), map[string]string{"CNI_COMMAND": "FETCH"}, types.ErrInvalidEnvironmentVariables, []string{"FETCH"}},
		"CHECK without result":    {conf(""), map[string]string{"CNI_COMMAND": "CHECK"}, types.ErrInvalidNetworkConfig, []string{"prevResult"}},
		"CHECK of nonsense":       {conf(`"prevResult":7`), map[string]string{"CNI_COMMAND": "CHECK"}, types.ErrInvalidNetworkConfig, []string{"prevResult"}},
		"GC without a list":       {conf(`"cniVersion":"1.1.0"`), map[string]string{"CNI_COMMAND": "GC"}, types.ErrInvalidNetworkConfig, []string{"valid-attachments"}},
		"GC with half a list":     {conf(`"cniVersion":"1.1.0","cni.dev/valid-attachments":[{"containerID":"x"}]`), map[string]string{"CNI_COMMAND": "GC"}, types.ErrInvalidNetworkConfig, []string{"ifname"}},
		"DEL with a bad socket":   {conf(`"socket":7`), map[string]string{"CNI_COMMAND": "DEL"}, types.ErrInvalidNetworkConfig, []string{"socket"}},
	} {
		t.Run(name, func(t *testing.T) {
			env := []string{}
			for k, v := range good {
				if o, ok := tt.env[k]; ok {
					v = o
				}
				env = append(env, k+"="+v)
			}
			if a, ok := tt.env["CNI_ARGS"]; ok {
				env = append(env, "CNI_ARGS="+a)
			}
			_, failure := harness.Exec(t, n, tt.conf, env...)
			if failure == nil {
				t.Fatal("it worked")
			}
			code := tt.code
			if code == 0 { // the specification has no code of its own; skel and the daemon choose
				code = failure.Code
			}
			harness.Fails(t, failure, code, tt.want...)
			if failure.Msg == "" || failure.Code == types.ErrInternal {
				t.Errorf("error %+v", failure)
			}
		})
	}
	if doc := harness.Document(t, n); len(doc.Allocated)+len(doc.Cooling) > 0 {
		t.Errorf("bad input left %v allocated, %v cooling", doc.Allocated, doc.Cooling)
	}
	harness.Settle(t, l)
}

// TestBadSettings starts daemons with settings that make no sense: they end
// at once and name each, the flag or the variable, and the reason.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args, env []string
		want      []string
	}{
		"a number":       {[]string{"--warm-ip-target=many"}, nil, []string{"--warm-ip-target", "many", "whole number"}},
		"a variable":     {nil, []string{"WARM_ENI_TARGET=-1"}, []string{"WARM_ENI_TARGET", "-1", "0 to"}},
		"a duration":     {nil, []string{"IP_COOLDOWN_PERIOD=soon"}, []string{"IP_COOLDOWN_PERIOD", "soon", "30s"}},
		"several":        {[]string{"--mtu=9"}, []string{"BERTH_EXCLUDE_SNAT_CIDRS=10.0.0.0"}, []string{"--mtu", "576", "BERTH_EXCLUDE_SNAT_CIDRS", "CIDR"}},
		"not loopback":   {[]string{"--introspection-address=:6666"}, nil, []string{"--introspection-address", "loopback"}},
		"two dialects":   {[]string{"--warm-ip-target=1"}, []string{"BERTH_PRE_ALLOCATE=8"}, []string{"--warm-ip-target", "--pre-allocate"}},
		"unknown flag":   {[]string{"--warm-ip-targt=1"}, nil, []string{"--warm-ip-targt"}},
		"bad failpoints": {nil, []string{"BERTH_FAILPOINTS=nowhere=kill"}, []string{"BERTH_FAILPOINTS", "nowhere"}},
		"an argument":    {[]string{"serve"}, nil, []string{"serve"}},
		"endpoint":       {[]string{"--ec2-endpoint=ec2"}, nil, []string{"--ec2-endpoint", "URL"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			args := append([]string{"--state-dir=" + state, "--socket=" + state + "/s"}, tt.args...)
			cmd := exec.CommandContext(harness.Deadline(t, patience), filepath.Join(harness.BinDir, "berthd"), args...)
			cmd.Env = append(os.Environ(), tt.env...)
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); err == nil || code < 1 {
				t.Fatalf("exit status %d (%v): %s", code, err, out)
			}
			for _, w := range tt.want {
				if !strings.Contains(string(out), w) {
					t.Errorf("says nothing about %q:\n%s", w, out)
				}
			}
			if left, _ := os.ReadDir(state); len(left) > 0 {
				t.Errorf("left %v", fmt.Sprint(left))
			}
		})
	}
}
