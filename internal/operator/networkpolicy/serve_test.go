package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy/wire"
)

// counting is an API server that knows no token.
type counting struct {
	client.Client
	reviews int
}

func (c *counting) Create(context.Context, client.Object, ...client.CreateOption) error {
	c.reviews++
	return errors.New("no such token")
}

// A caller without a valid token cannot have the API server review tokens as fast as it can call.
func TestReviewsOfACallerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &counting{}
		r := &reviewer{api: api, clock: clock.Real{}}
		from := func(ip byte) context.Context {
			return peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, ip), Port: 4000}})
		}
		for range 1000 {
			_, _ = r.node(from(1), "guess")
		}
		if api.reviews != maxReviews {
			t.Errorf("%d reviews of 1,000 calls, want %d", api.reviews, maxReviews)
		}
		if _, err := r.node(from(1), "guess"); !errors.Is(err, errManyCalls) {
			t.Errorf("error = %v, want %v", err, errManyCalls)
		}
		if _, err := r.node(from(2), "token"); errors.Is(err, errManyCalls) {
			t.Errorf("error of another caller = %v", err)
		}
		time.Sleep(refusedFor)
		synctest.Wait()
		if _, err := r.node(from(1), "token"); errors.Is(err, errManyCalls) {
			t.Errorf("error after a while = %v", err)
		}
		time.Sleep(refusedFor)
		synctest.Wait()
		if len(r.busy) > 0 {
			t.Errorf("%d callers are left", len(r.busy))
		}
	})
}

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
	return &Server{
		Feed: feed.New(), Node: func(context.Context, string) (string, error) { return "node-a", nil },
		MayAssign: func(context.Context, string, types.NamespacedName, []netip.Addr) error { return nil },
		Serves:    func() error { return nil }, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
	}
}

// The call of a node ends when the node calls again: the former one is told nothing more, and must not assign addresses.
func TestANodeHasOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		_, first := follow(t, s)
		_, second := follow(t, s)
		time.Sleep(time.Second)
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

// A node cannot fill the sets of other nodes with addresses of one pod.
func TestAddressesOfAPodAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		call, _ := follow(t, s)
		a := &wire.Assign{Id: 1, Namespace: "shop", Name: "web", Uid: "u"}
		for i := range 1000 {
			a.Addresses = append(a.Addresses, fmt.Appendf(nil, "%04d", i))
		}
		call.in <- &wire.FromNode{What: &wire.FromNode_Assign{Assign: a}}
		for {
			if answer := (<-call.out).GetAssigned(); answer != nil {
				if !strings.Contains(answer.Refused, "1000 addresses: expected up to 16") {
					t.Errorf("refused = %q", answer.Refused)
				}
				return
			}
		}
	})
}
