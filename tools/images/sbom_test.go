package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// The document contains the image, the program and all modules of the program's build information, and relationships
// connect all of them.
func TestSBOMListsModulesOfPrograms(t *testing.T) {
	f, err := os.Open(filepath.Join(packTest(t, t.TempDir()), "probe-amd64.spdx.json"))
	ok(t, err)
	defer f.Close()
	var doc spdx.Document
	ok(t, json.ReadInto(f, &doc))

	byID, locators := map[common.ElementID]*spdx.Package{}, map[string]bool{}
	for _, p := range doc.Packages {
		byID[p.PackageSPDXIdentifier] = p
		for _, ref := range p.PackageExternalReferences {
			locators[ref.Locator] = true
		}
	}
	info, there := debug.ReadBuildInfo()
	if !there || len(info.Deps) < 5 {
		t.Fatal("this test's program has no build information")
	}
	for _, dep := range info.Deps {
		if want := "pkg:golang/" + dep.Path + "@" + strings.ReplaceAll(dep.Version, "+", "%2B"); !locators[want] {
			t.Errorf("package %s is missing", want)
		}
	}
	if want := "pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go"); !locators[want] {
		t.Errorf("package %s is missing", want)
	}
	reached := map[common.ElementID]bool{"DOCUMENT": true}
	for _, r := range doc.Relationships {
		if !reached[r.RefA.ElementRefID] || byID[r.RefB.ElementRefID] == nil {
			t.Errorf("relationship %s %s %s refers to a missing package", r.RefA.ElementRefID, r.Relationship, r.RefB.ElementRefID)
		}
		reached[r.RefB.ElementRefID] = true
	}
	for id := range byID {
		if !reached[id] {
			t.Errorf("no relationship leads to %s", id)
		}
	}
}

// A program of another module, such as the chained plugins, has that module's version and not the release's, nor its
// licence.
func TestProgramsOfOtherModulesKeepTheirVersion(t *testing.T) {
	release := Release{Version: "v1.2.3", Licenses: "Apache-2.0"}
	for _, tt := range []struct {
		main string
		want Release
	}{
		{"(devel)", release},
		{"", release},
		{"v1.9.1", Release{Version: "v1.9.1"}},
	} {
		if got := originOf(&debug.BuildInfo{Main: debug.Module{Path: "example.org/plugins", Version: tt.main}}, release); got != tt.want {
			t.Errorf("originOf() a main module with version %q = %+v, want %+v", tt.main, got, tt.want)
		}
	}
}
