package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/policy/wire"
)

// nodeName is the key of a user's extra values that names the node of the pod to which a service account token is bound
// (Kubernetes documentation, "Managing Service Accounts", "Additional metadata in Pod bound tokens").
const nodeName = "authentication.kubernetes.io/node-name"

// errNoToken is the error of a call without a token.
var errNoToken = errors.New("no bearer token: expected the service account token of a node's daemon")

// errManyCalls is the error of a call from an address with maxReviews others.
var errManyCalls = errors.New("too many calls from this address have no valid token")

const (
	// maxReviews is how many calls of an address may be reviewed at once: each costs the API server a TokenReview.
	maxReviews = 8
	// refusedFor is how long a call without a valid token counts as one of these.
	refusedFor = time.Second
)

// reviewer finds the node of a daemon by its token.
type reviewer struct {
	api   client.Client
	user  string // the daemons' user name
	clock clock.Clock

	mu   sync.Mutex         // guards below
	busy map[netip.Addr]int // reviews by the address of the caller
}

// node returns the node to which a token is bound. The error says why it is not that of a node's daemon.
func (r *reviewer) node(ctx context.Context, token string) (string, error) {
	if token == "" {
		return "", errNoToken
	}
	from := caller(ctx)
	if !r.begin(from) {
		return "", errManyCalls
	}
	node, err := r.review(ctx, token)
	if err == nil {
		r.end(from)
		return node, nil
	}
	go func() {
		<-r.clock.After(refusedFor)
		r.end(from)
	}()
	return "", err
}

// caller is the address from which a call comes.
func caller(ctx context.Context) netip.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		if addr, err := netip.ParseAddrPort(p.Addr.String()); err == nil {
			return addr.Addr().Unmap()
		}
	}
	return netip.Addr{}
}

func (r *reviewer) begin(from netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[from] >= maxReviews {
		return false
	}
	if r.busy == nil {
		r.busy = map[netip.Addr]int{}
	}
	r.busy[from]++
	return true
}

func (r *reviewer) end(from netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[from]--; r.busy[from] == 0 {
		delete(r.busy, from)
	}
}

// review has the API server review a token.
func (r *reviewer) review(ctx context.Context, token string) (string, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{wire.Audience}}}
	if err := r.api.Create(ctx, review); err != nil {
		return "", fmt.Errorf("review a node's token: %w", err)
	}
	st := review.Status
	node := st.User.Extra[nodeName]
	switch {
	case !st.Authenticated || !slices.Contains(st.Audiences, wire.Audience):
		return "", fmt.Errorf("the token is not valid for audience %s: %s", wire.Audience, st.Error)
	case st.User.Username != r.user:
		return "", fmt.Errorf("the token is that of %s: expected %s", st.User.Username, r.user)
	case len(node) != 1 || node[0] == "":
		return "", errors.New("the token names no node: expected one that is bound to a pod, by Kubernetes 1.32 or later")
	}
	return node[0], nil
}
