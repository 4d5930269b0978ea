package unary_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/rpcfake"
	"github.com/berthnet/berth/internal/rpc/unary"
)

// must ends the test with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const addMethod = "/berth.v1.Node/Add"

func dial(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	must(t, err)
	return conn
}

func add(ctx context.Context, t *testing.T, socket string, req *rpc.AddRequest) (*rpc.AddReply, error) {
	t.Helper()
	return call(ctx, t, dial(t, socket), addMethod, req)
}

func call(ctx context.Context, t *testing.T, conn net.Conn, method string, req *rpc.AddRequest) (*rpc.AddReply, error) {
	t.Helper()
	message, err := proto.Marshal(req)
	must(t, err)
	reply := &rpc.AddReply{}
	answer, err := unary.Call(ctx, conn, method, message)
	if err == nil {
		must(t, proto.Unmarshal(answer, reply))
	}
	return reply, err
}

// wantCode checks the code of a call's error.
func wantCode(t *testing.T, err error, want unary.Code) {
	t.Helper()
	if got := unary.CodeOf(err); got != want {
		t.Errorf("code %d (%v), want %d", got, err, want)
	}
}

// The largest of these requests needs window updates from the server, the
// largest reply spans hundreds of frames.
func TestRequestAndReplyArriveWhole(t *testing.T) {
	for _, size := range []int{0, 1, 16 << 10, 65535, 65536, 300 << 10, 3 << 20} {
		text := strings.Repeat("x", size)
		n := &rpcfake.Node{OnAdd: func(_ context.Context, r *rpc.AddRequest) (*rpc.AddReply, error) {
			return &rpc.AddReply{Addresses: []string{r.GetNetns()}}, nil
		}}
		reply, err := add(t.Context(), t, rpcfake.Start(t, n), &rpc.AddRequest{Netns: text})
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if got := reply.GetAddresses(); len(got) != 1 || got[0] != text {
			t.Errorf("%d bytes: came back otherwise", size)
		}
	}
}

func TestReplyTooLarge(t *testing.T) {
	n := &rpcfake.Node{OnAdd: func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) {
		return &rpc.AddReply{Addresses: []string{strings.Repeat("x", unary.MaxReply)}}, nil
	}}
	_, err := add(t.Context(), t, rpcfake.Start(t, n), &rpc.AddRequest{})
	wantCode(t, err, unary.ResourceExhausted)
}

func TestStatusComesWithMessageAndDetails(t *testing.T) {
	const message = "no address:\n100 % of 子网 subnet-1 is used"
	n := &rpcfake.Node{OnAdd: func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) {
		return nil, rpcfake.Failure(11, message, "details")
	}}
	_, err := add(t.Context(), t, rpcfake.Start(t, n), &rpc.AddRequest{})
	var e *unary.Error
	if !errors.As(err, &e) || e.Code != unary.Internal || e.Message != message {
		t.Fatalf("got %#v, want Internal %q", err, message)
	}
	got, want := &rpc.Failure{}, &rpc.Failure{Code: 11, Message: message, Details: "details"}
	if len(e.Details) != 1 || e.Details[0].Type != "berth.v1.Failure" || proto.Unmarshal(e.Details[0].Value, got) != nil || !proto.Equal(got, want) {
		t.Errorf("details %v, want %v", e.Details, want)
	}
}

func TestPlainStatus(t *testing.T) {
	const message = "a%2Fb %ü\x01"
	n := &rpcfake.Node{OnAdd: func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) {
		return nil, status.Error(codes.FailedPrecondition, message)
	}}
	_, err := add(t.Context(), t, rpcfake.Start(t, n), &rpc.AddRequest{})
	if wantCode(t, err, unary.Code(codes.FailedPrecondition)); err == nil || err.Error() != message {
		t.Errorf("message of %v, want %q", err, message)
	}
}

func TestUnknownMethod(t *testing.T) {
	_, err := call(t.Context(), t, dial(t, rpcfake.Start(t, &rpcfake.Node{})), "/berth.v1.Node/Fly", &rpc.AddRequest{})
	wantCode(t, err, unary.Unimplemented)
}

func TestServerLearnsOfDeadlineAndHeaders(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	n := &rpcfake.Node{OnAdd: func(ctx context.Context, _ *rpc.AddRequest) (*rpc.AddReply, error) {
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); !ok || left < 50*time.Minute || left > 61*time.Minute {
			t.Errorf("deadline in %v, want about an hour", left)
		}
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("user-agent")) != 1 {
			t.Errorf("metadata %v has no user-agent", md)
		}
		return &rpc.AddReply{}, nil
	}}
	if _, err := add(ctx, t, rpcfake.Start(t, n), &rpc.AddRequest{}); err != nil {
		t.Error(err)
	}
}

// waiting is an Add that never answers, and says when it was asked and when
// its caller was seen to go.
func waiting() (n *rpcfake.Node, asked, left chan struct{}) {
	asked, left = make(chan struct{}), make(chan struct{})
	n = &rpcfake.Node{OnAdd: func(ctx context.Context, _ *rpc.AddRequest) (*rpc.AddReply, error) {
		close(asked)
		<-ctx.Done()
		close(left)
		return nil, ctx.Err()
	}}
	return n, asked, left
}

func TestDeadlinePasses(t *testing.T) {
	for wait := 200 * time.Millisecond; ; wait *= 2 { // until the request has time to arrive
		n, asked, left := waiting()
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := add(ctx, t, rpcfake.Start(t, n), &rpc.AddRequest{})
		cancel()
		wantCode(t, err, unary.DeadlineExceeded)
		select {
		case <-asked:
			<-left
			return
		default:
		}
	}
}

func TestCancelReachesServer(t *testing.T) {
	n, asked, left := waiting()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	_, err := add(ctx, t, rpcfake.Start(t, n), &rpc.AddRequest{})
	wantCode(t, err, unary.Canceled)
	<-left
}

func TestServerStopsDuringCall(t *testing.T) {
	n, asked, _ := waiting()
	l, socket := rpcfake.Listen(t)
	s := rpcfake.Serve(t, l, n)
	go func() {
		<-asked
		s.Stop()
	}()
	_, err := add(t.Context(), t, socket, &rpc.AddRequest{})
	wantCode(t, err, unary.Unavailable)
}

// A server that drains lets the call finish: GOAWAY does not end it.
func TestServerDrainsDuringCall(t *testing.T) {
	asked, draining := make(chan struct{}), make(chan struct{})
	n := &rpcfake.Node{OnAdd: func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) {
		close(asked)
		<-draining
		return rpcfake.DefaultReply("eth0"), nil
	}}
	l, socket := rpcfake.Listen(t)
	s := rpcfake.Serve(t, l, n)
	stopped := make(chan struct{})
	go func() {
		<-asked
		go func() { s.GracefulStop(); close(stopped) }()
		for { // the listener closes when the drain has begun
			c, err := net.Dial("unix", socket)
			if err != nil {
				break
			}
			_ = c.Close()
		}
		close(draining)
	}()
	reply, err := add(t.Context(), t, socket, &rpc.AddRequest{})
	if err != nil || len(reply.GetAddresses()) != 1 {
		t.Errorf("got %v, %v", reply, err)
	}
	<-stopped
}

func TestServerWithItsOwnLimits(t *testing.T) {
	n := &rpcfake.Node{OnAdd: func(_ context.Context, r *rpc.AddRequest) (*rpc.AddReply, error) {
		return &rpc.AddReply{Addresses: []string{r.GetNetns()}}, nil
	}}
	l, socket := rpcfake.Listen(t)
	rpcfake.Serve(t, l, n, grpc.StaticStreamWindowSize(128<<10), grpc.StaticConnWindowSize(96<<10), grpc.MaxRecvMsgSize(1<<20))
	if _, err := add(t.Context(), t, socket, &rpc.AddRequest{Netns: strings.Repeat("x", 700<<10)}); err != nil {
		t.Error(err)
	}
	_, err := add(t.Context(), t, socket, &rpc.AddRequest{Netns: strings.Repeat("x", 1<<20)})
	wantCode(t, err, unary.ResourceExhausted)
}

func TestCodesAreGRPCs(t *testing.T) {
	for ours, theirs := range map[unary.Code]codes.Code{
		unary.OK: codes.OK, unary.Canceled: codes.Canceled, unary.Unknown: codes.Unknown, unary.DeadlineExceeded: codes.DeadlineExceeded,
		unary.PermissionDenied: codes.PermissionDenied, unary.ResourceExhausted: codes.ResourceExhausted, unary.Unimplemented: codes.Unimplemented,
		unary.Internal: codes.Internal, unary.Unavailable: codes.Unavailable, unary.Unauthenticated: codes.Unauthenticated,
	} {
		if uint32(ours) != uint32(theirs) {
			t.Errorf("%v is %d here", theirs, ours)
		}
	}
}
