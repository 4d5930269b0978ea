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
		"none":                       {map[string]string{"example.com/internet": "nat", "egress.berth.dev": "nat"}, "[]", nil},
		"one":                        {map[string]string{prefix + "internet": "nat"}, "[internet/nat]", nil},
		"ordered":                    {map[string]string{prefix + "internet": "nat, gate", prefix + "dmz": " a ,b"}, "[dmz/a dmz/b internet/gate internet/nat]", nil},
		"empty":                      {map[string]string{prefix + "internet": ""}, "[]", []string{`metadata.annotations[egress.berth.dev/internet]: is "", whose name 1 is empty`}},
		"empty name in a list":       {map[string]string{prefix + "internet": "nat,,gate"}, "[]", []string{`is "nat,,gate", whose name 2 is empty`}},
		"name twice":                 {map[string]string{prefix + "internet": "nat,gate,nat"}, "[]", []string{"[egress.berth.dev/internet]: names nat twice"}},
		"invalid name":               {map[string]string{prefix + "internet": "NAT"}, "[]", []string{`names "NAT", expected the name of an Egress`}},
		"a digit first":              {map[string]string{prefix + "internet": "1nat"}, "[]", []string{`names "1nat"`}},
		"name too long":              {map[string]string{prefix + "internet": strings.Repeat("a", 53)}, "[]", []string{"at most 52"}},
		"longest name":               {map[string]string{prefix + "internet": strings.Repeat("a", 52)}, "[internet/" + strings.Repeat("a", 52) + "]", nil},
		"empty namespace":            {map[string]string{prefix: "nat"}, "[]", []string{`[egress.berth.dev/]: names Egresses of ""`}},
		"invalid namespace":          {map[string]string{prefix + "Inter_net": "nat", prefix + "dmz": "a"}, "[dmz/a]", []string{`[egress.berth.dev/Inter_net]: names Egresses of "Inter_net"`}},
		"at the limit":               {map[string]string{prefix + "internet": strings.Join(many, ",")}, "", nil},
		"too many in one annotation": {map[string]string{prefix + "internet": strings.Join(many, ",") + ",x"}, "[]", []string{"names 33 Egresses, expected at most 32"}},
		"too many in total":          {map[string]string{prefix + "a": strings.Join(many, ","), prefix + "b": "nat"}, "", []string{"[egress.berth.dev/b]: names 1 Egresses, with other annotations more than 32"}},
		"two errors":                 {map[string]string{prefix + "b": "B", prefix + "a": "A"}, "[]", []string{`"A"`, `"B"`}},
	} {
		named, errs := Named(tt.annotations)
		if tt.want == "" {
			if len(named) != MaxEgresses {
				t.Errorf("%s: Named() returned %d Egresses, want the maximum", what, len(named))
			}
		} else if got := fmt.Sprint(named); got != tt.want {
			t.Errorf("%s: got %s, want %s", what, got, tt.want)
		}
		if len(errs) != len(tt.errs) {
			t.Errorf("%s: errors = %v, want %d of them", what, errs, len(tt.errs))
			continue
		}
		for i, word := range tt.errs {
			if !strings.Contains(errs[i].Error(), word) {
				t.Errorf("%s: error = %q, want it to contain %q", what, errs[i], word)
			}
		}
		if (errs.Err() == nil) != (len(tt.errs) == 0) {
			t.Errorf("%s: Err() = %v, want it set exactly if there are errors", what, errs.Err())
		}
		if slices.Contains([]string{"none"}, what) == Annotated(tt.annotations) {
			t.Errorf("%s: Annotated() = %t", what, Annotated(tt.annotations))
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
		other          bool // pod without labels
	}{
		"not set":                   {of: nil},
		"pods":                      {&of{PodSelector: has("app", "web")}, true, false, true, false},
		"all pods of its namespace": {&of{PodSelector: &v1alpha1.LabelSelector{}}, true, false, true, true},
		"namespaces":                {&of{NamespaceSelector: has("team", "web")}, false, true, true, true},
		"all namespaces":            {&of{NamespaceSelector: &v1alpha1.LabelSelector{}}, true, true, true, true},
		"pods in namespaces":        {&of{NamespaceSelector: has("team", "web"), PodSelector: has("app", "web")}, false, true, true, false},
		"pods in all namespaces":    {&of{NamespaceSelector: &v1alpha1.LabelSelector{}, PodSelector: has("app", "web")}, true, true, true, false},
		"labels that nothing has":   {&of{NamespaceSelector: has("team", "db"), PodSelector: has("app", "db")}, false, false, false, false},
		"empty selector":            {&of{}, true, false, true, true}, // rejected by the CRD
	} {
		s, err := NewSelector("internet", tt.of)
		if err != nil {
			t.Fatalf("%s: NewSelector() error = %v, want none", what, err)
		}
		own, web := s.Namespace("internet", nil), s.Namespace("shop", map[string]string{"team": "web"})
		pods, other := s.Pod(map[string]string{"app": "web"}), s.Pod(nil)
		if own != tt.own || web != tt.web || pods != tt.pods || other != tt.other || s.Any() != (tt.of != nil) {
			t.Errorf("%s: selected: own %t, web %t, pods %t, other %t, any %t", what, own, web, pods, other, s.Any())
		}
	}
	bad := &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{{Key: "a", Operator: "Near"}}}
	for field, of := range map[string]*of{"spec.clients.namespaceSelector": {NamespaceSelector: bad}, "spec.clients.podSelector": {PodSelector: bad}} {
		if _, err := NewSelector("internet", of); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: NewSelector() = %v, want an error that names the field", field, err)
		}
	}
}

func TestVPCNamespaces(t *testing.T) {
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
			t.Errorf("%s: Allows() = %t, %v", what, got, err)
		}
	}
}

// all returns Selectors with Egresses that select everything, oldest first.
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

// A namespace decides which Egresses may select its pods.
func TestConsent(t *testing.T) {
	s := all(t, Ref{"dmz", "a"}, Ref{"internet", "a"}, Ref{"shop", "a"}, Ref{"kube-system", "a"}, Ref{"berth-system", "a"})
	s = s.Granting("dmz", true)
	labelled := map[string]string{v1alpha1.LabelEgressMaySelect: "true", "team": "shop"}
	for what, tt := range map[string]struct {
		of      string
		consent string
		want    string // namespaces whose Egresses may select its pods, in order
		misses  string
	}{
		"nothing":                       {"shop", "", "dmz shop", "berth-system internet kube-system"},
		"one":                           {"shop", "internet", "dmz internet shop", "berth-system kube-system"},
		"several":                       {"shop", " kube-system , internet,", "dmz internet kube-system shop", "berth-system"},
		"all":                           {"shop", "*", "berth-system dmz internet kube-system shop", ""},
		"namespaces that do not exist":  {"shop", "Internet,inter*,,", "dmz shop", "berth-system internet kube-system"},
		"namespace with a grant":        {"shop", "dmz", "dmz shop", "berth-system internet kube-system"},
		"no Egress in the namespace":    {"bank", "", "dmz", "berth-system internet kube-system shop"},
		"kube-system":                   {"kube-system", "internet,*", "kube-system", ""},
		"kube-public":                   {"kube-public", "internet", "", ""},
		"kube-node-lease":               {"kube-node-lease", "*", "", ""},
		"Berth's namespace":             {"berth-system", "internet", "berth-system", ""},
		"namespace with a grant itself": {"dmz", "", "dmz", "berth-system internet kube-system shop"},
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
			t.Errorf("%s: selected by%s, missing consent for%s; want%s and%s", what, got, misses, prefixed(tt.want), prefixed(tt.misses))
		}
		for _, ref := range []Ref{{"dmz", "a"}, {"internet", "a"}, {"shop", "a"}, {"kube-system", "a"}, {"berth-system", "a"}, {"none", "a"}} {
			if s.Selects(ref, n) != slices.Contains(s.Of(n), ref) || s.MissesConsent(ref, n) != slices.Contains(s.MissingConsent(n), ref) {
				t.Errorf("%s: Selects and Of, or MissesConsent and MissingConsent, disagree about %s", what, ref)
			}
		}
	}
	if !(Namespace{Labels: labelled}).Granted() || (Namespace{Labels: map[string]string{v1alpha1.LabelEgressMaySelect: ""}}).Granted() {
		t.Error("Granted() is wrong for a label that is true, or for an empty one")
	}
}

func prefixed(s string) string {
	if s == "" {
		return ""
	}
	return " " + s
}

// The Egresses of a tenant are never evaluated for pods of other namespaces, however many there are. For
// pods of its own namespace, and of namespaces that consent, the oldest MaxSelecting are.
func TestSelectorsPerNamespaceAreLimited(t *testing.T) {
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
			t.Errorf("for pods of %s %d selectors are evaluated, want %d", tt.n.Name, got, tt.want)
		}
	}
	if got := s.Of(Namespace{Name: "tenant"}); !slices.Equal(got, refs[:MaxSelecting]) {
		t.Errorf("Of(tenant) = %v, want the oldest", got)
	}
	if !s.IsActive(refs[31]) || s.IsActive(refs[32]) {
		t.Error("IsActive() does not hold for exactly the oldest Egresses")
	}
	less, differs := s.Without(refs[3])
	if !differs || !less.IsActive(refs[32]) || less.IsActive(refs[33]) || !s.IsActive(refs[3]) {
		t.Error("the next Egress did not become active after one was removed, or an immutable value was changed")
	}
	if _, differs := less.Without(refs[3]); differs {
		t.Error("removing an unknown Egress made a difference")
	}
	same := all(t, refs[0])
	of := same.of["tenant"][0]
	if _, differs := same.With(of.ref, of.created, of.selector); differs {
		t.Error("adding an unchanged Egress made a difference")
	}
	if granted := s.Granting("tenant", true); !granted.IsActive(refs[399]) || granted.Granting("tenant", false).IsActive(refs[399]) {
		t.Error("a grant does not lift the bound, or its removal does not restore it")
	}
}

// Coil's annotation names Egresses beside Berth's own, which counts first.
func TestNamedForCoil(t *testing.T) {
	const own, coils = "egress.berth.dev/internet", "egress.coil.cybozu.com/internet"
	for what, tt := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"none":             {map[string]string{own: "nat"}, "[]"},
		"Coil's":           {map[string]string{coils: "nat,partner"}, "[internet/nat internet/partner]"},
		"both":             {map[string]string{coils: "nat,partner", own: "nat"}, "[internet/partner]"},
		"invalid":          {map[string]string{coils: "NAT"}, "[]"},
		"of another group": {map[string]string{"egress.example.com/internet": "nat"}, "[]"},
	} {
		if got := fmt.Sprint(NamedForCoil(tt.annotations)); got != tt.want {
			t.Errorf("%s: NamedForCoil() = %s, want %s", what, got, tt.want)
		}
	}
}

// What has only the name of Coil's Egress, or of its kind, is not Coil's.
func TestObjectsOfCoil(t *testing.T) {
	owned := func(change func(*metav1.OwnerReference)) *metav1.ObjectMeta {
		r := metav1.OwnerReference{APIVersion: "coil.cybozu.com/v2", Kind: "Egress", Name: "nat", UID: "1", Controller: new(true)}
		change(&r)
		return &metav1.ObjectMeta{Name: "nat", OwnerReferences: []metav1.OwnerReference{r}}
	}
	if !IsCoils(owned(func(*metav1.OwnerReference) {}), "1") {
		t.Error("an object of Coil's Egress is not recognized")
	}
	for name, o := range map[string]*metav1.ObjectMeta{
		"nobody's":             {Name: "nat"},
		"an earlier Egress's":  owned(func(r *metav1.OwnerReference) { r.UID = "2" }),
		"Berth's":              owned(func(r *metav1.OwnerReference) { r.APIVersion = v1alpha1.GroupVersion.String() }),
		"an AddressPool's":     owned(func(r *metav1.OwnerReference) { r.Kind = "AddressPool" }),
		"another Egress's":     owned(func(r *metav1.OwnerReference) { r.Name = "web" }),
		"not controlled by it": owned(func(r *metav1.OwnerReference) { r.Controller = nil }),
	} {
		if IsCoils(o, "1") {
			t.Errorf("an object that is %s counts as Coil's", name)
		}
	}
	if IsCoils(owned(func(r *metav1.OwnerReference) { r.UID = "" }), "") {
		t.Error("an object counts as Coil's for an Egress that replaces none of Coil's")
	}
}
