package operator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// policyNode is a node's daemon as far as network policies are concerned.
type policyNode struct {
	t      *testing.T
	stream wire.Policies_FollowClient
	state  *policy.State
	reads  wire.Decoder
}

// connect connects to the leading operator as the chart's daemon does, with a token.
func (c *cluster) connect(token string) *policyNode {
	c.t.Helper()
	cm := controllers.Get[corev1.ConfigMap](c.t, client.ObjectKey{Namespace: account.Namespace, Name: wire.ConfigMapName})
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(cm.Data[wire.KeyCA])) {
		c.t.Fatalf("ConfigMap %s: %s = %q, want a certificate in PEM", cm.Name, wire.KeyCA, cm.Data[wire.KeyCA])
	}
	conn, err := grpc.NewClient("passthrough:///"+cm.Data[wire.KeyAddress],
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: wire.ServerName, MinVersion: tls.VersionTLS13})))
	harness.OK(c.t, err)
	c.t.Cleanup(func() { _ = conn.Close() })
	ctx := c.t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream, err := wire.NewPoliciesClient(conn).Follow(ctx)
	harness.OK(c.t, err)
	return &policyNode{t: c.t, stream: stream, state: policy.NewState()}
}

// refused returns why the operator refuses the node.
func (n *policyNode) refused() error {
	_, err := n.stream.Recv()
	return err
}

// until receives updates, and confirms them, until its state is so. It returns the answers to Assigns received meanwhile.
func (n *policyNode) until(is func(*policy.State) bool) (answers []*wire.Assigned) {
	n.t.Helper()
	for !is(n.state) {
		m, err := n.stream.Recv()
		harness.OK(n.t, err)
		if a := m.GetAssigned(); a != nil {
			answers = append(answers, a)
			continue
		}
		u, err := n.reads.Add(m.GetUpdate())
		harness.OK(n.t, err)
		if u != nil {
			n.state.Take(u)
			harness.OK(n.t, n.stream.Send(&wire.FromNode{What: &wire.FromNode_Enforced{Enforced: u.Version}}))
		}
	}
	return answers
}

func (c *cluster) policyToken(audience, node string) string {
	c.t.Helper()
	token, err := harness.ControlPlane.NodeToken(c.t.Context(), types.NamespacedName{Namespace: account.Namespace, Name: "berthd"}, node, audience)
	harness.OK(c.t, err)
	return token
}

// A node receives the policies of its own pods, over TLS and with its own token only, from an operator that has no other
// feature and the rights of the chart.
func TestNodeFollowsPolicies(t *testing.T) {
	c := newCluster(t)
	release := deploy.InMode(deploy.NodeMode, "test")
	release.Values["networkPolicies"] = map[string]any{"enabled": true}
	c.use(harness.OperatorConfigOf(t, release))
	web, client1 := newPod("web"), newPod("client")
	web.Labels, client1.Labels = map[string]string{"app": "web"}, map[string]string{"app": "client"}
	client1.Spec.NodeName = "node-b"
	c.create(bareNode("node-a"), bareNode("node-b"), web, client1, networkPolicy(t, `
metadata: {name: web, namespace: default}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]`))
	o := c.start("one", "--ipam=", "--network-policies", "--network-policy-address="+freeAddress(t))
	o.until(func() error {
		cm := &corev1.ConfigMap{}
		if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: account.Namespace, Name: wire.ConfigMapName}, cm); err != nil {
			return err
		}
		if cm.Data[wire.KeyAddress] == "" {
			return errors.New("the operator has not published its address")
		}
		return nil
	})

	other, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: "default", Name: "tenant"}, "node-a", wire.Audience)
	harness.OK(t, err)
	unbound, err := harness.ControlPlane.Token(t.Context(), types.NamespacedName{Namespace: account.Namespace, Name: "berthd"}, nil, wire.Audience)
	harness.OK(t, err)
	apiServer, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: account.Namespace, Name: "berthd"}, "node-a")
	harness.OK(t, err)
	for name, tt := range map[string]struct{ token, want string }{
		"no token":                        {"", "no bearer token"},
		"no token of the cluster":         {"e30.e30.e30", "not valid for audience"},
		"token for the API server":        {apiServer, "not valid for audience"},
		"token of a tenant's pod":         {other, "that of system:serviceaccount:default:tenant: expected system:serviceaccount:kube-system:berthd"},
		"daemon's token bound to no node": {unbound, "names no node"},
	} {
		if err := c.connect(tt.token).refused(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error = %v, want Unauthenticated and %q", name, err, tt.want)
		}
	}

	a, b := c.connect(c.policyToken(wire.Audience, "node-a")), c.connect(c.policyToken(wire.Audience, "node-b"))
	webName, clientName := policy.PodName{Namespace: "default", Name: "web"}, policy.PodName{Namespace: "default", Name: "client"}
	a.until(func(s *policy.State) bool {
		list, known := s.Of(webName, string(web.UID))
		return known && len(list) == 1 && list[0].Name == "web"
	})
	b.until(func(s *policy.State) bool {
		list, known := s.Of(clientName, string(client1.UID))
		return known && len(list) == 0
	})
	if _, known := a.state.Of(clientName, string(client1.UID)); known {
		t.Error("node-a received a pod of node-b")
	}

	// The address of a new pod takes effect on the node that allows it before the operator answers.
	flow := policy.Flow{Source: netip.MustParseAddr("10.0.0.9"), Destination: netip.MustParseAddr("10.0.0.7"), Protocol: 6, Port: 80}
	assign := func(id uint64, uid types.UID) {
		harness.OK(t, b.stream.Send(&wire.FromNode{What: &wire.FromNode_Assign{Assign: &wire.Assign{
			Id: id, Namespace: "default", Name: "client", Uid: string(uid), Addresses: [][]byte{flow.Source.AsSlice()},
		}}}))
	}
	assign(1, client1.UID)
	a.until(func(s *policy.State) bool {
		list, _ := s.Of(webName, string(web.UID))
		return policy.Decide(list, policy.Ingress, flow, s).Allowed
	})
	assign(2, "of-another-pod")
	var answers []*wire.Assigned
	for len(answers) < 2 {
		m, err := b.stream.Recv()
		harness.OK(t, err)
		if as := m.GetAssigned(); as != nil {
			answers = append(answers, as)
		}
	}
	slices.SortFunc(answers, func(x, y *wire.Assigned) int { return int(x.Id) - int(y.Id) })
	if answers[0].Refused != "" || !strings.Contains(answers[1].Refused, "is not known") {
		t.Errorf("answers = %q and %q, want the first accepted and the second one refused", answers[0].Refused, answers[1].Refused)
	}

	// A second operator takes over, and nodes find it.
	harness.OK(t, o.Kill())
	before := controllers.Get[corev1.ConfigMap](t, types.NamespacedName{Namespace: account.Namespace, Name: wire.ConfigMapName}).Data[wire.KeyAddress]
	second := c.start("two", "--ipam=", "--network-policies", "--network-policy-address="+freeAddress(t))
	c.freeLease()
	second.until(func() error {
		if now := controllers.Get[corev1.ConfigMap](t, types.NamespacedName{Namespace: account.Namespace, Name: wire.ConfigMapName}).Data[wire.KeyAddress]; now == before {
			return fmt.Errorf("the address is still %s", now)
		}
		return nil
	})
	c.connect(c.policyToken(wire.Audience, "node-a")).until(func(s *policy.State) bool {
		list, known := s.Of(webName, string(web.UID))
		return known && len(list) == 1
	})
	second.logsNone("level=ERROR", "forbidden")
}

// freeLease deletes the Lease of an operator that was killed.
func (c *cluster) freeLease() {
	c.t.Helper()
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = account.Namespace, LeaseName
	harness.OK(c.t, client.IgnoreNotFound(c.client.Delete(context.WithoutCancel(c.t.Context()), lease)))
}

func networkPolicy(t *testing.T, text string) *networkingv1.NetworkPolicy {
	t.Helper()
	o := &networkingv1.NetworkPolicy{}
	harness.OK(t, yaml.UnmarshalStrict([]byte(text), o))
	return o
}
