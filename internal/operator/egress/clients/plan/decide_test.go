package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/egress/membership"
)

// made is an Egress of namespace internet that is so many minutes younger than others.
func made(name string, younger int, spec v1alpha1.EgressSpec) *Egress {
	at := time.Date(2026, 1, 1, 0, younger, 0, 0, time.UTC)
	return NewEgress(&v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(at)}, Spec: spec,
	})
}

func having(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func TestDecide(t *testing.T) {
	everywhere := &v1alpha1.VPCNamespaces{Names: []string{"*"}}
	to := func(destinations ...string) v1alpha1.EgressSpec {
		return v1alpha1.EgressSpec{Destinations: destinations, AllowedNamespaces: everywhere}
	}
	selects := func(s v1alpha1.EgressClientSelector, destinations ...string) v1alpha1.EgressSpec {
		return v1alpha1.EgressSpec{Destinations: destinations, Clients: &s}
	}
	all := NewEgresses([]*Egress{
		made("nat", 0, to("0.0.0.0/0", "::/0")),
		made("nat2", 1, to("0.0.0.0/0")),
		made("nat6", 2, to("::/0")),
		made("dc", 3, to("203.0.113.0/24")),
		made("dc-part", 4, to("203.0.113.128/25", "198.51.100.0/24")),
		made("closed", 5, v1alpha1.EgressSpec{Destinations: []string{"192.0.2.0/24"}}),
		made("team", 6, v1alpha1.EgressSpec{Destinations: []string{"192.0.2.0/25"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Selector: having("team", "shop")}}),
		made("broken", 7, v1alpha1.EgressSpec{Destinations: []string{"192.0.2.0/25"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}}),
		made("paying", 8, selects(v1alpha1.EgressClientSelector{NamespaceSelector: having("team", "shop"), PodSelector: having("app", "pay")}, "100.64.0.0/10")),
		made("younger", 9, selects(v1alpha1.EgressClientSelector{NamespaceSelector: having("team", "shop"), PodSelector: having("app", "pay")}, "100.64.1.0/24")),
		made("ours", 10, selects(v1alpha1.EgressClientSelector{PodSelector: &metav1.LabelSelector{}}, "100.64.2.0/24")),
	})
	shop, pay := Pod{Namespace: "shop"}, Pod{Namespace: "shop", Labels: map[string]string{"app": "pay"}}
	team := map[string]string{"team": "shop"}
	const key = v1alpha1.AnnotationEgressPrefix + "internet"
	names := func(p Pod, egresses string) Pod {
		p.Annotations = map[string]string{key: egresses}
		return p
	}
	hosts, static, gateway := pay, pay, pay
	hosts.HostNetwork, static.Static, gateway.Gateway = true, true, true
	for what, tt := range map[string]struct {
		pod     Pod
		labels  map[string]string // of the namespace
		want    string            // Egresses
		refused []string          // name, reason and whether it is named
		words   string            // in the first message
		none    bool              // nobody is to be told
	}{
		"nothing":                 {pod: shop, none: true},
		"named":                   {pod: names(shop, "nat"), want: "nat"},
		"two":                     {pod: names(shop, "nat,dc"), want: "dc nat"}, // all addresses contain some
		"families":                {pod: names(shop, "nat2,nat6"), want: "nat2 nat6"},
		"both have all":           {pod: names(shop, "nat2,nat"), want: "nat", refused: []string{"nat2 Overlaps named"}, words: "0.0.0.0/0 of Egress internet/nat2 and 0.0.0.0/0 of Egress internet/nat overlap"},
		"one has part":            {pod: names(shop, "dc-part,dc"), want: "dc", refused: []string{"dc-part Overlaps named"}, words: "203.0.113.128/25 of Egress internet/dc-part and 203.0.113.0/24"},
		"not there":               {pod: names(shop, "nat,none"), want: "nat", refused: []string{"none NotFound named"}, words: "there is no Egress internet/none: make it, or take it out of metadata.annotations[egress.berth.dev/internet]"},
		"not allowed":             {pod: names(shop, "closed"), refused: []string{"closed NotAllowed named"}, words: "Egress internet/closed does not allow pods of namespace shop"},
		"its own namespace":       {pod: names(Pod{Namespace: "internet"}, "closed"), want: "closed ours"},
		"allowed by labels":       {pod: names(shop, "team"), labels: team, want: "team"},
		"not by labels":           {pod: names(shop, "team"), refused: []string{"team NotAllowed named"}},
		"labels that are wrong":   {pod: names(shop, "broken"), labels: team, refused: []string{"broken NotAllowed named"}, words: "spec.allowedNamespaces.selector"},
		"selected and named":      {pod: names(pay, "paying"), labels: team, want: "paying", refused: []string{"younger Overlaps"}},
		"the named one wins":      {pod: names(pay, "younger"), labels: team, want: "younger", refused: []string{"paying Overlaps"}},
		"the older one wins":      {pod: pay, labels: team, want: "paying", refused: []string{"younger Overlaps"}},
		"labels do not select":    {pod: shop, labels: team},
		"namespace not selected":  {pod: pay, none: true},
		"the Egress's own":        {pod: Pod{Namespace: "internet"}, want: "ours"},
		"wrong annotation":        {pod: names(shop, "nat,,dc"), refused: []string{" Invalid named"}, words: `metadata.annotations[egress.berth.dev/internet]: is "nat,,dc"`},
		"the node's network":      {pod: names(hosts, "nat"), labels: team, refused: []string{"nat Invalid named"}, words: "metadata.annotations[egress.berth.dev/internet] names Egress internet/nat, which a pod of the node's network (spec.hostNetwork) cannot use"},
		"the node's, selected":    {pod: hosts, labels: team, none: true},
		"static":                  {pod: names(static, "nat"), refused: []string{"nat Invalid named"}, words: "a static pod cannot use"},
		"static, selected":        {pod: static, labels: team},
		"a gateway":               {pod: names(gateway, "nat"), refused: []string{"nat Invalid named"}, words: "a gateway of an Egress cannot use"},
		"a gateway, selected":     {pod: gateway, labels: team},
		"another's wrong and one": {pod: Pod{Namespace: "shop", Annotations: map[string]string{key: "nat", v1alpha1.AnnotationEgressPrefix + "dmz": ""}}, want: "nat", refused: []string{" Invalid named"}, words: "[egress.berth.dev/dmz]"},
	} {
		d := Decide(tt.pod, tt.labels, all)
		var got, refused []string
		for _, r := range d.Egresses {
			if r.UID != "uid-"+r.Name || r.Namespace != "internet" {
				t.Errorf("%s: got %+v", what, r)
			}
			got = append(got, r.Name)
		}
		for _, r := range d.Refused {
			text := r.Name + " " + r.Reason
			if r.Named {
				text += " named"
			}
			refused = append(refused, text)
		}
		if strings.Join(got, " ") != tt.want || !slices.Equal(refused, tt.refused) || d.Wanted == tt.none {
			t.Errorf("%s: uses %q, refused %q, wanted %t; want %q, %q, %t", what, got, refused, d.Wanted, tt.want, tt.refused, !tt.none)
		}
		if tt.words != "" && (len(d.Refused) == 0 || !strings.Contains(d.Refused[0].Message, tt.words)) {
			t.Errorf("%s: got %+v, want %q", what, d.Refused, tt.words)
		}
	}
}

// A pod that very many Egresses select uses as many as it can; those that it names are
// told first of what it cannot use, and no text is longer than the API takes.
func TestDecideBounds(t *testing.T) {
	var list []*Egress
	for i := range 80 {
		list = append(list, made(fmt.Sprintf("e-%02d", i), i, v1alpha1.EgressSpec{
			Destinations: []string{fmt.Sprintf("10.%d.0.0/16", i)}, Clients: &v1alpha1.EgressClientSelector{NamespaceSelector: &metav1.LabelSelector{}},
		}))
	}
	p := Pod{Namespace: "shop", Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + "internet": "e-79,zz"}}
	d := Decide(p, nil, NewEgresses(list))
	if len(d.Egresses) != membership.MaxEgresses || len(d.Refused) != membership.MaxEgresses {
		t.Fatalf("uses %d, refused %d", len(d.Egresses), len(d.Refused))
	}
	if d.Egresses[31].Name != "e-79" || d.Refused[31].Name != "zz" || d.Refused[0].Reason != v1alpha1.EgressInvalid {
		t.Errorf("got %+v, %+v", d.Egresses[31], d.Refused)
	}
	long := Decision{}
	long.refuse(membership.Ref{}, true, "A", "%s", strings.Repeat("ü", Most))
	if n := len(long.Refused[0].Message); n > Most || !strings.HasSuffix(long.Refused[0].Message, "ü...") {
		t.Errorf("%d bytes: %q", n, long.Refused[0].Message[n-8:])
	}
}

func TestEgresses(t *testing.T) {
	a, b := made("a", 0, v1alpha1.EgressSpec{Clients: &v1alpha1.EgressClientSelector{PodSelector: having("a", "b")}}), made("b", 0, v1alpha1.EgressSpec{})
	none := Egresses{}
	one := none.With(a.Ref, a)
	two := one.With(b.Ref, b)
	if one.Get(b.Ref) != nil || two.Get(a.Ref) != a || two.Get(b.Ref) != b || two.With(a.Ref, nil).Get(a.Ref) != nil || two.Get(a.Ref) == nil {
		t.Error("a value of Egresses was changed, or lacks one")
	}
	if got := two.Selecting("internet", nil); len(got) != 1 || got[0] != a || len(two.Selecting("shop", nil)) != 0 {
		t.Errorf("selecting: %v", got)
	}
	other := made("a", 0, v1alpha1.EgressSpec{Destinations: []string{"::/0"}, Clients: a.spec.Clients})
	replicas := int32(3)
	same := made("a", 0, v1alpha1.EgressSpec{Replicas: &replicas, Clients: &v1alpha1.EgressClientSelector{PodSelector: having("a", "b")}})
	again := made("a", 0, a.spec)
	again.UID = "another"
	for _, o := range []*Egress{other, again, nil, b} {
		if a.SameChoice(o) || o.SameChoice(a) {
			t.Errorf("%+v chooses as %+v", o, a)
		}
	}
	if !a.SameChoice(same) || !(*Egress)(nil).SameChoice(nil) {
		t.Error("replicas choose")
	}
}
