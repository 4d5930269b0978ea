package monitoring

import (
	"regexp"
	"slices"
	"testing"
)

// TestEveryAlertHasARunbook checks that each alert has a section in docs/troubleshoot.md, and that
// no section is for an unknown alert.
func TestEveryAlertHasARunbook(t *testing.T) {
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### (Berth[A-Za-z0-9]+)\n\n[^#\n]`).FindAllStringSubmatch(readFile(t, "../../docs/troubleshoot.md"), -1) {
		sections = append(sections, m[1])
	}
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if !slices.Contains(sections, a.Alert) {
			t.Errorf("docs/troubleshoot.md has no section %s that says something", a.Alert)
		}
	}
	for _, s := range sections {
		if !slices.Contains(names, s) {
			t.Errorf("docs/troubleshoot.md has a section %s, and there is no such alert", s)
		}
	}
	if len(sections) != len(names) {
		t.Errorf("%d sections, %d alerts", len(sections), len(names))
	}
}
