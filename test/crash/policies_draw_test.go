package crash

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/policy/policytest"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/node"
)

// steady is a namespace whose policies stay as they are, so that kills, too, must change nothing for its pods.
const steady = "steady"

// steadyPolicies let pods with the label app=x be reached by those with app=y, at the port that the former call http.
func steadyPolicies() []*networkingv1.NetworkPolicy {
	of := func(name, app string) *networkingv1.NetworkPolicy {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: steady, Name: name}}
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
		return p
	}
	server, client := of("server", "x"), of("client", "y")
	server.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &client.Spec.PodSelector}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("http"))}},
	}}
	client.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	client.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}}
	return []*networkingv1.NetworkPolicy{server, client}
}

// clusterPolicyKind has the definition of ClusterNetworkPolicy, from the module whose types Berth uses.
type clusterPolicyKind struct{}

var clusterPolicyFile = sync.OnceValues(func() ([]byte, error) {
	dir, err := exec.CommandContext(context.Background(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module of ClusterNetworkPolicy: %w", err)
	}
	return os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
})

// Open implements fs.FS.
func (clusterPolicyKind) Open(name string) (fs.File, error) {
	data, err := clusterPolicyFile()
	if err != nil {
		return nil, err
	}
	return fstest.MapFS{"clusternetworkpolicies.yaml": {Data: data}}.Open(name)
}

// toEcho is the distance from a drawn port to one of pods.
const toEcho = echo.Port - 80

// namedPorts draws names for ports of a pod: that at which it answers, and its neighbour.
func namedPorts(t *rapid.T) (list []node.NamedPort) {
	for _, p := range policytest.Pod(t, policytest.Namespaces[0], policytest.Pods[0]).Spec.Containers[0].Ports {
		if p.Protocol != corev1.ProtocolSCTP {
			list = append(list, node.NamedPort{Name: p.Name, Protocol: string(p.Protocol), Port: uint16(p.ContainerPort + toEcho)})
		}
	}
	return list
}

// drawClusterPolicy draws a ClusterNetworkPolicy for ports of pods, now and then by their names, and for nodes.
func drawClusterPolicy(t *rapid.T, name string) *networkpolicy.ClusterNetworkPolicy {
	tier, actions := networkpolicy.AdminTier, []networkpolicy.ClusterNetworkPolicyRuleAction{
		networkpolicy.ClusterNetworkPolicyRuleActionAccept, networkpolicy.ClusterNetworkPolicyRuleActionDeny, networkpolicy.ClusterNetworkPolicyRuleActionPass,
	}
	if rapid.Bool().Draw(t, "baseline") {
		tier, actions = networkpolicy.BaselineTier, actions[:2]
	}
	p := policytest.ClusterPolicy(t, name, tier, actions...)
	in := metav1.LabelSelector{MatchLabels: map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "namespaces")}} // not steady
	if p.Spec.Subject.Namespaces != nil {
		p.Spec.Subject.Namespaces = &in
	} else {
		p.Spec.Subject.Pods.NamespaceSelector = in
	}
	move := func(protocols []networkpolicy.ClusterNetworkPolicyProtocol, mayName bool) {
		for i := range protocols {
			to := &protocols[i]
			switch {
			case mayName && rapid.IntRange(0, 2).Draw(t, "named") == 0:
				*to = networkpolicy.ClusterNetworkPolicyProtocol{DestinationNamedPort: rapid.SampledFrom([]string{"http", "dns"}).Draw(t, "name")}
			case to.TCP != nil:
				moveToEcho(to.TCP.DestinationPort)
			case to.UDP != nil:
				moveToEcho(to.UDP.DestinationPort)
			}
		}
	}
	for _, r := range p.Spec.Ingress {
		move(r.Protocols, true)
	}
	for i, r := range p.Spec.Egress {
		if i > 0 {
			r.To[0] = networkpolicy.ClusterNetworkPolicyEgressPeer{Nodes: policytest.Selector(t)}
		}
		move(r.Protocols, !slices.ContainsFunc(r.To, func(p networkpolicy.ClusterNetworkPolicyEgressPeer) bool { return p.Namespaces == nil && p.Pods == nil }))
	}
	return p
}

func moveToEcho(p *networkpolicy.Port) {
	if p.Range != nil {
		p.Range.Start, p.Range.End = p.Range.Start+toEcho, p.Range.End+toEcho
		return
	}
	p.Number += toEcho
}

// clusterPolicy returns an object of a ClusterNetworkPolicy without content.
func clusterPolicy(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(oracle.ClusterNetworkPolicy)
	o.SetName(name)
	return o
}

// onEchoPorts moves the ports of a drawn policy to those of pods.
func onEchoPorts(p *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	move := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if n := ports[i].Port; n != nil && n.StrVal == "" {
				n.IntVal += toEcho
			}
			if n := ports[i].EndPort; n != nil {
				*n += toEcho
			}
		}
	}
	for _, r := range p.Spec.Ingress {
		move(r.Ports)
	}
	for _, r := range p.Spec.Egress {
		move(r.Ports)
	}
	return p
}

// drawPod draws a pod. Most of those in the namespace steady are closed to each other, so that there is always something to refuse.
func drawPod(dice *rand.Rand) node.PodOptions {
	return rapid.Custom(func(t *rapid.T) node.PodOptions {
		namespaces := append([]string{steady, steady}, policytest.Namespaces...)
		o := node.PodOptions{Namespace: rapid.SampledFrom(namespaces).Draw(t, "namespace"), Labels: policytest.Labels(t), Named: namedPorts(t)}
		if o.Namespace == steady {
			o.Labels = map[string]string{"app": rapid.SampledFrom([]string{"x", "x", "y"}).Draw(t, "app")}
		}
		return o
	}).Example(int(dice.Uint32()))
}
