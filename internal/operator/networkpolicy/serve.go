package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy/wire"
)

var _ = failpoint.Register(
	"operator.policies.publish.before", "operator.policies.publish.after",
	"operator.policies.send.before", "operator.policies.send.after", "operator.policies.assigned",
)

// Server tells nodes about policies. It serves while it leads.
type Server struct {
	wire.UnimplementedPoliciesServer
	Feed *feed.Feed
	// Node returns the name of the node to which a token is bound, or an error if it is not that of a node's daemon.
	Node func(ctx context.Context, token string) (string, error)
	// MayAssign returns an error if a node may not give one of the addresses to a pod of it.
	MayAssign func(ctx context.Context, node string, pod types.NamespacedName, addrs []netip.Addr) error
	// Serves returns an error while this operator cannot tell nodes anything: it does not lead, or has not read the cluster yet.
	Serves func() error
	Clock  clock.Clock
	Log    *slog.Logger
}

const (
	// gather is how long changes are gathered before a node is told of them.
	gather = 20 * time.Millisecond
	// confirmWait bounds how long a new pod's address waits for the nodes that allow it. Their policies then take effect a
	// little later, and what the pod sends until then is dropped and sent again.
	confirmWait = 500 * time.Millisecond
	// maxAssigns is how many addresses of a node may wait for that at once.
	maxAssigns = 64
)

// Follow implements wire.PoliciesServer.
func (s *Server) Follow(stream wire.Policies_FollowServer) error {
	ctx := stream.Context()
	node, err := s.Node(ctx, token(ctx))
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if err := s.Serves(); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &call{Server: s, node: node, subscriber: s.Feed.Subscribe(node), answers: make(chan *wire.Assigned, maxAssigns), places: make(chan struct{}, maxAssigns)}
	defer f.subscriber.Close()
	go func() { cancel(f.receive(ctx, stream)) }() // ends with the call
	if err := f.send(ctx, stream); !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// token is the bearer token of a call (RFC 6750, section 2.1); empty: it has none.
func token(ctx context.Context) string {
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if token, ok := strings.CutPrefix(v, "Bearer "); ok {
			return token
		}
	}
	return ""
}

// call is one node's call.
type call struct {
	*Server
	node       string
	subscriber *feed.Subscriber
	answers    chan *wire.Assigned
	places     chan struct{} // one for each address that waits
}

// send sends updates and answers until ctx ends.
func (f *call) send(ctx context.Context, stream wire.Policies_FollowServer) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case a := <-f.answers:
			if err := stream.Send(&wire.FromOperator{What: &wire.FromOperator_Assigned{Assigned: a}}); err != nil {
				return err
			}
		case <-f.subscriber.Ready():
			select {
			case <-f.Clock.After(gather):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			u := f.subscriber.Next()
			if u.Version == 0 {
				continue
			}
			err := failpoint.Around("operator.policies.send", func() error {
				for _, part := range wire.Encode(u) {
					if err := stream.Send(&wire.FromOperator{What: &wire.FromOperator_Update{Update: part}}); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
}

// receive reads what the node says until it ends the call.
func (f *call) receive(ctx context.Context, stream wire.Policies_FollowServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch what := m.What.(type) {
		case *wire.FromNode_Enforced:
			f.subscriber.Confirm(what.Enforced)
		case *wire.FromNode_Assign:
			select {
			case f.places <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			go func() {
				defer func() { <-f.places }()
				f.answer(ctx, what.Assign)
			}()
		}
	}
}

// answer answers an Assign once the nodes concerned enforce it, or did not in time.
func (f *call) answer(ctx context.Context, a *wire.Assign) {
	reply := &wire.Assigned{Id: a.Id}
	if err := f.assign(ctx, a); err != nil {
		reply.Refused = err.Error()
		f.Log.Warn("addresses that a node assigned count for nobody", "node", f.node, "namespace", a.Namespace, "pod", a.Name, "err", err)
	}
	select {
	case f.answers <- reply:
	case <-ctx.Done():
	}
}

func (f *call) assign(ctx context.Context, a *wire.Assign) error {
	var addrs []netip.Addr
	for _, b := range a.Addresses {
		addr, ok := netip.AddrFromSlice(b)
		if !ok || addr.Is4In6() {
			return fmt.Errorf("address %x: expected 4 bytes of IPv4 or 16 of IPv6", b)
		}
		addrs = append(addrs, addr)
	}
	name := types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
	if err := f.MayAssign(ctx, f.node, name, addrs); err != nil {
		return err
	}
	done, err := f.Feed.Assign(f.node, name, types.UID(a.Uid), addrs)
	if err == nil {
		err = failpoint.Hit("operator.policies.assigned")
	}
	if err != nil {
		return err
	}
	select {
	case <-done:
	case <-f.Clock.After(confirmWait):
	case <-ctx.Done():
	}
	return nil
}
