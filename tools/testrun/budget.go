package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	// unlisted is the number of CPU seconds allowed for a package without a row in the budget.
	unlisted = 25
	// tolerance is the factor by which a package may exceed its row, when the median package does not.
	tolerance = 2
	// totalRow is the name of the row for the sum of all packages.
	totalRow = "total"
	// fewRows is the number of rows below which a run does not show how expensive the machine is.
	fewRows = 8
	// mostExpensive is the maximum factor that a run's own costs explain.
	mostExpensive = 2.5

	budgetHeader = "package\tcpu-seconds"
)

// budget is the number of CPU seconds that packages may use.
type budget struct {
	file  string
	total float64
	rows  map[string]float64 // by folder below the module's root
	apart map[string]bool    // rows that do not count towards the total
}

// scale returns the factor for all limits: by how much the median package exceeded its row, at least 1. The same tests use more
// CPU time on a slower or busier machine, where they poll for longer and lose their caches more often.
func (b *budget) scale(r *report) float64 {
	var ratios []float64
	for name, u := range r.accounts.used {
		if row, listed := b.rows[r.short(name)]; listed {
			ratios = append(ratios, u.CPU/row)
		}
	}
	if len(ratios) < fewRows {
		return 1
	}
	slices.Sort(ratios)
	return min(max(1, ratios[(len(ratios)-1)/2]), mostExpensive)
}

// readBudget reads a budget for the module whose root is a folder.
func readBudget(file, root string) (*budget, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the budget: %w", err)
	}
	b := &budget{file: file, rows: map[string]float64{}, apart: map[string]bool{}}
	var wrong []error
	header, last := false, ""
	for i, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		complain := func(format string, args ...any) {
			wrong = append(wrong, fmt.Errorf("%s:%d: %q: %s", file, i+1, line, fmt.Sprintf(format, args...)))
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !header {
			if header = true; line != budgetHeader {
				complain("expected the header %q", budgetHeader)
			}
			continue
		}
		name, number, _ := strings.Cut(line, "\t")
		number, apart := strings.CutPrefix(number, "+")
		seconds, err := strconv.ParseFloat(number, 64)
		switch {
		case err != nil || !(seconds > 0):
			complain("expected a package, a tab and its CPU seconds, a number above 0")
		case b.total == 0 && name != totalRow:
			complain("expected the first row to be %q", totalRow)
		case b.total == 0:
			b.total = seconds
			continue
		case name <= last:
			complain("expected rows sorted by package, without duplicates; %q is before it", last)
		case !hasTests(filepath.Join(root, name)):
			complain("expected a package with tests, below the root of the module; %s has no *_test.go", name)
		}
		b.rows[name], b.apart[name], last = seconds, apart, name
	}
	if b.total == 0 && wrong == nil {
		wrong = append(wrong, fmt.Errorf("%s: expected a first row %q", file, totalRow))
	}
	return b, errors.Join(wrong...)
}

func hasTests(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return len(files) > 0
}

// verdicts lists what exceeded the budget. Packages without usage were in Go's cache.
func (b *budget) verdicts(r *report) (exceeded []string) {
	sum, scale := 0.0, b.scale(r)
	for _, name := range r.dearest() {
		u, known := r.accounts.used[name]
		if !known {
			if p := r.results[name]; p.passed && !p.cached {
				exceeded = append(exceeded, fmt.Sprintf("%s: its CPU time is unknown, so it cannot be compared with %s", r.short(name), b.file))
			}
			continue
		}
		if !b.apart[r.short(name)] {
			sum += u.CPU
		}
		row, listed := b.rows[r.short(name)]
		its := fmt.Sprintf("its row in %s has %g", b.file, row)
		if !listed {
			row = unlisted
			its = fmt.Sprintf("a package without a row in %s has %d", b.file, unlisted)
		}
		if limit := tolerance * row * scale; u.CPU > limit {
			exceeded = append(exceeded, fmt.Sprintf("%s used %.1f CPU-s: %s, and the limit is %.4g. Fix the test, or raise its row in %s in the same commit. Its most expensive tests:%s",
				r.short(name), u.CPU, its, limit, b.file, r.dearestTests(name)))
		}
	}
	if sum > b.total*scale {
		var text strings.Builder
		for _, name := range first(r.dearest(), dearestShown) {
			fmt.Fprintf(&text, "\n    %s, %.1f CPU-s:%s", r.short(name), r.accounts.used[name].CPU, strings.ReplaceAll(r.dearestTests(name), "\n", "\n  "))
		}
		exceeded = append(exceeded, fmt.Sprintf("all packages used %.1f CPU-s, and the row %q in %s has %g, in this run %.4g. Fix tests, or raise the row in the same commit. The most expensive packages and tests:%s",
			sum, totalRow, b.file, b.total, b.total*scale, text.String()))
	}
	return exceeded
}

// short returns the folder of a package below the module's root.
func (r *report) short(pkg string) string {
	if pkg == r.module {
		return "."
	}
	return strings.TrimPrefix(pkg, r.module+"/")
}
