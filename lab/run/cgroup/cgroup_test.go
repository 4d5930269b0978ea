package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestDelegateEnablesEachController uses regular files in place of the kernel's.
func TestDelegateEnablesEachController(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	control := filepath.Join(dir, "cgroup.subtree_control")
	for file, text := range map[string]string{filepath.Join(dir, "cgroup.controllers"): "cpu memory pids\n", control: ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := delegate(dir); err != nil {
		t.Error(err)
	}
	// The kernel's file collects what is written; a regular file keeps the last write.
	if got, err := os.ReadFile(control); err != nil || string(got) != "+pids" {
		t.Errorf("last controller written = %q, %v; want +pids", got, err)
	}
	if err := delegate(filepath.Join(dir, "none")); err == nil {
		t.Error("delegate() accepted a directory without cgroup.controllers as a version 2 group")
	}
}

func TestInheritCPUsFromParent(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	child := filepath.Join(parent, "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct{ name, has string }{
		{filepath.Join(parent, "cpuset.cpus"), "0-3"}, {filepath.Join(parent, "cpuset.mems"), "0"},
		{filepath.Join(child, "cpuset.cpus"), ""}, {filepath.Join(child, "cpuset.mems"), ""},
	} {
		if err := os.WriteFile(f.name, []byte(f.has), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := inheritCPUs(child); err != nil {
		t.Fatal(err)
	}
	cpus, _ := os.ReadFile(filepath.Join(child, "cpuset.cpus"))
	mems, _ := os.ReadFile(filepath.Join(child, "cpuset.mems"))
	if got := []string{string(cpus), string(mems)}; !slices.Equal(got, []string{"0-3", "0"}) {
		t.Errorf("cpuset of the child = %q, want its parent's", got)
	}
}

// Operations on an empty name must not affect the whole machine.
func TestUnnamedGroupHasNoDirectories(t *testing.T) {
	if dirs, err := Group("").Directories(); err != nil || len(dirs) > 0 {
		t.Errorf("Group(\"\").Directories() = %v, %v; want none", dirs, err)
	}
}

func TestPopulatedInBothVersions(t *testing.T) {
	for _, tt := range []struct {
		file, text string
		some, ok   bool
	}{
		{"pids.current", "3\n", true, true},
		{"pids.current", "0\n", false, true},
		{"cgroup.events", "populated 1\nfrozen 0\n", true, true},
		{"cgroup.events", "populated 0\nfrozen 0\n", false, true},
		{"cgroup.procs", "", false, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, tt.file), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if some, ok := populated(dir); some != tt.some || ok != tt.ok {
			t.Errorf("populated() of %s %q = %t, %t; want %t, %t", tt.file, tt.text, some, ok, tt.some, tt.ok)
		}
	}
}
