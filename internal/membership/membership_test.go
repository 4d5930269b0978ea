package membership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

func TestNamed(t *testing.T) {
	many := make([]string, MaxEgresses)
	for i := range many {
		many[i] = fmt.Sprintf("nat-%d", i)
	}
	const prefix = "egress.berth.dev/"
	for what, tt := range map[string]struct {
		annotations map[string]string
		want        string
		errs        []string
	}{
		"none":            {map[string]string{"example.com/internet": "nat", "egress.berth.dev": "nat"}, "[]", nil},
		"one":             {map[string]string{prefix + "internet": "nat"}, "[internet/nat]", nil},
		"ordered":         {map[string]string{prefix + "internet": "nat, gate", prefix + "dmz": " a ,b"}, "[dmz/a dmz/b internet/gate internet/nat]", nil},
		"empty":           {map[string]string{prefix + "internet": ""}, "[]", []string{`metadata.annotations[egress.berth.dev/internet]: is "", whose name 1 is empty`}},
		"an empty name":   {map[string]string{prefix + "internet": "nat,,gate"}, "[]", []string{`is "nat,,gate", whose name 2 is empty`}},
		"twice":           {map[string]string{prefix + "internet": "nat,gate,nat"}, "[]", []string{"[egress.berth.dev/internet]: names nat twice"}},
		"no name":         {map[string]string{prefix + "internet": "NAT"}, "[]", []string{`names "NAT", expected the name of an Egress`}},
		"a digit first":   {map[string]string{prefix + "internet": "1nat"}, "[]", []string{`names "1nat"`}},
		"a long name":     {map[string]string{prefix + "internet": strings.Repeat("a", 53)}, "[]", []string{"at most 52"}},
		"the longest":     {map[string]string{prefix + "internet": strings.Repeat("a", 52)}, "[internet/" + strings.Repeat("a", 52) + "]", nil},
		"no namespace":    {map[string]string{prefix: "nat"}, "[]", []string{`[egress.berth.dev/]: names Egresses of ""`}},
		"a bad namespace": {map[string]string{prefix + "Inter_net": "nat", prefix + "dmz": "a"}, "[dmz/a]", []string{`[egress.berth.dev/Inter_net]: names Egresses of "Inter_net"`}},
		"as many":         {map[string]string{prefix + "internet": strings.Join(many, ",")}, "", nil},
		"too many":        {map[string]string{prefix + "internet": strings.Join(many, ",") + ",x"}, "[]", []string{"names 33 Egresses, expected at most 32"}},
		"too many of all": {map[string]string{prefix + "a": strings.Join(many, ","), prefix + "b": "nat"}, "", []string{"[egress.berth.dev/b]: names 1 Egresses, with other annotations more than 32"}},
		"two wrong":       {map[string]string{prefix + "b": "B", prefix + "a": "A"}, "[]", []string{`"A"`, `"B"`}},
	} {
		named, errs := Named(tt.annotations)
		if tt.want == "" {
			if len(named) != MaxEgresses {
				t.Errorf("%s: %d Egresses", what, len(named))
			}
		} else if got := fmt.Sprint(named); got != tt.want {
			t.Errorf("%s: got %s, want %s", what, got, tt.want)
		}
		if len(errs) != len(tt.errs) {
			t.Errorf("%s: got errors %v, want %d", what, errs, len(tt.errs))
			continue
		}
		for i, word := range tt.errs {
			if !strings.Contains(errs[i].Error(), word) {
				t.Errorf("%s: got %q, want %q in it", what, errs[i], word)
			}
		}
		if (errs.Err() == nil) != (len(tt.errs) == 0) {
			t.Errorf("%s: Err is %v", what, errs.Err())
		}
		if slices.Contains([]string{"none"}, what) == Annotated(tt.annotations) {
			t.Errorf("%s: Annotated is %t", what, Annotated(tt.annotations))
		}
	}
}

func TestSelector(t *testing.T) {
	has := func(key, value string) *v1alpha1.LabelSelector {
		return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
	}
	type of = v1alpha1.EgressClientSelector
	for what, tt := range map[string]struct {
		of             *of
		own, web, pods bool // namespace internet, where the Egress is; namespace shop with team: web; a pod with app: web
		other          bool // a pod without labels
	}{
		"not set":          {of: nil},
		"pods":             {&of{PodSelector: has("app", "web")}, true, false, true, false},
		"all of its own":   {&of{PodSelector: &v1alpha1.LabelSelector{}}, true, false, true, true},
		"namespaces":       {&of{NamespaceSelector: has("team", "web")}, false, true, true, true},
		"all namespaces":   {&of{NamespaceSelector: &v1alpha1.LabelSelector{}}, true, true, true, true},
		"pods in them":     {&of{NamespaceSelector: has("team", "web"), PodSelector: has("app", "web")}, false, true, true, false},
		"pods of all":      {&of{NamespaceSelector: &v1alpha1.LabelSelector{}, PodSelector: has("app", "web")}, true, true, true, false},
		"what none has":    {&of{NamespaceSelector: has("team", "db"), PodSelector: has("app", "db")}, false, false, false, false},
		"nothing is asked": {&of{}, true, false, true, true}, // the definition refuses it
	} {
		s, err := NewSelector("internet", tt.of)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		own, web := s.Namespace("internet", nil), s.Namespace("shop", map[string]string{"team": "web"})
		pods, other := s.Pod(map[string]string{"app": "web"}), s.Pod(nil)
		if own != tt.own || web != tt.web || pods != tt.pods || other != tt.other || s.Any() != (tt.of != nil) {
			t.Errorf("%s: own %t, web %t, pods %t, other %t, any %t", what, own, web, pods, other, s.Any())
		}
	}
	bad := &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{{Key: "a", Operator: "Near"}}}
	for field, of := range map[string]*of{"spec.clients.namespaceSelector": {NamespaceSelector: bad}, "spec.clients.podSelector": {PodSelector: bad}} {
		if _, err := NewSelector("internet", of); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestAllows(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
	for what, tt := range map[string]struct {
		of   *v1alpha1.VPCNamespaces
		want bool
	}{
		"not set":  {nil, false},
		"named":    {&v1alpha1.VPCNamespaces{Names: []string{"db", "shop"}}, true},
		"all":      {&v1alpha1.VPCNamespaces{Names: []string{"*"}}, true},
		"others":   {&v1alpha1.VPCNamespaces{Names: []string{"db"}}, false},
		"selected": {&v1alpha1.VPCNamespaces{Names: []string{"db"}, Selector: selector}, true},
	} {
		if got, err := tt.of.Allows("shop", map[string]string{"team": "web"}); got != tt.want || err != nil {
			t.Errorf("%s: %t, %v", what, got, err)
		}
	}
}

// all is a set of Egresses that select everything, the first of a namespace the oldest.
func all(t *testing.T, refs ...Ref) Selectors {
	t.Helper()
	s := NewSelectors("berth-system")
	for i, ref := range refs {
		of, err := NewSelector(ref.Namespace, &v1alpha1.EgressClientSelector{NamespaceSelector: &v1alpha1.LabelSelector{}})
		if err != nil {
			t.Fatal(err)
		}
		s, _ = s.With(ref, time.Unix(int64(i), 0), of)
	}
	return s
}

// TestConsent has whose Egresses may select pods of a namespace.
func TestConsent(t *testing.T) {
	s := all(t, Ref{"dmz", "a"}, Ref{"internet", "a"}, Ref{"shop", "a"}, Ref{"kube-system", "a"}, Ref{"berth-system", "a"})
	s = s.Granting("dmz", true)
	labelled := map[string]string{v1alpha1.LabelEgressMaySelect: "true", "team": "shop"}
	for what, tt := range map[string]struct {
		of      string
		consent string
		want    string // of whom, in order
		misses  string
	}{
		"nothing":               {"shop", "", "dmz shop", "berth-system internet kube-system"},
		"one":                   {"shop", "internet", "dmz internet shop", "berth-system kube-system"},
		"several":               {"shop", " kube-system , internet,", "dmz internet kube-system shop", "berth-system"},
		"all":                   {"shop", "*", "berth-system dmz internet kube-system shop", ""},
		"none that there is":    {"shop", "Internet,inter*,,", "dmz shop", "berth-system internet kube-system"},
		"one with a grant":      {"shop", "dmz", "dmz shop", "berth-system internet kube-system"},
		"nobody's own":          {"bank", "", "dmz", "berth-system internet kube-system shop"},
		"Kubernetes' own":       {"kube-system", "internet,*", "kube-system", ""},
		"Kubernetes' public":    {"kube-public", "internet", "", ""},
		"Kubernetes' leases":    {"kube-node-lease", "*", "", ""},
		"Berth's own":           {"berth-system", "internet", "berth-system", ""},
		"it may select, itself": {"dmz", "", "dmz", "berth-system internet kube-system shop"},
	} {
		n := Namespace{tt.of, labelled, map[string]string{v1alpha1.AnnotationEgressSelectableFrom: tt.consent}}
		names := func(refs []Ref) (out string) {
			slices.SortFunc(refs, Ref.Compare)
			for _, r := range refs {
				out += " " + r.Namespace
			}
			return out
		}
		if got, misses := names(s.Of(n)), names(s.MissingConsent(n)); got != prefixed(tt.want) || misses != prefixed(tt.misses) {
			t.Errorf("%s: selected by%s, consent is missed by%s; want%s and%s", what, got, misses, prefixed(tt.want), prefixed(tt.misses))
		}
		for _, ref := range []Ref{{"dmz", "a"}, {"internet", "a"}, {"shop", "a"}, {"kube-system", "a"}, {"berth-system", "a"}, {"none", "a"}} {
			if s.Selects(ref, n) != slices.Contains(s.Of(n), ref) || s.MissesConsent(ref, n) != slices.Contains(s.MissingConsent(n), ref) {
				t.Errorf("%s: of %s two say two things", what, ref)
			}
		}
	}
	if !(Namespace{Labels: labelled}).Granted() || (Namespace{Labels: map[string]string{v1alpha1.LabelEgressMaySelect: ""}}).Granted() {
		t.Error("a grant is read wrongly")
	}
}

func prefixed(s string) string {
	if s == "" {
		return ""
	}
	return " " + s
}

// However many Egresses a tenant makes, for pods of others none of them is looked at, and for
// those of its own namespace, and of such that consent, MaxSelecting of them: the oldest.
func TestSelectorsAreBounded(t *testing.T) {
	var refs []Ref
	for i := range 400 {
		refs = append(refs, Ref{"tenant", fmt.Sprintf("e-%03d", i)})
	}
	s := all(t, append(refs, Ref{"shop", "a"})...)
	consenting := Namespace{Name: "bank", Annotations: map[string]string{v1alpha1.AnnotationEgressSelectableFrom: "*"}}
	for _, tt := range []struct {
		n    Namespace
		want int
	}{{Namespace{Name: "shop"}, 1}, {Namespace{Name: "kube-system"}, 0}, {Namespace{Name: "tenant"}, MaxSelecting}, {consenting, MaxSelecting + 1}} {
		if got := len(s.candidates(tt.n)); got != tt.want {
			t.Errorf("for pods of %s %d selectors are looked at, want %d", tt.n.Name, got, tt.want)
		}
	}
	if got := s.Of(Namespace{Name: "tenant"}); !slices.Equal(got, refs[:MaxSelecting]) {
		t.Errorf("selecting are %v", got)
	}
	if !s.IsActive(refs[31]) || s.IsActive(refs[32]) {
		t.Error("not the oldest are active")
	}
	less, differs := s.Without(refs[3])
	if !differs || !less.IsActive(refs[32]) || less.IsActive(refs[33]) || !s.IsActive(refs[3]) {
		t.Error("the next does not take the place of one that is gone, or a value was changed")
	}
	if _, differs := less.Without(refs[3]); differs {
		t.Error("one that is not there was taken out")
	}
	same := all(t, refs[0])
	of := same.of["tenant"][0]
	if _, differs := same.With(of.ref, of.created, of.selector); differs {
		t.Error("one that is as it was differs")
	}
	if granted := s.Granting("tenant", true); !granted.IsActive(refs[399]) || granted.Granting("tenant", false).IsActive(refs[399]) {
		t.Error("a grant does not lift the bound, or does for good")
	}
}
