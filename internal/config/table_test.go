package config

import (
	"strconv"
	"strings"
	"testing"
)

// The form of a setting describes what its parser accepts.
func TestFormsAreWhatParsersTake(t *testing.T) {
	for _, s := range append(Settings(), OperatorSettings()...) {
		form := s.Form()
		takes := func(text string, want bool) {
			t.Helper()
			if err := s.parse.store(text); (err == nil) != want {
				t.Errorf("--%s, a %s: takes %q: %v, %v", s.Flag, form.Kind, text, err == nil, err)
			}
		}
		switch form.Kind {
		case Boolean:
			takes("true", true)
			takes("false", true)
			takes("5", false)
		case Integer:
			takes(strconv.Itoa(form.High), true)
			takes(strconv.Itoa(form.High+1), false)
			takes(strconv.Itoa(form.Low), true)
			if form.Low >= 0 {
				takes(strconv.Itoa(form.Low-1), false)
			}
			takes("many", false)
		case Duration:
			takes("90s", true)
			takes("90", true)
			takes("soon", false)
		case Word:
			for _, w := range form.Words {
				takes(w, true)
				takes(strings.ToUpper(w), true)
			}
			takes("another", false)
		case Path:
			takes("/some/path", true)
			takes("path", false)
		case List, Pairs, Text:
		default:
			t.Errorf("--%s has the form %q", s.Flag, form.Kind)
		}
		if form.Kind == Boolean != (s.bare || s.Flag == "block-metadata") {
			t.Errorf("--%s, a %s, needs no value: %v", s.Flag, form.Kind, s.bare)
		}
	}
}
