// Package rpcfake is a fake node daemon for tests: it answers as configured, over a
// real socket and a real gRPC server, and records its requests.
package rpcfake

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berthnet/berth/internal/rpc"
)

// Node implements rpc.NodeServer. A verb whose function is nil succeeds: Add
// with DefaultReply, the others with an empty reply.
type Node struct {
	rpc.UnimplementedNodeServer

	OnAdd    func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error)
	OnDel    func(context.Context, *rpc.DelRequest) (*rpc.DelReply, error)
	OnCheck  func(context.Context, *rpc.CheckRequest) (*rpc.CheckReply, error)
	OnGC     func(context.Context, *rpc.GCRequest) (*rpc.GCReply, error)
	OnStatus func(context.Context, *rpc.StatusRequest) (*rpc.StatusReply, error)

	mu    sync.Mutex // guards calls
	calls []proto.Message
}

// DefaultReply is the reply of an Add without a function: the interfaces, routes
// and gateways of an IPv4 pod in a VPC.
func DefaultReply(ifName string) *rpc.AddReply {
	return &rpc.AddReply{
		Host:      &rpc.Interface{Name: "bth0123456789ab", Mac: "0a:00:00:00:00:01"},
		Sandbox:   &rpc.Interface{Name: ifName, Mac: "0a:00:00:00:00:02"},
		Addresses: []string{"10.0.97.30/32"},
		Routes: []*rpc.Route{
			{Dst: "169.254.1.1/32"},
			{Dst: "0.0.0.0/0", Gateway: "169.254.1.1"},
		},
		Mtu: 9001,
	}
}

// Failure is an error as the daemon returns it: a status with the error for the
// runtime.
func Failure(code uint32, message, details string) error {
	st, err := status.New(codes.Internal, message).WithDetails(&rpc.Failure{Code: code, Message: message, Details: details})
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return st.Err()
}

// Listen makes the socket of a daemon in a temporary directory of the test, and
// returns its path.
func Listen(t testing.TB) (net.Listener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berthd.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatalf("listening: %v", err)
	}
	return l, path
}

// Serve serves n on l until the test ends, or the returned server is stopped.
func Serve(t testing.TB, l net.Listener, n *Node, o ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	s := grpc.NewServer(o...)
	rpc.RegisterNodeServer(s, n)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it was serving
			t.Errorf("serving: %v", err)
		}
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return s
}

// Start is Listen and Serve.
func Start(t testing.TB, n *Node) (socket string) {
	t.Helper()
	l, path := Listen(t)
	Serve(t, l, n)
	return path
}

// Calls are the requests so far, in order.
func (n *Node) Calls() []proto.Message {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

func handle[Req, Reply proto.Message](ctx context.Context, n *Node, req Req, on func(context.Context, Req) (Reply, error), otherwise Reply) (Reply, error) {
	n.mu.Lock()
	n.calls = append(n.calls, req)
	n.mu.Unlock()
	if on == nil {
		return otherwise, nil
	}
	return on(ctx, req)
}

// Add implements rpc.NodeServer.
func (n *Node) Add(ctx context.Context, req *rpc.AddRequest) (*rpc.AddReply, error) {
	return handle(ctx, n, req, n.OnAdd, DefaultReply(req.GetAttachment().GetIfName()))
}

// Del implements rpc.NodeServer.
func (n *Node) Del(ctx context.Context, req *rpc.DelRequest) (*rpc.DelReply, error) {
	return handle(ctx, n, req, n.OnDel, &rpc.DelReply{})
}

// Check implements rpc.NodeServer.
func (n *Node) Check(ctx context.Context, req *rpc.CheckRequest) (*rpc.CheckReply, error) {
	return handle(ctx, n, req, n.OnCheck, &rpc.CheckReply{})
}

// GC implements rpc.NodeServer.
func (n *Node) GC(ctx context.Context, req *rpc.GCRequest) (*rpc.GCReply, error) {
	return handle(ctx, n, req, n.OnGC, &rpc.GCReply{})
}

// Status implements rpc.NodeServer.
func (n *Node) Status(ctx context.Context, req *rpc.StatusRequest) (*rpc.StatusReply, error) {
	return handle(ctx, n, req, n.OnStatus, &rpc.StatusReply{})
}
