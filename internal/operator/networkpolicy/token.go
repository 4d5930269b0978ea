package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/policy/wire"
)

// nodeName is the key of a user's extra values that names the node of the pod to which a service account token is bound
// (Kubernetes documentation, "Managing Service Accounts", "Additional metadata in Pod bound tokens").
const nodeName = "authentication.kubernetes.io/node-name"

// errNoToken is the error of a call without a token.
var errNoToken = errors.New("no bearer token: expected the service account token of a node's daemon")

// reviewer finds the node of a daemon by its token.
type reviewer struct {
	api  client.Client
	user string // the daemons' user name
}

// node returns the node that a token is bound to. The error explains why the token is not a node's daemon's.
func (r reviewer) node(ctx context.Context, token string) (string, error) {
	if token == "" {
		return "", errNoToken
	}
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
