package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
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

// Server sends nodes the policies of their pods. It serves while it leads.
type Server struct {
	wire.UnimplementedPoliciesServer
	Feed *feed.Feed
	// Node returns the name of the node to which a token is bound, or an error if it is not that of a node's daemon.
	Node func(ctx context.Context, token string) (string, error)
	// IsNode reports whether an address is a node's. Other callers' tokens are reviewed at a bounded rate. Nil: all are nodes.
	IsNode func(netip.Addr) bool
	// MayAssign returns an error if a node may not give one of the addresses to a pod of it. confirmed: all of them are known to be
	// the node's or the pod's, not only possible.
	MayAssign func(ctx context.Context, node string, pod types.NamespacedName, addrs []netip.Addr) (confirmed bool, err error)
	// Serves returns an error while this operator cannot serve nodes: it does not lead, or has not read the cluster yet.
	Serves func() error
	Clock  clock.Clock
	Log    *slog.Logger

	strangers *rate.Limiter // of callers that are no nodes
	refusals  *refusals
}

// NewServer completes a Server.
func NewServer(s Server) *Server {
	s.strangers = rate.NewLimiter(strangersPerSecond, strangersBurst)
	s.refusals = &refusals{logged: map[string]time.Time{}}
	return &s
}

// refusals bound the log lines about addresses that nodes must not assign, of which a node may send any number.
type refusals struct {
	mu     sync.Mutex           // guards logged
	logged map[string]time.Time // the last line about a node
}

// refusalEvery is the shortest time between two lines about a node.
const refusalEvery = time.Minute

// due reports whether a refusal is logged.
func (r *refusals) due(node string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.logged, func(_ string, at time.Time) bool { return now.Sub(at) >= refusalEvery })
	if _, recent := r.logged[node]; recent {
		return false
	}
	r.logged[node] = now
	return true
}

const (
	// gather is how long changes are gathered after a node was sent some, until it is sent more.
	gather = 20 * time.Millisecond
	// confirmWait bounds how long a new pod's address waits for the nodes that allow it. Their policies then take effect a
	// little later, and what the pod sends until then is dropped and sent again.
	confirmWait = 500 * time.Millisecond
	// maxAssigns is how many addresses of a node may wait for that at once.
	maxAssigns = 64
	// maxAddresses is the most addresses of a pod's first interface.
	maxAddresses = 16
	// A review of a token is a request to the API server. Callers that are not at a node's address, such as pods, may cause
	// strangersPerSecond of them in all, after a burst of strangersBurst.
	strangersPerSecond, strangersBurst = 5, 20
)

// Follow implements wire.PoliciesServer.
func (s *Server) Follow(stream wire.Policies_FollowServer) error {
	ctx := stream.Context()
	if !s.isNode(ctx) && !s.strangers.AllowN(s.Clock.Now(), 1) {
		return status.Error(codes.ResourceExhausted, "too many calls from addresses that are not a node's: try again later")
	}
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

// isNode reports whether a call comes from a node's address.
func (s *Server) isNode(ctx context.Context) bool {
	if s.IsNode == nil {
		return true
	}
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return false
	}
	at, err := netip.ParseAddrPort(p.Addr.String())
	return err == nil && s.IsNode(at.Addr().Unmap())
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
	var last time.Time // when the node was sent changes
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.subscriber.Ended():
			return status.Errorf(codes.Aborted, "node %s has called again", f.node)
		case a := <-f.answers:
			if err := stream.Send(&wire.FromOperator{What: &wire.FromOperator_Assigned{Assigned: a}}); err != nil {
				return err
			}
		case <-f.subscriber.Ready():
			select {
			case <-f.Clock.After(last.Add(gather).Sub(f.Clock.Now())):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			u := f.subscriber.Next()
			if u.Version == 0 {
				continue
			}
			last = f.Clock.Now()
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
			done, err := f.assign(ctx, what.Assign) // in the order of messages: the pod that has an address last keeps it
			go func() {
				defer func() { <-f.places }()
				f.answer(ctx, what.Assign, done, err)
			}()
		}
	}
}

// answer answers an Assign once the nodes concerned enforce it, or did not in time.
func (f *call) answer(ctx context.Context, a *wire.Assign, done <-chan struct{}, err error) {
	reply := &wire.Assigned{Id: a.Id}
	if err != nil {
		reply.Refused = err.Error()
		if f.refusals.due(f.node, f.Clock.Now()) {
			f.Log.Warn("refused addresses that a node reported for a pod: policies do not match the pod by them (logged once a minute for each node)", "node", f.node, "namespace", a.Namespace, "pod", a.Name, "err", err)
		}
	} else {
		select {
		case <-done:
		case <-f.Clock.After(confirmWait):
		case <-ctx.Done():
		}
	}
	select {
	case f.answers <- reply:
	case <-ctx.Done():
	}
}

// assign has the addresses of an Assign count. The channel is closed once the nodes concerned enforce them.
func (f *call) assign(ctx context.Context, a *wire.Assign) (<-chan struct{}, error) {
	if n := len(a.Addresses); n > maxAddresses {
		return nil, fmt.Errorf("%d addresses: expected up to %d", n, maxAddresses)
	}
	var addrs []netip.Addr
	for _, b := range a.Addresses {
		addr, ok := netip.AddrFromSlice(b)
		if !ok || addr.Is4In6() {
			return nil, fmt.Errorf("address %x: expected 4 bytes of IPv4 or 16 of IPv6", b)
		}
		addrs = append(addrs, addr)
	}
	name := types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
	confirmed, err := f.MayAssign(ctx, f.node, name, addrs)
	if err != nil {
		return nil, err
	}
	done, err := f.Feed.Assign(f.node, name, types.UID(a.Uid), addrs, confirmed)
	if err == nil {
		err = failpoint.Hit("operator.policies.assigned")
	}
	return done, err
}
