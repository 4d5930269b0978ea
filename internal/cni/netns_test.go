package cni_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/rpc/rpcfake"
)

// notNetns makes what a path may lead to instead of a network namespace.
func notNetns(t *testing.T) map[string]string {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(unix.Mkfifo(at("fifo"), 0o600), os.Symlink(at("fifo"), at("link")),
		os.Symlink(at("loop"), at("loop")), os.WriteFile(at("file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return map[string]string{
		"a FIFO": at("fifo"), "a link to a FIFO": at("link"), "a link to itself": at("loop"), "a file": at("file"),
		"a socket": at("socket"), "a folder": dir, "a device": "/dev/null", "another namespace": "/proc/self/ns/mnt",
	}
}

// The plugin itself opens none of these: it asks the daemon, and ends.
func TestNothingIsWaitedForAtTheNetnsPath(t *testing.T) {
	socket := rpcfake.Start(t, &rpcfake.Node{})
	for name, path := range notNetns(t) {
		for _, verb := range []string{"ADD", "DEL"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			out, err := invocation{verb: verb, env: map[string]string{"CNI_NETNS": path}, conf: conf(socket, "1.0.0")}.command(ctx).CombinedOutput()
			if err != nil {
				t.Errorf("%s of %s: %v %v: %s", verb, name, err, ctx.Err(), out)
			}
			cancel()
		}
	}
}
