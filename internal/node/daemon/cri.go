package daemon

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a container runtime behind its CRI socket.
type Runtime struct {
	conn   *grpc.ClientConn
	client runtime.RuntimeServiceClient
}

var _ Sandboxes = (*Runtime)(nil)

// NewRuntime returns the runtime at a unix socket. It connects with the first call.
func NewRuntime(socket string) (*Runtime, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20))) // the kubelet's own limit
	if err != nil {
		return nil, fmt.Errorf("the container runtime at %s: %w", socket, err)
	}
	return &Runtime{conn, runtime.NewRuntimeServiceClient(conn)}, nil
}

// Sandboxes implements Sandboxes: all sandboxes that the runtime has not removed, including stopped
// ones. A sandbox ID is CNI's container ID.
func (r *Runtime) Sandboxes(ctx context.Context) (map[string]bool, error) {
	reply, err := r.client.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing the runtime's sandboxes: %w", err)
	}
	ids := make(map[string]bool, len(reply.GetItems()))
	for _, s := range reply.GetItems() {
		ids[s.GetId()] = true
	}
	return ids, nil
}

// Close ends the connection.
func (r *Runtime) Close() error { return r.conn.Close() }
