package clientplan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
)

// made returns an Egress of namespace internet, or of the namespace in its name. younger is its
// age relative to the others, in minutes.
func made(name string, younger int, spec v1alpha1.EgressSpec) *Egress {
	at := time.Date(2026, 1, 1, 0, younger, 0, 0, time.UTC)
	namespace, of, other := strings.Cut(name, "/")
	if !other {
		namespace, of = "internet", name
	}
	return NewEgress(&v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: of, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(at)}, Spec: spec,
	})
}

func having(key, value string) *v1alpha1.LabelSelector {
	return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
}

func TestDecide(t *testing.T) {
	everywhere := &v1alpha1.VPCNamespaces{Names: []string{"*"}}
	to := func(destinations ...string) v1alpha1.EgressSpec {
		return v1alpha1.EgressSpec{Destinations: destinations, AllowedNamespaces: everywhere}
	}
	selects := func(s v1alpha1.EgressClientSelector, destinations ...string) v1alpha1.EgressSpec {
		return v1alpha1.EgressSpec{Destinations: destinations, Clients: &s}
	}
	web := &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "web"}}
	all := NewEgresses("berth-system", []*Egress{
		made("nat", 0, to("0.0.0.0/0", "::/0")),
		made("nat2", 1, to("0.0.0.0/0")),
		made("nat6", 2, to("::/0")),
		made("dc", 3, to("203.0.113.0/24")),
		made("dc-part", 4, to("203.0.113.128/25", "198.51.100.0/24")),
		made("closed", 5, v1alpha1.EgressSpec{Destinations: []string{"192.0.2.0/24"}}),
		made("team", 6, v1alpha1.EgressSpec{Destinations: []string{"192.0.2.0/25"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}}}),
		made("broken", 7, v1alpha1.EgressSpec{Destinations: []string{"192.0.2.0/25"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}}),
		made("paying", 8, selects(v1alpha1.EgressClientSelector{NamespaceSelector: having("team", "shop"), PodSelector: having("app", "pay")}, "100.64.0.0/10")),
		made("younger", 9, selects(v1alpha1.EgressClientSelector{NamespaceSelector: having("team", "shop"), PodSelector: having("app", "pay")}, "100.64.1.0/24")),
		made("ours", 10, selects(v1alpha1.EgressClientSelector{PodSelector: &v1alpha1.LabelSelector{}}, "100.64.2.0/24")),
		// The selectors match pods with app: web. Destinations: everything in two halves, everything, and a part.
		made("halves", 11, selects(v1alpha1.EgressClientSelector{NamespaceSelector: having("team", "open"), PodSelector: web}, "0.0.0.0/1", "128.0.0.0/1")),
		made("dmz/rest", 12, selects(v1alpha1.EgressClientSelector{NamespaceSelector: having("team", "open"), PodSelector: web}, "0.0.0.0/0")),
		made("mart/part", 13, selects(v1alpha1.EgressClientSelector{PodSelector: web}, "64.0.0.0/2")),
		made("bank/rest", 14, selects(v1alpha1.EgressClientSelector{PodSelector: web}, "0.0.0.0/0")),
	}).Granting("dmz", true)
	consenting := func(name, to string) membership.Namespace {
		return membership.Namespace{Name: name, Annotations: map[string]string{v1alpha1.AnnotationEgressSelectableFrom: to}}
	}
	in := func(n membership.Namespace, app string) Pod {
		return Pod{Namespace: n, Labels: map[string]string{"app": app}}
	}
	shop, pay := Pod{Namespace: consenting("shop", "internet")}, in(consenting("shop", "internet"), "pay")
	internet := Pod{Namespace: membership.Namespace{Name: "internet"}}
	team, opened := map[string]string{"team": "shop"}, map[string]string{"team": "open"}
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
		none    bool              // no EgressClient is wanted
	}{
		"no annotation":                              {pod: shop, none: true},
		"one named":                                  {pod: names(shop, "nat"), want: "nat"},
		"default route and a more specific one":      {pod: names(shop, "nat,dc"), want: "dc nat"}, // the more specific destination wins
		"IPv4 and IPv6 separately":                   {pod: names(shop, "nat2,nat6"), want: "nat2 nat6"},
		"two default routes":                         {pod: names(shop, "nat2,nat"), want: "nat", refused: []string{"nat2 Overlaps named"}, words: "0.0.0.0/0 of Egress internet/nat2 and 0.0.0.0/0 of Egress internet/nat overlap"},
		"partial overlap":                            {pod: names(shop, "dc-part,dc"), want: "dc", refused: []string{"dc-part Overlaps named"}, words: "203.0.113.128/25 of Egress internet/dc-part and 203.0.113.0/24"},
		"missing Egress":                             {pod: names(shop, "nat,none"), want: "nat", refused: []string{"none NotFound named"}, words: "there is no Egress internet/none: create it, or remove it from metadata.annotations[egress.berth.dev/internet]"},
		"namespace not allowed":                      {pod: names(shop, "closed"), refused: []string{"closed NotAllowed named"}, words: "Egress internet/closed does not allow pods of namespace shop"},
		"own namespace":                              {pod: names(internet, "closed"), want: "closed ours"},
		"allowed by namespace labels":                {pod: names(shop, "team"), labels: team, want: "team"},
		"not allowed by namespace labels":            {pod: names(shop, "team"), refused: []string{"team NotAllowed named"}},
		"invalid namespace selector":                 {pod: names(shop, "broken"), labels: team, refused: []string{"broken NotAllowed named"}, words: "spec.allowedNamespaces.selector"},
		"selected and named":                         {pod: names(pay, "paying"), labels: team, want: "paying", refused: []string{"younger Overlaps"}},
		"named Egress wins":                          {pod: names(pay, "younger"), labels: team, want: "younger", refused: []string{"paying Overlaps"}},
		"older Egress wins":                          {pod: pay, labels: team, want: "paying", refused: []string{"younger Overlaps"}},
		"pod labels do not match":                    {pod: shop, labels: team},
		"namespace labels do not match":              {pod: pay, none: true},
		"selected in own namespace":                  {pod: internet, want: "ours"},
		"invalid annotation":                         {pod: names(shop, "nat,,dc"), refused: []string{" Invalid named"}, words: `metadata.annotations[egress.berth.dev/internet]: is "nat,,dc"`},
		"host network":                               {pod: names(hosts, "nat"), labels: team, refused: []string{"nat Invalid named"}, words: "metadata.annotations[egress.berth.dev/internet] names Egress internet/nat, which a host-network pod cannot use"},
		"host network, selected":                     {pod: hosts, labels: team, none: true},
		"static pod":                                 {pod: names(static, "nat"), refused: []string{"nat Invalid named"}, words: "a static pod cannot use"},
		"static pod, selected":                       {pod: static, labels: team},
		"gateway":                                    {pod: names(gateway, "nat"), refused: []string{"nat Invalid named"}, words: "a gateway of an Egress cannot use"},
		"gateway, selected":                          {pod: gateway, labels: team},
		"one valid and one invalid annotation":       {pod: Pod{Namespace: shop.Namespace, Annotations: map[string]string{key: "nat", v1alpha1.AnnotationEgressPrefix + "dmz": ""}}, want: "nat", refused: []string{" Invalid named"}, words: "[egress.berth.dev/dmz]"},
		"no consent":                                 {pod: in(membership.Namespace{Name: "bar"}, "pay"), labels: team, none: true},
		"consent to other namespaces":                {pod: in(consenting("bar", "dmz,bank"), "pay"), labels: team, none: true},
		"consent to all":                             {pod: in(consenting("bar", "*"), "pay"), labels: team, want: "paying", refused: []string{"younger Overlaps"}},
		"selected by grant":                          {pod: in(membership.Namespace{Name: "bar"}, "web"), labels: opened, want: "dmz/rest"},
		"kube-system":                                {pod: in(consenting("kube-system", "internet,dmz"), "web"), labels: opened, none: true},
		"Berth's namespace":                          {pod: in(consenting("berth-system", "internet,dmz"), "web"), labels: opened, none: true},
		"kube-system, named":                         {pod: names(in(membership.Namespace{Name: "kube-system"}, "web"), "nat,halves"), labels: opened, want: "halves nat"},
		"named without consent":                      {pod: names(in(membership.Namespace{Name: "bar"}, "pay"), "paying"), labels: team, want: "paying"},
		"selecting Egresses overlap the named one":   {pod: names(in(consenting("bar", "internet"), "web"), "nat2"), labels: opened, want: "nat2", refused: []string{"dmz/rest Overlaps", "halves Overlaps"}, words: "0.0.0.0/0 of Egress dmz/rest and 0.0.0.0/0 of Egress internet/nat2 overlap"},
		"selected default route beside a named part": {pod: names(in(consenting("bar", ""), "web"), "dc"), labels: opened, want: "dmz/rest dc"}, // dmz/rest takes no part of dc
		"selected default route of the other family": {pod: names(in(consenting("bar", ""), "web"), "nat6"), labels: opened, want: "dmz/rest nat6"},
		"selected by two other namespaces":           {pod: in(consenting("bar", "internet"), "web"), labels: opened, want: "dmz/rest halves"},
		"own namespace before others":                {pod: in(consenting("mart", "internet"), "web"), labels: opened, want: "dmz/rest mart/part", refused: []string{"halves Overlaps"}},
		"others overlap the own default route":       {pod: in(consenting("bank", "internet"), "web"), labels: opened, want: "bank/rest", refused: []string{"dmz/rest Overlaps", "halves Overlaps"}},
	} {
		tt.pod.Namespace.Labels = tt.labels
		d := Decide(tt.pod, all)
		short := func(namespace, name string) string {
			return strings.TrimPrefix(namespace+"/"+name, "internet/")
		}
		refs, _ := membership.Named(tt.pod.Annotations)
		var got, refused []string
		for _, r := range d.Egresses {
			ref := membership.Ref{Namespace: r.Namespace, Name: r.Name}
			if r.UID != all.Get(ref).UID || slices.Contains(d.Selected, ref.String()) == slices.Contains(refs, ref) {
				t.Errorf("%s: Decide() uses %+v and reports %q as selected", what, r, d.Selected)
			}
			got = append(got, short(r.Namespace, r.Name))
		}
		for _, r := range d.Refused {
			text := short(r.Namespace, r.Name) + " " + r.Reason
			if r.Namespace == "dmz" && r.Name == "" {
				text = " " + r.Reason
			}
			if r.Named {
				text += " named"
			}
			refused = append(refused, text)
		}
		if strings.Join(got, " ") != tt.want || !slices.Equal(refused, tt.refused) || d.Wanted == tt.none {
			t.Errorf("%s: Decide() uses %q, refuses %q, wanted = %t; want %q, %q, %t", what, got, refused, d.Wanted, tt.want, tt.refused, !tt.none)
		}
		if tt.words != "" && (len(d.Refused) == 0 || !strings.Contains(d.Refused[0].Message, tt.words)) {
			t.Errorf("%s: Decide() refuses %+v, want message containing %q", what, d.Refused, tt.words)
		}
	}
}

// A pod selected by very many Egresses uses as many as possible. Its refusals keep those that it
// names, and no message exceeds the API's limit.
func TestDecideBounds(t *testing.T) {
	var list []*Egress
	for i := range 80 {
		list = append(list, made(fmt.Sprintf("e-%02d", i), i, v1alpha1.EgressSpec{
			Destinations: []string{fmt.Sprintf("10.%d.0.0/16", i)}, Clients: &v1alpha1.EgressClientSelector{NamespaceSelector: &v1alpha1.LabelSelector{}},
		}))
	}
	p := Pod{Namespace: membership.Namespace{Name: "shop"}, Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + "internet": "e-79,zz"}}
	d := Decide(p, NewEgresses("", list).Granting("internet", true))
	if len(d.Egresses) != membership.MaxEgresses || len(d.Refused) != membership.MaxEgresses {
		t.Fatalf("Decide() uses %d and refuses %d Egresses, want %d each", len(d.Egresses), len(d.Refused), membership.MaxEgresses)
	}
	if d.Egresses[31].Name != "e-79" || d.Refused[31].Name != "zz" || d.Refused[0].Reason != v1alpha1.EgressInvalid {
		t.Errorf("Decide() uses %+v last and refuses %+v, want e-79 used and zz refused", d.Egresses[31], d.Refused)
	}
	long := Decision{}
	long.refuse(membership.Ref{}, true, "A", "%s", strings.Repeat("ü", Most))
	if n := len(long.Refused[0].Message); n > Most || !strings.HasSuffix(long.Refused[0].Message, "ü...") {
		t.Errorf("message has %d bytes and ends in %q", n, long.Refused[0].Message[n-8:])
	}
}

// A tenant's Egresses affect only pods of its own namespace and of consenting namespaces, however many
// it creates. The work for them and the reports to its pods are limited.
func TestTenantsAreBounded(t *testing.T) {
	var list []*Egress
	for i := range 400 {
		list = append(list, made(fmt.Sprintf("tenant/e-%03d", i), i, v1alpha1.EgressSpec{
			Destinations: []string{"0.0.0.0/1", "128.0.0.0/1"}, Clients: &v1alpha1.EgressClientSelector{NamespaceSelector: &v1alpha1.LabelSelector{}},
		}))
	}
	nat := made("nat", 0, v1alpha1.EgressSpec{Destinations: []string{"0.0.0.0/0"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}}})
	all := NewEgresses("", append(list, nat))
	shop := Pod{Namespace: membership.Namespace{Name: "shop"}}
	for name, tt := range map[string]struct {
		pod                  Pod
		uses, refused, looks int
	}{
		"pod of another namespace":                      {shop, 0, 0, 0},
		"pod of another namespace that names an Egress": {Pod{Namespace: shop.Namespace, Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + "internet": "nat"}}, 1, 0, 0},
		"kube-system":                   {Pod{Namespace: membership.Namespace{Name: "kube-system"}}, 0, 0, 0},
		"pod of the tenant's namespace": {Pod{Namespace: membership.Namespace{Name: "tenant"}}, 1, membership.MaxSelecting - 1, membership.MaxSelecting},
	} {
		d := Decide(tt.pod, all)
		if looks := len(all.Selecting(tt.pod.Namespace)); len(d.Egresses) != tt.uses || len(d.Refused) != tt.refused || looks != tt.looks || d.Wanted != (tt.uses > 0) {
			t.Errorf("%s: uses %d, refused %d, selected by %d; want %d, %d, %d", name, len(d.Egresses), len(d.Refused), looks, tt.uses, tt.refused, tt.looks)
		}
	}
	// Adding or removing an Egress beyond the limit affects only itself; removing an active one activates another.
	more := made("tenant/e-400", 400, list[0].spec)
	if got := Changed(all, all.With(more.Ref, more), more.Ref); len(got) != 1 || all.With(more.Ref, more).TooMany(more) == "" {
		t.Errorf("Changed() after adding one = %v, want only the added one", got)
	}
	less := all.With(list[7].Ref, nil)
	if got := Changed(all, less, list[7].Ref); !slices.Equal(got, []membership.Ref{list[7].Ref, list[32].Ref}) {
		t.Errorf("Changed() after removing an active one = %v, want it and the next in age", got)
	}
	if all.TooMany(list[31]) != "" || all.TooMany(list[32]) == "" || less.TooMany(list[32]) != "" || all.TooMany(nat) != "" || all.Granting("tenant", true).TooMany(list[399]) != "" {
		t.Error("TooMany() reports the wrong Egresses")
	}
	if why := all.TooMany(list[32]); !strings.Contains(why, "namespace tenant has 32 older Egresses with spec.clients") {
		t.Errorf("TooMany() = %q, want the namespace and the limit", why)
	}
}

// A pod is told why an Egress no longer selects it, unless the Egress itself changed.
func TestReasonsForLosingAnEgress(t *testing.T) {
	nat := made("nat", 0, v1alpha1.EgressSpec{Clients: &v1alpha1.EgressClientSelector{NamespaceSelector: having("team", "shop"), PodSelector: having("app", "web")}})
	list := []*Egress{made("closed", 0, v1alpha1.EgressSpec{}), nat}
	for i := range membership.MaxSelecting {
		list = append(list, made(fmt.Sprintf("e-%d", i), i-100, v1alpha1.EgressSpec{Clients: &v1alpha1.EgressClientSelector{PodSelector: having("no", "pod")}}))
	}
	few, many := NewEgresses("", list[:2]), NewEgresses("", list)
	web := Pod{Namespace: membership.Namespace{Name: "shop", Labels: map[string]string{"team": "shop"}}, Labels: map[string]string{"app": "web"}}
	consents, other, elsewhere := web, web, web
	consents.Namespace.Annotations = map[string]string{v1alpha1.AnnotationEgressSelectableFrom: "internet"}
	other.Labels, elsewhere.Namespace.Labels = nil, nil
	for name, tt := range map[string]struct {
		all Egresses
		pod Pod
		why string
	}{
		"selected":                   {few, consents, ""},
		"no consent":                 {few, web, "Egress internet/nat no longer selects the pod: namespace shop does not let Egresses of namespace internet select its pods, see its annotation berth.dev/egress-selectable-from"},
		"other pod labels":           {few, other, ""},
		"other namespace labels":     {few, elsewhere, ""},
		"too many Egresses":          {many, consents, "namespace internet has 32 older Egresses"},
		"too many Egresses, granted": {many.Granting("internet", true), web, ""},
	} {
		if got := tt.all.NotSelected(nat.Ref, tt.pod); !strings.Contains(got, tt.why) || (got == "") != (tt.why == "") {
			t.Errorf("%s: NotSelected() = %q, want a reason containing %q", name, got, tt.why)
		}
	}
	if few.NotSelected(list[0].Ref, web) != "" || few.NotSelected(membership.Ref{Namespace: "a", Name: "b"}, web) != "" {
		t.Error("NotSelected() reports an Egress without a selector, or one that does not exist")
	}
	if got := nat.NoConsent(); !strings.Contains(got, "kubectl get namespaces -l 'team=shop' lists them") || !strings.Contains(got, "berth.dev/egress-selectable-from=internet") {
		t.Errorf("NoConsent() = %q, want the command and the annotation", got)
	}
	long := made("long", 0, v1alpha1.EgressSpec{Clients: &v1alpha1.EgressClientSelector{NamespaceSelector: &v1alpha1.LabelSelector{
		MatchExpressions: []v1alpha1.LabelRequirement{{Key: "a", Operator: "In", Values: []v1alpha1.LabelValue{v1alpha1.LabelValue(strings.Repeat("a", Most))}}},
	}}})
	if got := long.NoConsent(); len(got) > Most {
		t.Errorf("NoConsent() has %d bytes, want at most %d", len(got), Most)
	}
}

func TestEgresses(t *testing.T) {
	a, b := made("a", 0, v1alpha1.EgressSpec{Clients: &v1alpha1.EgressClientSelector{PodSelector: having("a", "b")}}), made("b", 0, v1alpha1.EgressSpec{})
	none := NewEgresses("", nil)
	one := none.With(a.Ref, a)
	two := one.With(b.Ref, b)
	if one.Get(b.Ref) != nil || two.Get(a.Ref) != a || two.Get(b.Ref) != b || two.With(a.Ref, nil).Get(a.Ref) != nil || two.Get(a.Ref) == nil || none.Get(a.Ref) != nil {
		t.Error("Get() after With() is wrong, or an immutable value was changed")
	}
	if got := two.Selecting(membership.Namespace{Name: "internet"}); len(got) != 1 || got[0] != a || len(two.Selecting(membership.Namespace{Name: "shop"})) != 0 {
		t.Errorf("Selecting() = %v, want [a]", got)
	}
	other := made("a", 0, v1alpha1.EgressSpec{Destinations: []string{"::/0"}, Clients: a.spec.Clients})
	replicas := int32(3)
	same := made("a", 0, v1alpha1.EgressSpec{Replicas: &replicas, Clients: &v1alpha1.EgressClientSelector{PodSelector: having("a", "b")}})
	again := made("a", 0, a.spec)
	again.UID = "another"
	for _, o := range []*Egress{other, again, nil, b} {
		if a.SameChoice(o) || o.SameChoice(a) {
			t.Errorf("%+v.SameChoice(%+v) = true", o, a)
		}
	}
	if !a.SameChoice(same) || !(*Egress)(nil).SameChoice(nil) {
		t.Error("SameChoice() depends on spec.replicas")
	}
}

// overlaps is a reference implementation: it compares all pairs of destinations.
func overlaps(a, b *Egress, yields bool) bool {
	return slices.ContainsFunc(a.destinations, func(p netip.Prefix) bool {
		return slices.ContainsFunc(b.destinations, func(q netip.Prefix) bool {
			all, part := p.Bits() == 0 && q.Bits() > 0, p.Bits() > 0 && q.Bits() == 0
			return p.Overlaps(q) && !all && (!part || yields)
		})
	})
}

func TestOverlap(t *testing.T) {
	dice, found := rand.New(rand.NewPCG(1, 2)), 0
	some := func(name string) *Egress {
		var list []string
		for range 1 + dice.IntN(3) {
			at := netip.AddrFrom4([4]byte{byte(dice.IntN(4) << 6)})
			if dice.IntN(3) == 0 {
				at = netip.AddrFrom16([16]byte{byte(dice.IntN(4) << 6)})
			}
			list = append(list, netip.PrefixFrom(at, dice.IntN(4)).Masked().String())
		}
		return made(name, 0, v1alpha1.EgressSpec{Destinations: list})
	}
	for i := range 5000 {
		a, b := some("a"), some("b")
		got, want := overlap(a, b, i%2 == 0), overlaps(a, b, i%2 == 0)
		if (got != "") != want {
			t.Fatalf("overlap(%v, %v) = %q, want an overlap: %t", a.spec.Destinations, b.spec.Destinations, got, want)
		}
		if want {
			found++
		}
	}
	if found < 1000 || found > 4000 {
		t.Errorf("%d of 5000 pairs overlap, want 1000 to 4000 for a meaningful test", found)
	}
}

// A user may let pods name the maximum number of Egresses, each with the maximum number of destinations. The cost
// must not grow with the square of their number: a pairwise comparison at sixteen times the limit takes minutes.
func TestManyDestinationsOfEgresses(t *testing.T) {
	var list []*Egress
	names := ""
	for i := range membership.MaxEgresses {
		var destinations []string
		for k := range 4096 {
			destinations = append(destinations, fmt.Sprintf("10.%d.%d.%d/28", i, k/16, k%16*16))
		}
		list = append(list, made(fmt.Sprintf("tenant/e-%d", i), i, v1alpha1.EgressSpec{Destinations: destinations}))
		names += fmt.Sprintf(",e-%d", i)
	}
	p := Pod{Namespace: membership.Namespace{Name: "tenant"}, Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + "tenant": names[1:]}}
	if d := Decide(p, NewEgresses("", list)); len(d.Egresses) != len(list) {
		t.Fatalf("Decide() uses %d Egresses, want %d", len(d.Egresses), len(list))
	}
}

func TestHolder(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for what, tt := range map[string]struct{ wins, loses Claim }{
		"confirmed by status":       {Claim{Confirmed: true, Created: at.Add(time.Hour)}, Claim{Served: true, Created: at}},
		"served, both confirmed":    {Claim{Confirmed: true, Served: true, Created: at.Add(time.Hour)}, Claim{Confirmed: true, Created: at}},
		"served, neither confirmed": {Claim{Served: true, Created: at.Add(time.Hour)}, Claim{Created: at}},
		"older pod":                 {Claim{Created: at}, Claim{Created: at.Add(time.Second)}},
		"same age, ordered by UID":  {Claim{UID: "a", Created: at}, Claim{UID: "b", Created: at}},
	} {
		for _, claims := range [][]Claim{{tt.wins, tt.loses}, {tt.loses, tt.wins}} {
			if got := Holder(claims); got != tt.wins {
				t.Errorf("%s: Holder() = %+v, want %+v", what, got, tt.wins)
			}
		}
	}
}

// Gateways serve a pod at the addresses that its kubelet reports. At addresses reported only with the node's token,
// they serve it for a limited time that no further report extends.
func TestConfirmedAddresses(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	over := now.Add(-Unconfirmed)
	pod, six, server := "10.1.0.5", "fd00::5", "203.0.113.9"
	for name, tt := range map[string]struct {
		node, kubelet []string
		since         time.Time
		want          Confirmed
	}{
		"node and kubelet agree":               {node: []string{pod, six}, kubelet: []string{six, pod}, want: Confirmed{Addresses: []string{pod, six}}},
		"kubelet confirms late":                {node: []string{pod}, kubelet: []string{pod}, since: over, want: Confirmed{Addresses: []string{pod}}},
		"node reports another address":         {node: []string{server}, kubelet: []string{pod}, want: Confirmed{Elsewhere: []string{server}}},
		"node reports one address too many":    {node: []string{pod, server}, kubelet: []string{pod}, since: now, want: Confirmed{Addresses: []string{pod}, Elsewhere: []string{server}}},
		"only the kubelet reports":             {kubelet: []string{pod}},
		"no reports":                           {},
		"first report of a starting pod":       {node: []string{pod}, want: Confirmed{Addresses: []string{pod}, Since: now}},
		"still starting before the deadline":   {node: []string{pod}, since: over.Add(1), want: Confirmed{Addresses: []string{pod}, Since: over.Add(1)}},
		"deadline passed":                      {node: []string{server}, since: over, want: Confirmed{Since: over}},
		"deadline passed and report withdrawn": {since: over, want: Confirmed{Since: over}},
	} {
		if got := Confirm(tt.node, tt.kubelet, tt.since, now); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: Confirm() = %+v, want %+v", name, got, tt.want)
		}
	}
}

// Pods that name an Egress with Coil's annotation are its clients if the Egress has clients of Coil. Others ignore the
// annotation.
func TestClientsOfCoil(t *testing.T) {
	object := func(name string, coil bool) *v1alpha1.Egress {
		o := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name, UID: types.UID(name)}}
		o.Spec = v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}}}
		if coil {
			o.Annotations = map[string]string{v1alpha1.AnnotationCoilClients: "true"}
		}
		return o
	}
	pod := Pod{Namespace: membership.Namespace{Name: "shop"}, Annotations: map[string]string{"egress.coil.cybozu.com/internet": "nat"}}
	for _, coil := range []bool{true, false} {
		e := NewEgress(object("nat", coil))
		d := Decide(pod, NewEgresses("berth-system", []*Egress{e}))
		if d.Wanted != coil || len(d.Refused) > 0 || (len(d.Egresses) == 1) != coil {
			t.Errorf("Egress with clients of Coil %t: decision %+v", coil, d)
		}
		if e.Reads(object("nat", !coil)) || !e.Reads(object("nat", coil)) || e.SameChoice(NewEgress(object("nat", !coil))) {
			t.Errorf("Egress with clients of Coil %t: a change of the annotation is not seen", coil)
		}
	}
	migrating := object("nat", true)
	migrating.Annotations[v1alpha1.AnnotationCoilEgress] = "1"
	if NewEgress(object("nat", true)).Reads(migrating) || !NewEgress(migrating).Migrating {
		t.Error("a migration of the Egress is not seen")
	}
	if d := Decide(pod, NewEgresses("berth-system", nil)); d.Wanted {
		t.Errorf("Coil's annotation without such an Egress: %+v, want no client", d)
	}
}
