package neutronscenes

import (
	"encoding/json"
	"fmt"
	"testing"
)

// Compare fails a test where the lab's Neutron answers otherwise than a real one: with another
// status, type or words of errors, or with attributes that the real one has not.
func Compare(t *testing.T, lab, neutron []Exchange) {
	t.Helper()
	for i := range min(len(lab), len(neutron)) {
		g, w := lab[i], neutron[i]
		if g.Request != w.Request || g.Match != w.Match || !equal(g.Body, w.Body) {
			t.Fatalf("exchange %d\nwith the lab   %s\nwith Neutron   %s", i, text(g), text(w))
		}
		why := within("the answer", g.Answer, w.Answer)
		if g.Status != w.Status {
			why = "another status"
		}
		if why != "" {
			t.Errorf("exchange %d, %s: %s\nof the lab   %d %s\nof Neutron   %d %s", i, g.Request, why, g.Status, text(g.Answer), w.Status, text(w.Answer))
		}
	}
	if len(lab) != len(neutron) {
		t.Errorf("%d exchanges with the lab, %d with Neutron", len(lab), len(neutron))
	}
}

// within tells what of an answer of the lab is not so in Neutron's, which may have more
// attributes; empty: nothing.
func within(at string, got, want any) string {
	switch g := got.(type) {
	case map[string]any:
		w, ok := want.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is an object", at)
		}
		for k, v := range g {
			if _, has := w[k]; !has {
				return fmt.Sprintf("%s.%s is not there", at, k)
			}
			if why := within(at+"."+k, v, w[k]); why != "" {
				return why
			}
		}
		return ""
	case []any:
		w, ok := want.([]any)
		if !ok || len(w) != len(g) {
			return fmt.Sprintf("%s has %d items", at, len(g))
		}
		for i := range g {
			if why := within(fmt.Sprintf("%s[%d]", at, i), g[i], w[i]); why != "" {
				return why
			}
		}
		return ""
	}
	if !equal(got, want) {
		return fmt.Sprintf("%s is %v, not %v", at, got, want)
	}
	return ""
}

func equal(a, b any) bool { return text(a) == text(b) }

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
