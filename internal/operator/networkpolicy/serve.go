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
	// Node returns the name of the node that a token is bound to, or an error if the token is not a node's daemon's.
	Node func(ctx context.Context, token string) (string, error)
	// IsNode reports whether an address is a node's. Tokens of other callers are reviewed at a limited rate. If nil, all callers are nodes.
	IsNode func(netip.Addr) bool
	// MayAssign returns an error if a node may not assign one of the addresses to one of its pods. confirmed is set if all addresses
	// are known, and not only possible, addresses of the node or the pod.
	MayAssign func(ctx context.Context, node string, pod types.NamespacedName, addrs []netip.Addr) (confirmed bool, err error)
	// Serves returns an error while this operator cannot serve nodes: it does not lead, or has not read the cluster yet.
	Serves func() error
	Clock  clock.Clock
	Log    *slog.Logger

	strangers *rate.Limiter // for callers that are not nodes
	refusals  *refusals
}

// NewServer completes a Server.
func NewServer(s Server) *Server {
	s.strangers = rate.NewLimiter(strangersPerSecond, strangersBurst)
	s.refusals = &refusals{logged: map[string]time.Time{}}
	return &s
}

// refusals limits the log lines about addresses that nodes must not assign, because a node may send any number of them.
type refusals struct {
	mu     sync.Mutex           // guards logged
	logged map[string]time.Time // time of the last line about a node
}

// refusalEvery is the minimum interval between two lines about a node.
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
	// gather is the minimum interval between two updates to a node, in which changes are collected.
	gather = 20 * time.Millisecond
	// confirmWait limits how long a new pod waits for the nodes whose pods allow it. After that, these nodes drop the pod's packets
	// until they know its address, and the pod retransmits.
	confirmWait = 500 * time.Millisecond
	// maxAssigns is the maximum number of addresses of a node that wait at once.
	maxAssigns = 64
	// maxAddresses is the maximum number of addresses of a pod's first interface.
	maxAddresses = 16
	// A token review is a request to the API server. Callers at addresses that are not a node's, such as pods, may cause
	// strangersPerSecond reviews in total, after a burst of strangersBurst.
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
	go func() { cancel(f.receive(ctx, stream)) }() // ends with the stream
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

// token returns the bearer token of a call (RFC 6750, section 2.1), or "".
func token(ctx context.Context) string {
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if token, ok := strings.CutPrefix(v, "Bearer "); ok {
			return token
		}
	}
	return ""
}

// call is the stream of one node.
type call struct {
	*Server
	node       string
	subscriber *feed.Subscriber
	answers    chan *wire.Assigned
	places     chan struct{} // has one element for each waiting address
}

// send sends updates and answers until ctx ends.
func (f *call) send(ctx context.Context, stream wire.Policies_FollowServer) error {
	var last time.Time // time of the last update
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.subscriber.Ended():
			return status.Errorf(codes.Aborted, "node %s has opened another stream", f.node)
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

// receive reads messages of the node until the stream ends.
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
			done, err := f.assign(ctx, what.Assign) // in order of messages: the last pod with an address keeps it
			go func() {
				defer func() { <-f.places }()
				f.answer(ctx, what.Assign, done, err)
			}()
		}
	}
}

// answer answers an Assign once the affected nodes enforce it, or time out.
func (f *call) answer(ctx context.Context, a *wire.Assign, done <-chan struct{}, err error) {
	reply := &wire.Assigned{Id: a.Id}
	if err != nil {
		reply.Refused = err.Error()
		if f.refusals.due(f.node, f.Clock.Now()) {
			f.Log.Warn("rejected addresses that a node reported for a pod: policies do not use them (logged at most once a minute for each node)", "node", f.node, "namespace", a.Namespace, "pod", a.Name, "err", err)
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

// assign applies the addresses of an Assign. The channel is closed once the affected nodes enforce them.
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
