package networkpolicy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/policy/wire"
)

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
