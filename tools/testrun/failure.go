package main

import (
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// failure is a failed test, or a failed package without failed tests: a failure in its TestMain, or a package that does
// not build.
type failure struct {
	group group // group with the flags for repeated runs
	pkg   string
	test  string // top-level test; empty for the package
	said  string // output of the first failure
	bug   string // reason why it is not run again; empty if it is
	runs  int
	flaky bool // passed in another run
}

// bugs are texts in the output of a failed package that a later success does not excuse: a test that sometimes passes
// does not fix them. The line may belong to another test, because tests run in parallel.
var bugs = []struct{ text, name string }{
	{"WARNING: DATA RACE", "a data race"},
	{"race detected during execution of test", "a data race"},
	{"race detected outside of test execution", "a data race"},
	{"panic: ", "a panic"},
	{"fatal error: ", "a fatal error"},
	{"[build failed]", "it does not build"},
	{"[setup failed]", "it does not build"},
}

// bugIn returns the bug that a line of output reports, or "". Most are at the start of the
// line; some follow a prefix, such as "berthd logged \"panic: ...".
func bugIn(line string) string {
	line = strings.TrimSpace(line)
	for _, b := range bugs {
		if strings.HasPrefix(line, b.text) || strings.HasSuffix(line, b.text) || strings.Contains(line, `logged "`+strings.TrimSpace(b.text)) {
			return b.name
		}
	}
	return ""
}

// failures returns the failures of a package: each failed test, or the package itself. None
// is excusable if the package has a bug, or if its program ended before all tests had run.
func failures(name string, p *testjson.Package, bug string) (all []*failure) {
	if p.Result() != testjson.ActionFail {
		return nil
	}
	said := map[string]*strings.Builder{}
	for _, tc := range p.Failed {
		root, _ := tc.Test.Split()
		if said[root] == nil {
			said[root] = &strings.Builder{}
			all = append(all, &failure{pkg: name, test: root, runs: 1})
		}
		said[root].WriteString(strings.Join(p.OutputLines(tc), ""))
		if tc.Elapsed < 0 && bug == "" {
			bug = "its program ended before its tests did"
		}
	}
	if len(all) == 0 {
		all = []*failure{{pkg: name, runs: 1, said: strings.Join(p.OutputLines(testjson.TestCase{}), "")}}
	}
	for _, f := range all {
		f.bug = bug
		if s := said[f.test]; s != nil {
			f.said = s.String()
		}
	}
	return all
}

func (f *failure) excusable() bool { return f.bug == "" }

func (f *failure) name() string {
	if f.test == "" {
		return f.pkg
	}
	return f.pkg + " " + f.test
}

// repeated records another run of the test or package.
func (f *failure) repeated(r outcome) {
	f.runs++
	p := r.of(f.pkg)
	if p == nil {
		return
	}
	if p.Result() == testjson.ActionPass {
		f.flaky = f.test == "" && len(p.Passed) > 0 || passed(p, f.test)
		return
	}
	for _, again := range failures(f.pkg, p, r.bugs[f.pkg]) {
		if again.bug != "" {
			f.bug = again.bug
		}
	}
}

func passed(p *testjson.Package, test string) bool {
	for _, tc := range p.Passed {
		if tc.Test.Name() == test {
			return true
		}
	}
	return false
}
