package monitoring

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each alert has a page in docs/alerts, which begins with its name, and a row in the table of docs/alerts/README.md with its severity.
// No page is for an unknown alert.
func TestEveryAlertHasRunbook(t *testing.T) {
	index := readFile(t, "../../docs/alerts/README.md")
	names := []string{"README"}
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if page := readFile(t, "../../docs/alerts/"+a.Alert+".md"); !regexp.MustCompile(`^# ` + a.Alert + `\n\n[^#\n]`).MatchString(page) {
			t.Errorf("docs/alerts/%s.md does not begin with the name of the alert and a text", a.Alert)
		}
		if row := "\n| [" + a.Alert + "](" + a.Alert + ".md) | " + a.Labels["severity"] + " | "; !strings.Contains(index, row) {
			t.Errorf("docs/alerts/README.md has no row %q", row)
		}
	}
	for _, page := range glob(t, "../../docs/alerts/*.md") {
		if name := strings.TrimSuffix(filepath.Base(page), ".md"); !slices.Contains(names, name) {
			t.Errorf("docs/alerts has a page for %s, which is no alert", name)
		}
	}
}

// glob returns the files that match a pattern. It fails if there is none.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no file matches %s: %v", pattern, err)
	}
	return files
}
