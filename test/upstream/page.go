package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// The table of results is between these lines of the page.
const (
	tableBegin = "<!-- begin: written by make conformance -->\n"
	tableEnd   = "<!-- end -->"
)

// writePage writes the table of results into a page.
func writePage(file string, all []results) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("write the table of results: %w", err)
	}
	text, err := replaceTable(string(page), table(all))
	if err != nil {
		return fmt.Errorf("write the table of results into %s: %w", file, err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil { //nolint:gosec // the page that the command line names
		return fmt.Errorf("write the table of results: %w", err)
	}
	return nil
}

func replaceTable(page, table string) (string, error) {
	before, rest, found := strings.Cut(page, tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		return "", fmt.Errorf("the page lacks the lines %q and %q", strings.TrimSpace(tableBegin), tableEnd)
	}
	return before + tableBegin + "\n" + table + "\n" + tableEnd + after, nil
}

// table returns the results of all modes: counts by group, failed specs, and inapplicable specs by reason.
func table(all []results) string {
	var out strings.Builder
	out.WriteString("| specs | mode | pods | Kubernetes | passed | failed | not run | not applicable |\n|---|---|---|---|---|---|---|---|\n")
	for _, g := range groups {
		for _, r := range all {
			if !slices.ContainsFunc(r.Specs, func(s result) bool { return s.Group == g.name }) {
				continue
			}
			of := slices.DeleteFunc(slices.Clone(r.Specs), func(s result) bool { return s.Group != g.name })
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %d | %d | %d | %d |\n",
				g.what, r.Mode, r.Families, r.Kubernetes, count(of, passed), count(of, failed), count(of, notRun), count(of, notApplicable))
		}
	}
	out.WriteString(listed(all, failed, "\nFailed:\n\n| spec | runs | why |\n|---|---|---|\n"))
	out.WriteString(byReason(all))
	return out.String()
}

// listed returns a row for each spec with an outcome, after a heading; nothing if there are none.
func listed(all []results, outcome, heading string) string {
	runs, why := map[string][]string{}, map[string]string{}
	for _, r := range all {
		for _, s := range r.Specs {
			if s.Outcome == outcome {
				runs[s.Name] = append(runs[s.Name], r.Mode+" ("+string(r.Families)+")")
				why[s.Name] = s.Why
			}
		}
	}
	if len(runs) == 0 {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		heading += fmt.Sprintf("| %s | %s | %s |\n", cell(name), strings.Join(runs[name], ", "), cell(why[name]))
	}
	return heading
}

// byReason returns a row for each reason why specs are not applicable.
func byReason(all []results) string {
	names := map[string]map[string]bool{}
	for _, r := range all {
		for _, s := range r.Specs {
			if s.Outcome != notApplicable {
				continue
			}
			if names[s.Why] == nil {
				names[s.Why] = map[string]bool{}
			}
			names[s.Why][s.Name] = true
		}
	}
	if len(names) == 0 {
		return ""
	}
	out := "\nNot applicable:\n\n| why | specs |\n|---|---|\n"
	for _, why := range slices.Sorted(maps.Keys(names)) {
		of := slices.Sorted(maps.Keys(names[why]))
		text := cell(of[0])
		switch {
		case len(of) > 4:
			text = fmt.Sprintf("%d, such as %s", len(of), text)
		default:
			text = cell(strings.Join(of, "; "))
		}
		out += fmt.Sprintf("| %s | %s |\n", cell(why), text)
	}
	return out
}

// cell escapes text for a table cell.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", "\n", " ").Replace(text)
}
