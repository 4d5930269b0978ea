package daemon

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/rpc"
)

// The container of berthd sees namespaces that are made after it started only
// if their directory is mounted with HostToContainer propagation, which the
// kernel calls slave (mount_namespaces(7)). These tests run a daemon in a mount
// namespace of its own, with that propagation and without.

// childDir tells the second process of a test which directory to work in, and
// childPropagation how mounts propagate to it.
const (
	childDir         = "BTD_CHILD_DIR"
	childPropagation = "BTD_CHILD_PROPAGATION"
)

func TestNamespacesReachADaemonInAContainer(t *testing.T) {
	for propagation, works := range map[string]bool{"slave": true, "private": false} {
		t.Run(propagation, func(t *testing.T) {
			dir := sharedDir(t)
			startChild(t, dir, propagation)
			ns := mountNetns(t, filepath.Join(dir, "netns")) // after the daemon started
			_, err := rpc.NewNodeClient(dial(t, filepath.Join(dir, "berthd.sock"))).Add(within(t), addOf("a", ns))
			if works {
				if err != nil {
					t.Errorf("ADD: %v", err)
				}
				return
			}
			if got := wantFailure(t, err, types.ErrInvalidNetNS).GetMessage(); !strings.Contains(got, "HostToContainer") {
				t.Errorf("message %q does not name the cause", got)
			}
		})
	}
}

// TestChildDaemon is the daemon of the test above, in a process of its own.
func TestChildDaemon(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		return // only ever run by TestNamespacesReachADaemonInAContainer
	}
	flag := uintptr(unix.MS_PRIVATE)
	if os.Getenv(childPropagation) == "slave" {
		flag = unix.MS_SLAVE
	}
	if err := unix.Mount("", "/", "", flag|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, 1)
	m.dir = dir
	m.start(time.Hour)
	os.Stdout.WriteString("serving\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // the end of the other process ends this one
}

// startChild runs TestChildDaemon and returns once it serves.
func startChild(t *testing.T, dir, propagation string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildDaemon$", "-test.v")
	cmd.Env = append(os.Environ(), childDir+"="+dir, childPropagation+"="+propagation)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the daemon's process: %v\n%s", err, log.String())
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		log.WriteString(lines.Text() + "\n")
		if lines.Text() == "serving" {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return
		}
	}
	t.Fatal("the daemon's process ended early")
}

// sharedDir is a directory whose mounts propagate to others, as those of a
// systemd machine do.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "btd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatalf("this test mounts and needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

// mountNetns makes a network namespace and binds it to path, as runtimes do.
func mountNetns(t *testing.T, path string) string {
	t.Helper()
	from, _ := newSpace(t)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}
