package labs

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// inNetns runs a program in a network namespace.
func inNetns(t *testing.T, path string, args ...string) string {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=" + path}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

// crowd has one pod open thousands of connections to a metrics port at the node's address. The daemon
// goes on with little memory, and answers others.
func crowd(t *testing.T, l *lab.Lab, n, other *node.Node) {
	harness.OK(t, n.Stop(patience))
	n.Args = append(n.Args, "--metrics-address="+harness.PrimaryAddress(t, l, n).String()+":61678")
	harness.OK(t, n.Start())
	harness.Eventually(t, patience, "ready", func() error { _, err := n.Get(t.Context(), readyURL); return err })
	metricsURL := urlAt(t, l, n, "61678", "/metrics")
	to := netip.AddrPortFrom(harness.PrimaryAddress(t, l, n), 61678).String()
	before := resident(t, n)

	harness.OK(t, ns.Do(n.Pods()[0].Netns(), func() error {
		for i := range 4000 {
			c, err := net.Dial("tcp", to)
			if err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			t.Cleanup(func() { _ = c.Close() })
			if i%2 == 0 { // half a request
				_, _ = fmt.Fprint(c, "GET /metrics HTTP/1.1\r\n")
			}
		}
		return nil
	}))
	for who, path := range map[string]string{"another node": other.Netns, "the node": n.Netns, "another pod": n.Pods()[1].Netns()} {
		if _, err := ns.Get(harness.Deadline(t, patience), path, metricsURL); err != nil {
			t.Errorf("%s: %v", who, err)
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.PID()))
	harness.OK(t, err)
	if len(fds) > 300 {
		t.Errorf("berthd has %d descriptors", len(fds))
	}
	if grown := resident(t, n) - before; grown > harness.RaceMemory*32<<10 {
		t.Errorf("berthd grew by %d KiB", grown)
	}
	harness.OK(t, harness.AddOnce(t, n, "late"))
	harness.OK(t, n.Status(harness.Deadline(t, patience)))
}

// resident is the daemon's own memory in KiB.
func resident(t *testing.T, n *node.Node) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	harness.OK(t, err)
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatalf("RssAnon: %v", err)
	}
	return kib
}

// localnet redirects packets of a pod to the node's loopback address, by DNAT and route_localnet
// (ip-sysctl). Only the node itself gets an answer.
func localnet(t *testing.T, l *lab.Lab, n *node.Node) {
	inNetns(t, n.Netns, "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
	inNetns(t, n.Netns, "nft", `add table ip localnet
		add chain ip localnet prerouting { type nat hook prerouting priority dstnat; }
		add rule ip localnet prerouting tcp dport 7666 dnat to 127.0.0.1:6666
		add rule ip localnet prerouting tcp dport 7678 dnat to 127.0.0.1:61678`)
	for port, path := range map[uint16]string{7666: introspect.Path, 7678: "/metrics"} {
		// A Host header of another name would be rejected for itself.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		c, err := ns.Dial(ctx, n.Pods()[0].Netns(), "tcp", netip.AddrPortFrom(harness.PrimaryAddress(t, l, n), port), netip.Addr{})
		cancel()
		if err != nil {
			continue // something else keeps the pod out
		}
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n", path)
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if body, _ := io.ReadAll(c); len(body) > 0 {
			t.Errorf("a pod reads %s: %.200s", path, body)
		}
		_ = c.Close()
	}
	inNetns(t, n.Netns, "nft", "delete table ip localnet")
	inNetns(t, n.Netns, "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=0")
	if _, err := n.Get(t.Context(), readyURL); err != nil {
		t.Errorf("the node itself: %v", err)
	}
}
