package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// raise makes a node by itself, with the network that the reference plugins
// give: what is tested is how it acts as a runtime.
func raise(t *testing.T, conflist string) *Node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a node is a network namespace: run its tests as root")
	}
	if _, err := os.Stat("/usr/lib/cni/ptp"); err != nil {
		t.Fatalf("the reference plugins are missing (Debian package containernetworking-plugins): %v", err)
	}
	name := fmt.Sprintf("vpclab-n%x", rand.Uint32())
	ok(t, ns.Create(name))
	n, err := New(Options{
		Name: "n", Netns: ns.Path(name), Dir: t.TempDir(), PodPrefix: name + "-pod-",
		BinDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
	})
	ok(t, err)
	t.Cleanup(func() {
		if err := n.PowerOff(); err != nil {
			t.Error(err)
		}
		if err := ns.Remove(name); err != nil {
			t.Error(err)
		}
		if left, err := ns.List(name); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	ok(t, os.WriteFile(filepath.Join(n.ConfDir(), "10-test.conflist"), []byte(conflist), 0o600))
	return n
}

// network is ptp with host-local, and further plugins after them.
func network(t *testing.T, more ...map[string]any) string {
	t.Helper()
	plugins := []map[string]any{{
		"type": "ptp", "ipam": map[string]any{"type": "host-local", "ranges": [][]map[string]any{{{"subnet": "10.9.0.0/24"}}}, "dataDir": t.TempDir()},
	}}
	b, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "test", "plugins": append(plugins, more...)})
	ok(t, err)
	return string(b)
}

func TestPodsComeAndGo(t *testing.T) {
	n := raise(t, network(t))
	a, err := n.AddPod(t.Context(), "a", PodOptions{})
	ok(t, err)
	b, err := n.AddPod(t.Context(), "b", PodOptions{Namespace: "other"})
	ok(t, err)
	if _, err := n.AddPod(t.Context(), "a", PodOptions{}); err == nil {
		t.Error("a second pod of the same name was made")
	}
	for _, network := range []string{"tcp", "udp"} {
		r, err := a.Ask(t.Context(), network, b.Addr(), "hello")
		if err != nil || r.You != a.Addr() || r.To != b.Addr() || r.Text != "hello" {
			t.Errorf("%s: %q, %v", network, r, err)
		}
	}
	if err := n.CheckPod(t.Context(), "a"); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if got := len(n.Pods()); got != 2 {
		t.Errorf("%d pods are listed", got)
	}
	ok(t, n.DelPod(t.Context(), "a"))
	if _, err := n.Pod("a"); err == nil {
		t.Error("the pod is still there")
	}
	if veths := countVeths(t, n); veths != 1 {
		t.Errorf("%d veths on the node, want that of pod b", veths)
	}
	again, err := n.AddPod(t.Context(), "a", PodOptions{})
	if err != nil || again.ContainerID == a.ContainerID {
		t.Errorf("a pod made again: %v", err)
	}
	ok(t, n.PowerOff())
	if _, err := os.Stat(again.Netns()); err == nil || n.Pods() != nil {
		t.Errorf("after the node was powered off its pods are %v, and a namespace of one still exists: %t", n.Pods(), err == nil)
	}
}

func countVeths(t *testing.T, n *Node) (count int) {
	t.Helper()
	err := ns.Do(n.Netns, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Type() == "veth" {
				count++
			}
		}
		return err
	})
	ok(t, err)
	return count
}

// failing is a plugin that fails ADD with a code until it was asked times
// times, and notes each verb.
func failing(t *testing.T, n *Node, code, times int) (notes string) {
	t.Helper()
	notes = filepath.Join(t.TempDir(), "notes")
	script := fmt.Sprintf(`#!/bin/sh
config=$(cat)
echo "$CNI_COMMAND $CNI_CONTAINERID" >> %[1]s
if [ "$CNI_COMMAND" = ADD ]; then
  if [ "$(grep -c '^ADD' %[1]s)" -le %[3]d ]; then
    echo '{"cniVersion":"1.0.0","code":%[2]d,"msg":"no address yet"}'
    exit 1
  fi
  echo "$config" | sed 's/.*"prevResult":\({.*}\),"type".*/\1/'
fi
`, notes, code, times)
	ok(t, os.WriteFile(filepath.Join(n.CNIBinDir(), "failing"), []byte(script), 0o700))
	return notes
}

func TestAFailedADDIsUndoneAndTriedAgain(t *testing.T) {
	n := raise(t, network(t, map[string]any{"type": "failing"}))
	notes := failing(t, n, 11, 2)
	p, err := n.AddPod(t.Context(), "a", PodOptions{})
	ok(t, err)
	lines := strings.Fields(read(t, notes))
	var verbs []string
	containers := map[string]bool{}
	for i := 0; i < len(lines); i += 2 {
		verbs = append(verbs, lines[i])
		containers[lines[i+1]] = true
	}
	if got := strings.Join(verbs, " "); got != "ADD DEL ADD DEL ADD" || len(containers) != 3 || !containers[p.ContainerID] {
		t.Errorf("verbs %q for %d containers; want ADD DEL ADD DEL ADD for 3", got, len(containers))
	}
	if veths := countVeths(t, n); veths != 1 {
		t.Errorf("%d veths after two failed attempts, want 1", veths)
	}
}

func TestOnceReturnsTheFirstFailure(t *testing.T) {
	n := raise(t, network(t, map[string]any{"type": "failing"}))
	notes := failing(t, n, 11, 100)
	_, err := n.AddPod(t.Context(), "a", PodOptions{Once: true})
	if CNICode(err) != 11 {
		t.Errorf("got %v with code %d, want code 11", err, CNICode(err))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // ends the second attempt of this pod, the third in all, or the wait for a fourth
		defer cancel()
		for ctx.Err() == nil {
			if b, err := os.ReadFile(notes); err != nil || bytes.Count(b, []byte("ADD")) >= 3 {
				return
			}
			<-time.After(5 * time.Millisecond) // a foreign process's edge
		}
	}()
	if _, err = n.AddPod(ctx, "a", PodOptions{}); CNICode(err) != 11 || ctx.Err() == nil {
		t.Errorf("got %v before the end; want the last failure after it", err)
	}
	if veths := countVeths(t, n); veths != 0 {
		t.Errorf("%d veths left", veths)
	}
}

func TestBadNamesAndPaths(t *testing.T) {
	n := raise(t, network(t))
	for _, name := range []string{"", "A", "a/b", "-a", strings.Repeat("a", 80)} {
		if _, err := n.AddPod(t.Context(), name, PodOptions{}); err == nil {
			t.Errorf("pod name %q was accepted", name)
		}
	}
	if _, err := New(Options{Name: "n", Dir: "/" + strings.Repeat("x", 100)}); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("a directory too long for sockets: %v", err)
	}
	if err := n.Start(); err == nil || !strings.Contains(err.Error(), "berthd") {
		t.Errorf("start without a berthd binary: %v", err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	ok(t, err)
	return string(b)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
