package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestDelegateAsksForEachController has the kernel's files as plain ones.
func TestDelegateAsksForEachController(t *testing.T) {
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
	// The kernel's file makes a list of what is written; a plain one has the last.
	if got, err := os.ReadFile(control); err != nil || string(got) != "+pids" {
		t.Errorf("asked for %q last, %v, want +pids", got, err)
	}
	if err := delegate(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder without cgroup.controllers is no group of version 2, and was taken for one")
	}
}

func TestInheritCPUsTakesTheParents(t *testing.T) {
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
		t.Errorf("the child has %q, want its parent's", got)
	}
}

// TestPopulated reads what counts processes of all namespaces; what cannot be read says
// nothing, and is not taken for a group where nothing runs.
func TestPopulated(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file, text string
		yes, known bool
	}{
		"version 1, runs":   {"pids.current", "79\n", true, true},
		"version 1, empty":  {"pids.current", "0\n", false, true},
		"version 2, runs":   {"cgroup.events", "populated 1\nfrozen 0\n", true, true},
		"version 2, empty":  {"cgroup.events", "populated 0\nfrozen 0\n", false, true},
		"another hierarchy": {"cgroup.procs", "", false, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, tc.file), []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if yes, known := populated(dir); yes != tc.yes || known != tc.known {
			t.Errorf("%s: %t, %t, want %t, %t", name, yes, known, tc.yes, tc.known)
		}
	}
	if yes, err := Group("vpclab-no-such-group").Populated(); yes || err == nil {
		t.Errorf("a group that is not there: %t, %v, want an error", yes, err)
	}
}
