package neutronscenes

import (
	"encoding/json"
	"fmt"
	"testing"
)

// Compare fails a test if the lab's Neutron replies differently from a real one: with another status, type or message
// of errors, or with attributes that the real one lacks.
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
			t.Errorf("exchange %d, %s: %s\nlab       %d %s\nNeutron   %d %s", i, g.Request, why, g.Status, text(g.Answer), w.Status, text(w.Answer))
		}
	}
	if len(lab) != len(neutron) {
		t.Errorf("%d exchanges with the lab, %d with Neutron", len(lab), len(neutron))
	}
}

// within returns how a reply of the lab differs from Neutron's, which may have more attributes; empty if it does not.
func within(at string, got, want any) string {
	switch g := got.(type) {
	case map[string]any:
		w, ok := want.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is an object only in the lab", at)
		}
		for k, v := range g {
			if _, has := w[k]; !has {
				return fmt.Sprintf("%s.%s exists only in the lab", at, k)
			}
			if why := within(at+"."+k, v, w[k]); why != "" {
				return why
			}
		}
		return ""
	case []any:
		w, ok := want.([]any)
		if !ok || len(w) != len(g) {
			return fmt.Sprintf("%s has %d items in the lab", at, len(g))
		}
		for i := range g {
			if why := within(fmt.Sprintf("%s[%d]", at, i), g[i], w[i]); why != "" {
				return why
			}
		}
		return ""
	}
	if !equal(got, want) {
		return fmt.Sprintf("%s = %v, want %v", at, got, want)
	}
	return ""
}

func equal(a, b any) bool { return text(a) == text(b) }

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
