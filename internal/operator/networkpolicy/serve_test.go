package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy/wire"
)

// stream is a call of a node.
type stream struct {
	grpc.ServerStream
	ctx context.Context
	in  chan *wire.FromNode
	out chan *wire.FromOperator
}

func (s stream) Context() context.Context { return s.ctx }

func (s stream) Send(m *wire.FromOperator) error {
	s.out <- m
	return nil
}

func (s stream) Recv() (*wire.FromNode, error) {
	select {
	case m := <-s.in:
		return m, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// follow calls a server as a node, and returns the call's end.
func follow(t *testing.T, s *Server) (stream, <-chan error) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer t"))
	call, ended := stream{ctx: ctx, in: make(chan *wire.FromNode, 10), out: make(chan *wire.FromOperator, 10)}, make(chan error, 1)
	go func() { ended <- s.Follow(call) }()
	synctest.Wait()
	return call, ended
}

func newServer() *Server {
	return NewServer(Server{
		Feed: feed.New(), Node: func(context.Context, string) (string, error) { return "node-a", nil },
		MayAssign: func(context.Context, string, types.NamespacedName, []netip.Addr) (bool, error) { return false, nil },
		Serves:    func() error { return nil }, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
		IsNode: func(netip.Addr) bool { return true },
	})
}

// The call of a node ends when the node calls again: the former one is sent nothing more, and must not assign addresses.
func TestANodeHasOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		_, first := follow(t, s)
		_, second := follow(t, s)
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		select {
		case err := <-first:
			if status.Code(err) != codes.Aborted {
				t.Errorf("the first call ended with %v, want Aborted", err)
			}
		default:
			t.Error("the first call goes on")
		}
		select {
		case err := <-second:
			t.Errorf("the second call ended with %v", err)
		default:
		}
	})
}

// A node cannot fill the sets of other nodes with addresses of one pod, nor the operator's log.
func TestAddressesOfAPodAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var logged strings.Builder
		s.Log = slog.New(slog.NewTextHandler(&logged, nil))
		call, _ := follow(t, s)
		a := &wire.Assign{Id: 1, Namespace: "shop", Name: "web", Uid: "u"}
		for i := range 1000 {
			a.Addresses = append(a.Addresses, fmt.Appendf(nil, "%04d", i))
		}
		for n := 1; n <= 3; n++ {
			if n == 3 {
				time.Sleep(refusalEvery) //nolint:forbidigo // virtual time
			}
			call.in <- &wire.FromNode{What: &wire.FromNode_Assign{Assign: a}}
			var answer *wire.Assigned
			for answer == nil {
				answer = (<-call.out).GetAssigned()
			}
			if !strings.Contains(answer.Refused, "1000 addresses: expected up to 16") {
				t.Errorf("refused = %q", answer.Refused)
			}
			if lines := strings.Count(logged.String(), "rejected addresses"); lines != (n+1)/2 {
				t.Errorf("%d lines after %d refusals, want one a minute:\n%s", lines, n, &logged)
			}
		}
	})
}

// still is a clock that does not move.
type still struct{ clock.Real }

func (still) Now() time.Time { return time.Unix(1e9, 0) }

// Callers that are not at a node's address cause a bounded number of requests to the API server.
func TestStrangersCauseFewReviews(t *testing.T) {
	var reviews atomic.Int32
	var isNode atomic.Bool
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	defer server.Stop()
	wire.RegisterPoliciesServer(server, NewServer(Server{
		Node: func(context.Context, string) (string, error) {
			reviews.Add(1)
			return "", errors.New("not a node's token")
		},
		IsNode: func(netip.Addr) bool { return isNode.Load() },
		Clock:  still{}, Log: slog.New(slog.DiscardHandler),
	}))
	go func() { _ = server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func() codes.Code {
		stream, err := wire.NewPoliciesClient(conn).Follow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		return status.Code(err)
	}
	for i := range 3 * strangersBurst {
		want := codes.Unauthenticated
		if i >= strangersBurst {
			want = codes.ResourceExhausted
		}
		if got := call(); got != want {
			t.Fatalf("call %d from an address that is not a node's: %s, want %s", i+1, got, want)
		}
	}
	isNode.Store(true)
	if got := call(); got != codes.Unauthenticated || reviews.Load() != strangersBurst+1 {
		t.Errorf("a call from a node's address: %s after %d reviews, want Unauthenticated after %d", got, reviews.Load(), strangersBurst+1)
	}
}
