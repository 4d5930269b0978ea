package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	testComment  = regexp.MustCompile(`[ \t]*<!--(?s:.*?)-->`)
	relativeLink = regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)
)

// addNotes adds the release notes: the section of the version in CHANGELOG.md, or of the version without its suffix for a
// pre-release.
func (r release) addNotes() error {
	changelog, err := os.ReadFile(filepath.Join(r.tree, "CHANGELOG.md"))
	if err != nil {
		return fmt.Errorf("read the changelog: %w", err)
	}
	text, err := notes(string(changelog), r.version)
	if err != nil {
		return err
	}
	return r.add("release-notes.md", []byte(text))
}

// notes returns the section of a version. Its links lead to the documents of that version, and comments are removed.
func notes(changelog, version string) (string, error) {
	number := strings.TrimPrefix(version, "v")
	final, _, _ := strings.Cut(number, "-")
	for _, title := range []string{number, final} {
		_, rest, found := strings.Cut(changelog, "\n## ["+title+"]")
		if !found {
			continue
		}
		_, section, _ := strings.Cut(rest, "\n") // the date
		section, _, _ = strings.Cut(section, "\n## [")
		section = relativeLink.ReplaceAllString(testComment.ReplaceAllString(section, ""), "]("+repository+"/blob/"+version+"/$1$2)")
		if section = strings.TrimSpace(section); section == "" {
			return "", fmt.Errorf("CHANGELOG.md: the section [%s] is empty", title)
		}
		return section + "\n", nil
	}
	return "", fmt.Errorf("CHANGELOG.md has no section [%s]: rename [Unreleased] before the release", final)
}
