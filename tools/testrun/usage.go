package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"gotest.tools/gotestsum/testjson"
)

// dearest returns the packages, those that used most CPU time first.
func (r *report) dearest() []string {
	var names []string
	for name := range r.results {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(r.accounts.used[b].CPU, r.accounts.used[a].CPU), cmp.Compare(r.wall(b), r.wall(a)), cmp.Compare(a, b))
	})
	return names
}

// wall is the duration of a package in seconds.
func (r *report) wall(name string) float64 {
	if u, known := r.accounts.used[name]; known {
		return u.Wall
	}
	return r.results[name].took.Seconds()
}

// dearestTests formats the tests of a package that took longest and have no subtests.
func (r *report) dearestTests(name string) string {
	tests := slices.Clone(r.results[name].tests)
	parents := map[testjson.TestName]bool{}
	for _, tc := range tests {
		parents[testjson.TestName(tc.Test.Parent())] = true
	}
	tests = slices.DeleteFunc(tests, func(tc testjson.TestCase) bool { return parents[tc.Test] })
	slices.SortStableFunc(tests, func(a, b testjson.TestCase) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	var text strings.Builder
	for _, tc := range first(tests, dearestShown) {
		fmt.Fprintf(&text, "\n    %7.1f s  %s", tc.Elapsed.Seconds(), tc.Test)
	}
	return text.String()
}

func first[T any](all []T, n int) []T { return all[:min(n, len(all))] }

// columns are the header of a table of packages. The cells of a package follow it.
func columns() []string {
	all := []string{"CPU-s", "wall-s"}
	for _, p := range programs {
		all = append(all, p.name)
	}
	return append(all, other)
}

func (r *report) cells(name string) []string {
	u, known := r.accounts.used[name]
	cpu := "-"
	switch {
	case known:
		cpu = fmt.Sprintf("%.1f", u.CPU)
	case r.results[name].cached:
		cpu = "cached"
	}
	return append([]string{cpu, fmt.Sprintf("%.1f", r.wall(name))}, u.starts.cells()...)
}

func (s *started) cells() []string {
	var all []string
	for _, column := range columns()[2:] {
		cell := "-"
		if s != nil {
			cell = fmt.Sprint(s.programs[column])
		}
		all = append(all, cell)
	}
	return all
}

// printUsage prints the usage of the most expensive packages, and of all together.
func (r *report) printUsage() {
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells []string, name string) {
		fmt.Fprintf(w, "%s\t  %s\n", strings.Join(cells, "\t"), name)
	}
	row(columns(), "package")
	cached, cpu := 0, 0.0
	var all started
	for i, name := range r.dearest() {
		if i < dearest {
			row(r.cells(name), r.short(name))
		}
		if r.results[name].cached {
			cached++
		}
		u := r.accounts.used[name]
		cpu += u.CPU
		if u.starts != nil {
			all.merge(*u.starts)
		}
	}
	if len(r.accounts.unknown) == 0 {
		row(append([]string{"-", "-"}, r.accounts.none.cells()...), "processes of go test itself and of unknown packages")
		all.merge(r.accounts.none)
		row(append([]string{fmt.Sprintf("%.1f", cpu), "-"}, all.cells()...), totalRow)
	}
	_ = w.Flush() // written to memory
	r.say("%s", strings.TrimSuffix(table.String(), "\n"))
	of := ""
	if r.budget != nil {
		of = fmt.Sprintf(" of %.4g", r.budget.total*r.budget.scale(r))
	}
	r.say("%-9s %.1f%s CPU-s by tests, %.1f by go test and compilers; %d of %d packages from the cache", "CPU", cpu, of, r.accounts.building, cached, len(r.results))
}

// writeUsage writes the usage of each package, as a table with tabs.
func (r *report) writeUsage(path string) error {
	if path == "" {
		return nil
	}
	text := "package\t" + strings.Join(columns(), "\t") + "\n"
	for _, name := range r.dearest() {
		text += r.short(name) + "\t" + strings.Join(r.cells(name), "\t") + "\n"
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write what packages used: %w", err)
	}
	return nil
}
