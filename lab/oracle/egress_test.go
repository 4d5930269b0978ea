package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/run/node"
)

func viewOf(egresses ...*v1alpha1.Egress) *egressView {
	v := &egressView{
		egresses: map[string]*v1alpha1.Egress{}, namespaces: map[string]*corev1.Namespace{}, pods: map[string]*node.Pod{},
		uses: map[string][]*v1alpha1.Egress{}, refused: map[string]map[string]string{}, served: map[string]map[string][]netip.Addr{},
	}
	for _, e := range egresses {
		v.egresses[key(e).String()] = e
	}
	for name, annotations := range map[string]map[string]string{"shop": {v1alpha1.AnnotationEgressSelectableFrom: "x, gate"}, "closed": nil, "gate": nil} {
		v.namespaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "red"}, Annotations: annotations}}
	}
	return v
}

// egressAt returns an Egress of namespace gate created at the given number of seconds.
func egressAt(name string, younger int, change func(*v1alpha1.EgressSpec), to ...string) *v1alpha1.Egress {
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gate", Name: name, CreationTimestamp: metav1.Unix(int64(younger), 0)},
		Spec:       v1alpha1.EgressSpec{Destinations: to},
	}
	if change != nil {
		change(&e.Spec)
	}
	return e
}

// The Egresses that pods use, according to docs/guides/egress.md, "Permissions" and "Rejected pods".
func TestEgressesOfPods(t *testing.T) {
	open := func(s *v1alpha1.EgressSpec) { s.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{"*"}} }
	red := func(s *v1alpha1.EgressSpec) {
		s.Clients = &v1alpha1.EgressClientSelector{
			NamespaceSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"team": "red"}},
			PodSelector:       &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"tier": "web"}},
		}
	}
	all := []*v1alpha1.Egress{
		egressAt("net", 2, open, "0.0.0.0/0"), egressAt("dc", 3, open, "203.0.113.0/24"), egressAt("host", 1, red, "203.0.113.8/32"), egressAt("own", 0, nil, "192.0.2.0/24"),
	}
	for what, tt := range map[string]struct {
		namespace  string // default shop
		annotation string
		labels     map[string]string
		phase      corev1.PodPhase
		unknown    bool // no EgressClient
		uses       string
		refused    map[string]string
	}{
		"none":       {uses: "[]"},
		"selected":   {labels: map[string]string{"tier": "web"}, uses: "[host]"},
		"no consent": {namespace: "closed", labels: map[string]string{"tier": "web"}, unknown: true, uses: "[]"},
		"named Egress overlaps the selecting one": {annotation: "net", labels: map[string]string{"tier": "web"}, uses: "[net]", refused: map[string]string{"gate/host": "Overlaps"}},
		"named":                   {annotation: "net, dc", uses: "[net dc]"},
		"named precedes selected": {annotation: "dc", labels: map[string]string{"tier": "web"}, uses: "[dc]", refused: map[string]string{"gate/host": "Overlaps"}},
		"not allowed":             {annotation: "own,net", uses: "[net]", refused: map[string]string{"gate/own": "NotAllowed"}},
		"named and selected":      {annotation: "host", labels: map[string]string{"tier": "web"}, uses: "[host]"},
		"not found":               {annotation: "no", uses: "[]", refused: map[string]string{"gate/no": "NotFound"}},
		"twice":                   {annotation: "net,net", uses: "[]", refused: map[string]string{"gate/": "Invalid"}},
		"gateway":                 {annotation: "net", labels: map[string]string{v1alpha1.LabelEgress: "dc"}, uses: "[]", refused: map[string]string{"gate/net": "Invalid"}},
		"ended":                   {annotation: "net", phase: corev1.PodFailed, unknown: true, uses: "[]"},
	} {
		v := viewOf(all...)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(tt.namespace, "shop"), Name: "p", UID: "u", Labels: tt.labels}, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: tt.phase}}
		if tt.annotation != "" {
			p.Annotations = map[string]string{v1alpha1.AnnotationEgressPrefix + "gate": tt.annotation}
		}
		v.decide(p)
		names := []string{}
		for _, e := range v.uses["u"] {
			names = append(names, e.Name)
		}
		refused, known := v.refused["u"]
		if got := fmt.Sprint(names); got != tt.uses || known == tt.unknown || !maps.Equal(refused, tt.refused) {
			t.Errorf("%s: uses %s, refused %v, EgressClient %t; want %s, %v, %t", what, got, refused, known, tt.uses, tt.refused, !tt.unknown)
		}
	}
}

func TestEgressOfDestination(t *testing.T) {
	uses := []*v1alpha1.Egress{egressAt("net", 0, nil, "0.0.0.0/0"), egressAt("dc", 0, nil, "203.0.113.0/24", "10.9.0.0/16")}
	for to, want := range map[string]string{"203.0.113.9": "dc", "8.8.8.8": "net", "10.1.2.3": "", "10.9.1.1": "dc", "2001:db8::1": ""} {
		got := ""
		if _, by := wayOf(uses, netip.MustParseAddr(to)); by != nil {
			got = by.Name
		}
		if got != want {
			t.Errorf("Egress for %s = %q, want %q", to, got, want)
		}
	}
}

func TestVerdictChain(t *testing.T) {
	value, err := mdnetlink.MarshalAttributes([]mdnetlink.Attribute{
		{Type: unix.NFTA_VERDICT_CODE, Data: []byte{0xff, 0xff, 0xff, 0xfc}}, {Type: unix.NFTA_VERDICT_CHAIN, Data: []byte("choose-0-4\x00")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := verdictChain(value); got != "choose-0-4" {
		t.Errorf("verdictChain() = %q, want choose-0-4", got)
	}
	if got := verdictChain([]byte{1}); got != "" {
		t.Errorf("verdictChain(invalid) = %q, want none", got)
	}
}
