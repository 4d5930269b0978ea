package cni_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/rpcfake"
)

// check runs an invocation that must fail, with this code and every one of these
// texts in what a person gets to read. One that was too slow on a busy machine to
// get to that is run again.
func (i invocation) check(t *testing.T, code uint, texts ...string) {
	t.Helper()
	_, e := i.run(t)
	for again := 0; again < 9 && e != nil && tooSlow(e) && misses(e, code, texts) != ""; again++ {
		_, e = i.run(t)
	}
	if e == nil {
		t.Fatalf("succeeded, want code %d", code)
	}
	if text := misses(e, code, texts); text != "" {
		t.Errorf("code %d, %q (%q): want %s", e.Code, e.Msg, e.Details, text)
	}
}

// tooSlow tells failures of a daemon that did not answer, or of a plugin that had
// not connected, before the time was over.
func tooSlow(e *types.Error) bool {
	return strings.Contains(e.Msg, "did not finish within") || strings.Contains(e.Msg, "does not answer")
}

// misses is what an error lacks; empty: nothing.
func misses(e *types.Error, code uint, texts []string) string {
	if e.Code != code {
		return fmt.Sprintf("code %d", code)
	}
	for _, s := range texts {
		if !strings.Contains(e.Msg+"\n"+e.Details, s) {
			return fmt.Sprintf("%q", s)
		}
	}
	return ""
}

func TestBadConfiguration(t *testing.T) {
	const v = "1.1.0"
	prev := `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + netns + `"}],"ips":[{"interface":0,"address":"10.0.0.5/32"}]}`
	for _, tc := range []struct {
		name, verb, conf string
		code             uint
		texts            []string
	}{
		{"no JSON", "ADD", `{"cniVersion":`, 6, []string{"unexpected end of JSON"}},
		{"empty", "ADD", ``, 6, []string{"unexpected end of JSON"}},
		{"a list", "ADD", `[]`, 6, []string{"array"}},
		{"no name", "ADD", `{"cniVersion":"1.0.0","type":"berth"}`, 7, []string{"name"}},
		{"bad name", "ADD", `{"cniVersion":"1.0.0","name":"a/b","type":"berth"}`, 7, []string{"name", "a/b"}},
		{"name of a wrong type", "ADD", `{"cniVersion":"1.0.0","name":5,"type":"berth"}`, 6, []string{"name", "number"}},
		{"version too old", "ADD", `{"cniVersion":"0.2.0","name":"berth"}`, 1, []string{"0.2.0"}},
		{"version unheard of", "ADD", `{"cniVersion":"2.0.0","name":"berth"}`, 1, []string{"2.0.0"}},
		{"no version", "ADD", `{"name":"berth"}`, 1, []string{"0.1.0"}},
		{"mtu a string", "ADD", conf("/x", v, "mtu", `"1500"`), 7, []string{"mtu", "string", "whole number"}},
		{"mtu a fraction", "ADD", conf("/x", v, "mtu", `1500.5`), 7, []string{"mtu", "1500.5", "whole number"}},
		{"mtu too small", "ADD", conf("/x", v, "mtu", `500`), 7, []string{"mtu", "500", "576"}},
		{"mtu too large", "ADD", conf("/x", v, "mtu", `65536`), 7, []string{"mtu", "65536", "65535"}},
		{"mtu negative", "ADD", conf("/x", v, "mtu", `-1`), 7, []string{"mtu", "-1"}},
		{"socket a number", "DEL", conf("/x", v, "socket", `7`), 7, []string{"socket", "number", "a string"}},
		{"socket relative", "STATUS", conf("run/x", v), 7, []string{"socket", "run/x", "absolute"}},
		{"socket too long", "GC", conf("/"+strings.Repeat("x", 107), v), 7, []string{"socket", "107"}},
		{"timeout a number", "DEL", conf("/x", v, "timeout", `60`), 7, []string{"timeout", "60", `"60s"`}},
		{"timeout no duration", "CHECK", conf("/x", v, "timeout", `"soon"`), 7, []string{"timeout", "soon"}},
		{"timeout too short", "ADD", conf("/x", v, "timeout", `"10ms"`), 7, []string{"timeout", "10ms", "1s"}},
		{"timeout too long", "ADD", conf("/x", v, "timeout", `"1h"`), 7, []string{"timeout", "10m"}},
		{"dns of a wrong type", "ADD", conf("/x", v, "dns", `{"nameservers":"10.0.0.2"}`), 7, []string{"dns.nameservers", "string", "a list"}},
		{"dns no object", "ADD", conf("/x", v, "dns", `"10.0.0.2"`), 7, []string{"dns", "string", "an object"}},
		{"runtimeConfig of a wrong type", "ADD", conf("/x", v, "runtimeConfig", `[]`), 7, []string{"runtimeConfig", "array", "an object"}},
		{"ips of a wrong type", "ADD", conf("/x", v, "runtimeConfig", `{"ips":"10.0.0.1/32"}`), 7, []string{"runtimeConfig.ips", "a list"}},
		{"ips asked for", "ADD", conf("/x", v, "runtimeConfig", `{"ips":["10.0.0.1/32"]}`), 2, []string{"runtimeConfig.ips", "10.0.0.1/32"}},
		{"mac asked for", "ADD", conf("/x", v, "runtimeConfig", `{"mac":"0a:00:00:00:00:01"}`), 2, []string{"runtimeConfig.mac", "0a:00:00:00:00:01"}},
		{"ipam", "ADD", conf("/x", v, "ipam", `{"type":"host-local"}`), 2, []string{"ipam.type", "host-local"}},
		{"mtu of another's interface", "ADD", conf("/x", v, "prevResult", prev, "mtu", `1400`), 2, []string{"mtu", "1400", "before berth"}},
		{"pool of another's address", "ADD", conf("/x", v, "prevResult", prev, "pool", `"a"`), 2, []string{"pool", "before berth"}},
		{"prevResult of another interface", "ADD", conf("/x", v, "prevResult", strings.Replace(prev, `"eth0"`, `"eth1"`, 1)), 7, []string{"prevResult", "eth0", netns}},
		{"CHECK without prevResult", "CHECK", conf("/x", v), 7, []string{"prevResult", "missing"}},
		{"CHECK with null", "CHECK", conf("/x", v, "prevResult", `null`), 7, []string{"prevResult", "missing"}},
		{"prevResult no object", "CHECK", conf("/x", v, "prevResult", `7`), 7, []string{"prevResult"}},
		{"prevResult of another version", "CHECK", conf("/x", v, "prevResult", `{"cniVersion":"0.4.0"}`), 7, []string{"prevResult", "1.1.0"}},
		{"prevResult with a bad address", "CHECK", conf("/x", v, "prevResult", `{"cniVersion":"1.1.0","ips":[{"address":"x"}]}`), 7, []string{"prevResult", "x"}},
		{"prevResult without the interface", "CHECK", conf("/x", v, "prevResult", `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}`), 7, []string{"prevResult", "eth0", netns}},
		{"prevResult with a null", "CHECK", conf("/x", "0.4.0", "prevResult", `{"cniVersion":"0.4.0","interfaces":[{"name":"eth0"},null]}`), 7, []string{"prevResult.interfaces[1]"}},
		{"prevResult without an address", "CHECK", conf("/x", v, "prevResult", strings.Replace(prev, `"interface":0`, `"interface":1`, 1)), 7, []string{"prevResult", "address"}},
		{"CHECK before it was there", "CHECK", conf("/x", "0.3.1", "prevResult", `{}`), 1, []string{"CHECK"}},
		{"GC before it was there", "GC", conf("/x", "1.0.0"), 1, []string{"GC"}},
		{"STATUS before it was there", "STATUS", conf("/x", "1.0.0"), 1, []string{"STATUS"}},
		{"GC without a list", "GC", conf("/x", v), 7, []string{"cni.dev/valid-attachments", "missing"}},
		{"GC with no list", "GC", conf("/x", v, "cni.dev/valid-attachments", `{}`), 7, []string{"cni.dev/valid-attachments", "a list"}},
		{"GC with half an entry", "GC", conf("/x", v, "cni.dev/valid-attachments", `[{"containerID":"a","ifname":"eth0"},{"containerID":"b"}]`), 7, []string{"cni.dev/valid-attachments[1]", "ifname"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			invocation{verb: tc.verb, conf: tc.conf}.check(t, tc.code, tc.texts...)
		})
	}
}

// Fields of others stop no pod, and those that only ADD needs stop no DEL.
func TestUnknownFieldsAreTolerated(t *testing.T) {
	n := &rpcfake.Node{}
	socket := rpcfake.Start(t, n)
	odd := []string{"color", `"blue"`, "capabilities", `{"portMappings":true,"io.kubernetes.cri.pod-annotations":true}`, "args", `{"cni":{"labels":[]}}`, "ipam", `{}`, "prevResult", `null`,
		"runtimeConfig", `{"portMappings":[{"hostPort":80}],"io.kubernetes.cri.pod-annotations":{"a":"b"},"ips":[],"mac":"","dns":{}}`}
	if _, e := (invocation{verb: "ADD", conf: conf(socket, "1.0.0", odd...)}).run(t); e != nil {
		t.Errorf("ADD: %v", e)
	}
	bad := []string{"mtu", `"x"`, "ipam", `{"type":"host-local"}`, "runtimeConfig", `7`, "dns", `7`, "prevResult", `7`}
	if _, e := (invocation{verb: "DEL", conf: conf(socket, "1.0.0", bad...), env: map[string]string{"CNI_ARGS": "nonsense"}}).run(t); e != nil {
		t.Errorf("DEL: %v", e)
	}
	if got := len(n.Calls()); got != 2 {
		t.Errorf("%d calls, want 2", got)
	}
}

func TestBadEnvironment(t *testing.T) {
	for _, tc := range []struct {
		name, verb string
		env        map[string]string
		code       uint
		texts      []string
	}{
		{"no container", "ADD", map[string]string{"CNI_CONTAINERID": ""}, 4, []string{"CNI_CONTAINERID"}},
		{"bad container", "DEL", map[string]string{"CNI_CONTAINERID": "a/b"}, 4, []string{"containerID", "a/b"}},
		{"no interface", "ADD", map[string]string{"CNI_IFNAME": ""}, 4, []string{"CNI_IFNAME"}},
		{"interface too long", "ADD", map[string]string{"CNI_IFNAME": "abcdefghijklmnop"}, 4, []string{"interface name", "too long"}},
		{"bad interface", "DEL", map[string]string{"CNI_IFNAME": "a:b"}, 4, []string{"interface name"}},
		{"no namespace", "ADD", map[string]string{"CNI_NETNS": ""}, 4, []string{"CNI_NETNS"}},
		{"relative namespace", "ADD", map[string]string{"CNI_NETNS": "run/netns/x"}, 4, []string{"CNI_NETNS", "run/netns/x", "absolute"}},
		{"the host's namespace", "ADD", map[string]string{"CNI_NETNS": "/proc/self/ns/net"}, 8, []string{"CNI_NETNS", "/proc/self/ns/net"}},
		{"unknown verb", "FLY", nil, 4, []string{"CNI_COMMAND", "FLY"}},
		{"args without values", "ADD", map[string]string{"CNI_ARGS": "K8S_POD_NAME"}, 4, []string{"CNI_ARGS", "K8S_POD_NAME"}},
		{"args that end early", "ADD", map[string]string{"CNI_ARGS": "K8S_POD_NAME=a;"}, 4, []string{"CNI_ARGS"}},
		{"unknown args", "ADD", map[string]string{"CNI_ARGS": "COLOR=blue"}, 4, []string{"CNI_ARGS", "COLOR"}},
		{"unclear IgnoreUnknown", "ADD", map[string]string{"CNI_ARGS": "IgnoreUnknown=perhaps"}, 4, []string{"CNI_ARGS", "IgnoreUnknown", "perhaps"}},
		{"args of the inside", "ADD", map[string]string{"CNI_ARGS": "CommonArgs=1"}, 4, []string{"CNI_ARGS", "CommonArgs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &rpcfake.Node{}
			invocation{verb: tc.verb, env: tc.env, conf: conf(rpcfake.Start(t, n), "1.0.0")}.check(t, tc.code, tc.texts...)
			if len(n.Calls()) != 0 {
				t.Error("the daemon was asked all the same")
			}
		})
	}
}

// The daemon may be in the namespace that CNI_NETNS names when the runtime says so.
func TestNetnsOverride(t *testing.T) {
	env := map[string]string{"CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": "TRUE"}
	if _, e := (invocation{verb: "ADD", env: env, conf: conf(rpcfake.Start(t, &rpcfake.Node{}), "1.0.0")}).run(t); e != nil {
		t.Error(e)
	}
}

// failing is a daemon whose every verb fails so.
func failing(err error) *rpcfake.Node {
	return &rpcfake.Node{
		OnAdd:    func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) { return nil, err },
		OnDel:    func(context.Context, *rpc.DelRequest) (*rpc.DelReply, error) { return nil, err },
		OnCheck:  func(context.Context, *rpc.CheckRequest) (*rpc.CheckReply, error) { return nil, err },
		OnGC:     func(context.Context, *rpc.GCRequest) (*rpc.GCReply, error) { return nil, err },
		OnStatus: func(context.Context, *rpc.StatusRequest) (*rpc.StatusReply, error) { return nil, err },
	}
}

// every is one good invocation of each verb that asks the daemon, which it gives
// so long to answer.
func every(socket, timeout string) []invocation {
	const v = "1.1.0"
	timeout = `"` + timeout + `"`
	prev := `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + netns + `"}],"ips":[{"interface":0,"address":"10.0.0.5/32"}]}`
	return []invocation{
		{verb: "ADD", conf: conf(socket, v, "timeout", timeout)},
		{verb: "DEL", conf: conf(socket, v, "timeout", timeout)},
		{verb: "CHECK", conf: conf(socket, v, "timeout", timeout, "prevResult", prev)},
		{verb: "GC", conf: conf(socket, v, "timeout", timeout, "cni.dev/valid-attachments", `[]`)},
		{verb: "STATUS", conf: conf(socket, v, "timeout", timeout)},
	}
}

// The runtime gets to see the daemon's words.
func TestFailuresOfTheDaemon(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		code uint
		text []string
	}{
		{"one with code", rpcfake.Failure(11, "no address for the pod: subnet-1 is full", "details"), 11, []string{"no address for the pod: subnet-1 is full", "details"}},
		{"one of Berth's own", rpcfake.Failure(101, "the kernel refused", ""), 101, []string{"the kernel refused"}},
		{"not ready", rpcfake.Failure(50, "the node's data path is not ready", ""), 50, []string{"data path"}},
		{"a plain one", status.Error(codes.Internal, "oops"), 999, []string{"oops"}},
		{"code 0 counts for nothing", rpcfake.Failure(0, "oops", ""), 999, []string{"oops"}},
		{"an older daemon", status.Error(codes.Unimplemented, "unknown method"), 999, []string{"older"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, i := range every(rpcfake.Start(t, failing(tc.err)), "1m") {
				t.Run(i.verb, func(t *testing.T) { i.check(t, tc.code, tc.text...) })
			}
		})
	}
}
