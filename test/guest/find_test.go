package guest

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// tag marks files with tests for the guest; those that also have longTag take minutes, and only make
// e2e runs them.
const (
	tag     = "guest"
	longTag = "e2e"
)

// found are the tests for the guest of one package.
type found struct {
	dir   string // below the module's root
	tests []string
	api   bool // needs a Kubernetes API, or programs of Berth, which need one
}

// program is that of the package's tests.
func (f found) program() string { return path.Base(f.dir) + ".test" }

// asksForAPI matches sources of packages that need an API or programs.
var asksForAPI = regexp.MustCompile(`\b(harness\.(Main|Kube)\(|kube\.Remote\()`)

// find finds the tests for the guest: those of *_test.go files whose build constraint needs the tag,
// and with long also those that need longTag.
func find(module fs.FS, long bool) ([]found, error) {
	tests, api := map[string][]string{}, map[string]bool{}
	err := fs.WalkDir(module, ".", func(name string, entry fs.DirEntry, err error) error {
		base := path.Base(name)
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || slices.Contains([]string{"bin", "dist", "tools"}, name)) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(base, "_test.go"):
			return nil
		}
		source, err := fs.ReadFile(module, name)
		api[path.Dir(name)] = api[path.Dir(name)] || asksForAPI.Match(source)
		if err != nil || !needsGuest(string(source), long) {
			return err
		}
		names, err := testsOf(name, source)
		tests[path.Dir(name)] = append(tests[path.Dir(name)], names...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for tests for the guest: %w", err)
	}
	var all []found
	for dir, names := range tests {
		if len(names) > 0 {
			all = append(all, found{dir, names, api[dir]})
		}
	}
	slices.SortFunc(all, func(a, b found) int { return strings.Compare(a.dir, b.dir) })
	return all, nil
}

// needsGuest reports whether a file is built with the tag, and longTag if long, and not without the
// tag.
func needsGuest(source string, long bool) bool {
	lines := bufio.NewScanner(strings.NewReader(source))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "package ") {
			return false
		}
		if !constraint.IsGoBuild(line) {
			continue
		}
		expr, err := constraint.Parse(line)
		with := func(t string) bool { return t != longTag || long }
		return err == nil && expr.Eval(with) && !expr.Eval(func(t string) bool { return t != tag && with(t) })
	}
	return false
}

// testsOf are the names of a file's tests.
func testsOf(name string, source []byte) (tests []string, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" && len(f.Type.Params.List) == 1 {
			tests = append(tests, f.Name.Name)
		}
	}
	return tests, nil
}

func TestFindsTestsForTheGuest(t *testing.T) {
	const api = "\nvar _ = harness.Main(nil)\n"
	const code = "\n\npackage p\n\nfunc TestMain(m *testing.M) {}\nfunc Test%s(t *testing.T) {}\nfunc Help%[1]s() {}\n"
	module := fstest.MapFS{}
	for name, head := range map[string]string{
		"a/one_test.go":           "//go:build guest",
		"a/two_test.go":           "// Comment.\n\n//go:build linux && guest",
		"a/long_test.go":          "//go:build guest && e2e",
		"a/host_test.go":          "// Package p is.",
		"a/not_test.go":           "//go:build !guest",
		"b/either_test.go":        "//go:build guest || e2e",
		"b/testdata/some_test.go": "//go:build guest",
		"b/code.go":               "//go:build guest",
		"dist/copy_test.go":       "//go:build guest",
		"c/d/three_test.go":       "//go:build guest",
	} {
		title := strings.ToUpper(path.Base(name)[:1]) + strings.TrimSuffix(path.Base(name)[1:], "_test.go")
		module[name] = &fstest.MapFile{Data: fmt.Appendf(nil, head+code, title)}
	}
	host := module["a/host_test.go"]
	host.Data = append(host.Data, api...)
	for long, want := range map[bool][]found{
		false: {{"a", []string{"TestOne", "TestTwo"}, true}, {"b", []string{"TestEither"}, false}, {"c/d", []string{"TestThree"}, false}},
		true:  {{"a", []string{"TestLong", "TestOne", "TestTwo"}, true}, {"c/d", []string{"TestThree"}, false}},
	} {
		got, err := find(module, long)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("long %t: found %v, want %v", long, got, want)
		}
	}
}
