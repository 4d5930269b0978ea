package daemon

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeService is a container runtime that has some sandboxes.
type runtimeService struct {
	runtime.UnimplementedRuntimeServiceServer
	ids []string
}

func (s *runtimeService) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	reply := &runtime.ListPodSandboxResponse{}
	for _, id := range s.ids {
		reply.Items = append(reply.Items, &runtime.PodSandbox{Id: id, State: runtime.PodSandboxState_SANDBOX_NOTREADY})
	}
	return reply, nil
}

func TestRuntimeListsItsSandboxes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	r, err := NewRuntime(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Sandboxes(within(t)); err == nil {
		t.Error("a runtime that is down listed sandboxes")
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtime.RegisterRuntimeServiceServer(server, &runtimeService{ids: []string{"a", "b"}})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	second, err := NewRuntime(socket) // without the first one's pause before it dials again
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	got, err := second.Sandboxes(within(t))
	if diff := cmp.Diff(map[string]bool{"a": true, "b": true}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}
