package monitoring

import (
	"regexp"
	"slices"
	"testing"
)

// Each alert has a section in docs/troubleshoot/README.md, and no section is for an unknown alert.
func TestEveryAlertHasRunbook(t *testing.T) {
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### (Berth[A-Za-z0-9]+)\n\n[^#\n]`).FindAllStringSubmatch(readFile(t, "../../docs/troubleshoot/README.md"), -1) {
		sections = append(sections, m[1])
	}
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if !slices.Contains(sections, a.Alert) {
			t.Errorf("docs/troubleshoot/README.md has no section %s, or an empty one", a.Alert)
		}
	}
	for _, s := range sections {
		if !slices.Contains(names, s) {
			t.Errorf("docs/troubleshoot/README.md has a section %s without an alert", s)
		}
	}
	if len(sections) != len(names) {
		t.Errorf("%d sections for %d alerts", len(sections), len(names))
	}
}
