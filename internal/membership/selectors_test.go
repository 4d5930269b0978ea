package membership

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
)

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
