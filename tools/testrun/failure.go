package main

import (
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// failure is a test that failed, or a package that failed although no test of
// it did: in its TestMain, or because it does not build.
type failure struct {
	pkg   string
	test  string // one that is no subtest; empty: the package
	said  string // its output when it failed first
	bug   string // why it is not run again; empty: it is
	runs  int
	flaky bool // it passed when it was run again
}

// bugs are lines of output that no second run excuses: a test that passes at
// times does not make them right.
var bugs = []struct{ line, name string }{
	{"WARNING: DATA RACE", "a data race"},
	{"panic: ", "a panic"},
	{"fatal error: ", "a fatal error"},
	{"[build failed]", "it does not build"},
	{"[setup failed]", "it does not build"},
}

// failures of a package: each of its failed tests, or the package itself.
func failures(name string, p *testjson.Package) (all []*failure) {
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
	}
	whole := strings.Join(p.OutputLines(testjson.TestCase{}), "") // what belongs to no test
	if len(all) == 0 {
		return []*failure{{pkg: name, said: whole, bug: bugIn(whole), runs: 1}}
	}
	for _, f := range all {
		f.said = said[f.test].String()
		f.bug = bugIn(f.said + whole)
	}
	return all
}

func bugIn(text string) string {
	for _, b := range bugs {
		if strings.Contains(text, b.line) {
			return b.name
		}
	}
	return ""
}

func (f *failure) excusable() bool { return f.bug == "" }

func (f *failure) name() string {
	if f.test == "" {
		return f.pkg
	}
	return f.pkg + " " + f.test
}

// repeated takes note of another run of the test or package. result is nil when
// there was none.
func (f *failure) repeated(result *testjson.Execution) {
	f.runs++
	if result == nil || result.Package(f.pkg) == nil {
		return
	}
	p := result.Package(f.pkg)
	if p.Result() == testjson.ActionPass {
		f.flaky = f.test == "" || passed(p, f.test)
		return
	}
	for _, again := range failures(f.pkg, p) {
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
