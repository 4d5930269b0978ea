package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/internal/node/daemon/cnierror"
)

// The container of berthd sees namespaces that are made after it started only
// if their directory is mounted with HostToContainer propagation, which the
// kernel calls slave (mount_namespaces(7)). This test makes an ADD in a mount
// namespace of its own, with that propagation and without.

func TestNamespacesReachADaemonInAContainer(t *testing.T) {
	for name, tt := range map[string]struct {
		propagation uintptr
		works       bool
	}{"slave": {unix.MS_SLAVE, true}, "private": {unix.MS_PRIVATE, false}} {
		t.Run(name, func(t *testing.T) {
			dir := sharedDir(t)
			s := newMachine(t, 1).start(time.Hour)
			add := inMountNamespace(t, tt.propagation, func(netns string) error {
				_, err := s.attach(within(t), "a", netns)
				return err
			})
			err := add(mountNetns(t, filepath.Join(dir, "netns"))) // made after the mount namespace
			if tt.works {
				if err != nil {
					t.Errorf("ADD: %v", err)
				}
				return
			}
			if f := cnierror.Of(err); err == nil || f.Code != types.ErrInvalidNetNS || !strings.Contains(f.Message, "HostToContainer") {
				t.Errorf("%v does not name the cause", err)
			}
		})
	}
}

// inMountNamespace creates a mount namespace with one-way propagation. do runs in it when the returned
// function is called, which must be once.
func inMountNamespace(t *testing.T, propagation uintptr, do func(path string) error) func(path string) error {
	t.Helper()
	paths, errs := make(chan string), make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its mounts
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", propagation|unix.MS_REC, "")
		}
		errs <- err
		if err == nil {
			errs <- do(<-paths)
		}
	}()
	must(t, <-errs)
	return func(path string) error {
		paths <- path
		return <-errs
	}
}

// sharedDir is a directory whose mounts propagate to others, as those of a
// systemd machine do.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "btd-")
	must(t, err)
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatalf("this test mounts and needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	return dir
}

// mountNetns makes a network namespace and binds it to path, as runtimes do.
func mountNetns(t *testing.T, path string) string {
	t.Helper()
	from, _ := newSpace(t)
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, unix.Mount(from, path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

// runtimeService is a container runtime that has some sandboxes.
type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
	ids []string
}

func (s *runtimeService) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	reply := &cri.ListPodSandboxResponse{}
	for _, id := range s.ids {
		reply.Items = append(reply.Items, &cri.PodSandbox{Id: id, State: cri.PodSandboxState_SANDBOX_NOTREADY})
	}
	return reply, nil
}

func TestRuntimeListsItsSandboxes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	r, err := NewRuntime(socket)
	must(t, err)
	defer r.Close()
	if _, err := r.Sandboxes(within(t)); err == nil {
		t.Error("a runtime that is down listed sandboxes")
	}
	l, err := net.Listen("unix", socket)
	must(t, err)
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, &runtimeService{ids: []string{"a", "b"}})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	second, err := NewRuntime(socket) // without the first one's pause before it dials again
	must(t, err)
	defer second.Close()
	got, err := second.Sandboxes(within(t))
	if diff := cmp.Diff(map[string]bool{"a": true, "b": true}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}
