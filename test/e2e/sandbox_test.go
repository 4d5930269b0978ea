//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/test/harness"
)

// sandbox is one that its runtime reports as ready.
type sandbox struct {
	id    string
	name  string // of the pod
	on    *containerd
	addr  netip.Addr // as CRI reports it
	netns string     // the file of its network namespace
	pid   int        // of its pause process
}

// sandboxConfig is a kubelet's description of a pod.
func (c *containerd) sandboxConfig(name string, attempt uint32) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name, Attempt: attempt},
		Hostname: name,
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: "/" + string(c.podsGroup())},
	}
}

// try makes a sandbox, or returns the first failure.
func (c *containerd) try(ctx context.Context, name string, attempt uint32) (*sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	reply, err := c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: c.sandboxConfig(name, attempt)})
	if err != nil {
		return nil, fmt.Errorf("RunPodSandbox %s: %w", name, err)
	}
	return c.inspect(ctx, reply.GetPodSandboxId())
}

// run makes a sandbox as a kubelet does: a failed one is removed and made again with the next attempt
// number, until ctx ends. failed, which may be nil, is called with each failure.
func (c *containerd) run(ctx context.Context, name string, failed func(error)) (*sandbox, error) {
	for attempt := uint32(0); ; attempt++ {
		s, err := c.try(ctx, name, attempt)
		if err == nil {
			return s, nil
		}
		if failed != nil {
			failed(err)
		}
		list, listErr := c.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if listErr != nil {
			return nil, errors.Join(err, listErr)
		}
		for _, old := range list.GetItems() {
			if old.GetMetadata().GetName() == name {
				_ = c.remove(ctx, old.GetId()) // tried again in the next round
			}
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(200 * time.Millisecond): // as a kubelet waits, but shorter
		}
	}
}

// runMany makes sandboxes name-0 and so on, all at the same time.
func (c *containerd) runMany(t *testing.T, name string, count int) []*sandbox {
	t.Helper()
	ctx := harness.Deadline(t, time.Minute)
	made := make([]*sandbox, count)
	harness.OK(t, harness.AtOnce(count, func(i int) (err error) {
		made[i], err = c.run(ctx, fmt.Sprintf("%s-%d", name, i), nil)
		return err
	}))
	return made
}

// inspect asks for a sandbox's address, network namespace and process.
func (c *containerd) inspect(ctx context.Context, id string) (*sandbox, error) {
	reply, err := c.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return nil, fmt.Errorf("PodSandboxStatus: %w", err)
	}
	status := reply.GetStatus()
	s := &sandbox{id: id, name: status.GetMetadata().GetName(), on: c}
	if state := status.GetState(); state != cri.PodSandboxState_SANDBOX_READY {
		return nil, fmt.Errorf("sandbox %s is %v", s.name, state)
	}
	if s.addr, err = netip.ParseAddr(status.GetNetwork().GetIp()); err != nil {
		return nil, fmt.Errorf("address of sandbox %s: %w", s.name, err)
	}
	// What containerd adds to the status when asked to be verbose.
	var info struct {
		PID         int `json:"pid"`
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(reply.GetInfo()["info"]), &info); err != nil {
		return nil, fmt.Errorf("verbose status of sandbox %s: %w", s.name, err)
	}
	s.pid = info.PID
	for _, n := range info.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			s.netns = n.Path
		}
	}
	if filepath.Dir(s.netns) != c.netnsDir() || s.pid == 0 {
		return nil, fmt.Errorf("verbose status of sandbox %s: want a process, and a network namespace in %s: %+v", s.name, c.netnsDir(), info)
	}
	return s, nil
}

// remove stops and removes a sandbox.
func (c *containerd) remove(ctx context.Context, id string) error {
	if _, err := c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("StopPodSandbox: %w", err)
	}
	if _, err := c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("RemovePodSandbox: %w", err)
	}
	return nil
}

// removeAll removes all sandboxes of a runtime, a few at a time.
func (c *containerd) removeAll(t *testing.T) {
	t.Helper()
	ctx := harness.Deadline(t, time.Minute)
	list, err := c.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	harness.OK(t, err)
	harness.OK(t, harness.AtOnce(len(list.GetItems()), func(i int) error { return c.remove(ctx, list.GetItems()[i].GetId()) }))
}

// forget makes the runtime lose a sandbox without a CNI call: containerd lists what it holds when it
// starts, so it must be restarted then.
func (c *containerd) forget(t *testing.T, s *sandbox) {
	t.Helper()
	harness.OK(t, unix.Kill(s.pid, unix.SIGKILL))
	harness.Eventually(t, patience, "delete the container once its process is", func() error {
		return c.ctr(t, "container", "delete", s.id)
	})
}

// dropNetns removes a sandbox's process and network namespace.
func (s *sandbox) dropNetns(t *testing.T) {
	t.Helper()
	_ = unix.Kill(s.pid, unix.SIGKILL) // may be gone
	harness.OK(t, unix.Unmount(s.netns, unix.MNT_DETACH))
	harness.OK(t, os.Remove(s.netns))
	harness.Eventually(t, patience, "the pause process ends", func() error {
		state, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(s.pid), "stat")) // none of one that is gone
		if len(state) > 0 && !strings.Contains(string(state), ") Z ") {
			return fmt.Errorf("it runs: %s", state)
		}
		return nil
	})
}

// connect opens a connection into the sandbox from a network namespace. The
// pause process may be slower than its runtime, and not listen yet.
func (s *sandbox) connect(t *testing.T, netns string) (conn *echo.Conn) {
	t.Helper()
	harness.Eventually(t, patience, "connect to "+s.name, func() (err error) {
		conn, err = echo.Connect(t.Context(), netns, "tcp", netip.AddrPortFrom(s.addr, echo.Port), netip.Addr{})
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("connect to %s: %v", s.name, err)
		}
		return err
	})
	return conn
}

// answers checks that the sandbox answers a network namespace, and sees the address from.
func (s *sandbox) answers(t *testing.T, netns string, from netip.Addr) {
	t.Helper()
	conn := s.connect(t, netns)
	defer conn.Close()
	reply, err := conn.Once("ping", patience)
	if err != nil {
		t.Errorf("ask %s (%s) from %s: %v", s.name, s.addr, from, err)
		return
	}
	if reply.You != from || reply.To != s.addr {
		t.Errorf("asked %s from %s, and it says %v", s.addr, from, reply)
	}
}

// converse asks a sandbox over one connection from a network namespace.
func (s *sandbox) converse(t *testing.T, netns string) *harness.Conversations {
	t.Helper()
	return harness.Converse(t, 10*time.Millisecond, 5*time.Second, s.connect(t, netns))
}
