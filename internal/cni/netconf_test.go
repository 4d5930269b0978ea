package cni_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/rpcfake"
	"github.com/berthnet/berth/internal/rpc/wire"
)

// As with containerd and CRI-O, annotations are passed to a plugin whose configuration declares the capability. The plugin
// forwards only Berth's annotations to the daemon.
func TestAnnotationsReachDaemon(t *testing.T) {
	if wire.AnnotationPool != v1alpha1.AnnotationPool {
		t.Errorf("annotation of the plugin = %s, want %s", wire.AnnotationPool, v1alpha1.AnnotationPool)
	}
	chosen := func(pool string) *rpc.Annotations {
		return &rpc.Annotations{Pool: pool, All: map[string]string{"berth.dev/pool": pool}}
	}
	ofBerth := map[string]string{"berth.dev/vpc": "blue", "below.berth.dev/x": "y", "berth.dev/pool": "public"}
	with := maps.Clone(ofBerth)
	maps.Copy(with, map[string]string{"berth.dev": "no key of a domain", "notberth.dev/x": "y", "berth.dev.example.com/x": "y"})
	declared := `{"io.kubernetes.cri.pod-annotations": true, "portMappings": true}`
	long := strings.Repeat("a", 64)
	many := map[string]string{"berth.dev/pool": "public"}
	for i := range 50 {
		many[strings.Repeat("a", i+1)] = strings.Repeat("x", 4<<10)
	}
	for _, tc := range []struct {
		name, capabilities string
		passed             any // annotations from the runtime; nil: none
		want               *rpc.Annotations
	}{
		{"one", declared, map[string]string{"berth.dev/pool": "public"}, chosen("public")},
		{"among many", declared, many, chosen("public")},
		{"invalid pool name, which the daemon rejects", declared, map[string]string{"berth.dev/pool": long}, chosen(long)},
		{"all annotations of Berth", declared, with, &rpc.Annotations{Pool: "public", All: ofBerth}},
		{"others", declared, map[string]string{"example.com/a": "b"}, &rpc.Annotations{}},
		{"another spelling", declared, map[string]string{"berth.dev/POOL": "x"}, &rpc.Annotations{All: map[string]string{"berth.dev/POOL": "x"}}},
		{"none", declared, map[string]string{}, &rpc.Annotations{}},
		{"none, encoded as null", declared, map[string]string(nil), &rpc.Annotations{}},
		{"runtime without the capability", declared, nil, nil},
		{"not declared", `{}`, map[string]string{"berth.dev/pool": "public"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &rpcfake.Node{}
			runtime, list := runtime(t, "1.0.0", conf(rpcfake.Start(t, n), "1.0.0", "capabilities", tc.capabilities))
			rt := &libcni.RuntimeConf{ContainerID: "c0ffee", NetNS: netns, IfName: "eth0"}
			if tc.passed != nil {
				rt.CapabilityArgs = map[string]any{cni.PodAnnotations: tc.passed}
			}
			if _, err := runtime.AddNetworkList(t.Context(), list, rt); err != nil {
				t.Fatal(err)
			}
			if err := runtime.DelNetworkList(t.Context(), list, rt); err != nil {
				t.Error(err)
			}
			calls, _ := withoutStatus(n.Calls())
			got := calls[0].(*rpc.AddRequest).GetAnnotations()
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("annotations at the daemon (-want +got):\n%s", diff)
			}
		})
	}
}

// The error names the annotation.
func TestInvalidAnnotationsAreRejected(t *testing.T) {
	socket := rpcfake.Start(t, &rpcfake.Node{})
	for value, want := range map[string]string{
		`{"berth.dev/pool": 7}`: "berth.dev/pool: expected a string",
		`["berth.dev/pool"]`:    "io.kubernetes.cri.pod-annotations: expected an object",
		`{"berth.dev/pool": "` + strings.Repeat("a", 100<<10) + `"}`: "is 102400 bytes long, expected the name of an AddressPool",
		`{"berth.dev/vpc": ["blue"]}`:                                "berth.dev/vpc: expected a string",
		`{"berth.dev/nics": "` + strings.Repeat("a", 32<<10) + `"}`:  "the pod's annotations of berth.dev are 32782 bytes long, expected at most 32768",
	} {
		text := `{"io.kubernetes.cri.pod-annotations": ` + value + `}`
		invocation{verb: "ADD", conf: conf(socket, "1.0.0", "runtimeConfig", text)}.check(t, types.ErrInvalidNetworkConfig, want)
	}
}

// notNetns makes files that a path may lead to instead of a network namespace.
func notNetns(t *testing.T) map[string]string {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") // short, as socket paths are limited
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(unix.Mkfifo(at("fifo"), 0o600), os.Symlink(at("fifo"), at("link")),
		os.Symlink(at("loop"), at("loop")), os.WriteFile(at("file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return map[string]string{
		"a FIFO": at("fifo"), "a link to a FIFO": at("link"), "a link to itself": at("loop"), "a file": at("file"),
		"a socket": at("socket"), "a folder": dir, "a device": "/dev/null", "another namespace": "/proc/self/ns/mnt",
	}
}

// The plugin itself opens none of these files: it calls the daemon, and ends.
func TestNetnsPathIsNotOpened(t *testing.T) {
	socket := rpcfake.Start(t, &rpcfake.Node{})
	for name, path := range notNetns(t) {
		for _, verb := range []string{"ADD", "DEL"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			out, err := invocation{verb: verb, env: map[string]string{"CNI_NETNS": path}, conf: conf(socket, "1.0.0")}.command(ctx).CombinedOutput()
			if err != nil {
				t.Errorf("%s with %s as namespace: error = %v, context error = %v, want success:\n%s", verb, name, err, ctx.Err(), out)
			}
			cancel()
		}
	}
}
