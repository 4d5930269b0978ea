package proc

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestProgramsAreBornInTheirCgroups has folders in place of cgroups: the kernel's file
// takes a number, a plain one keeps it.
func TestProgramsAreBornInTheirCgroups(t *testing.T) {
	t.Parallel()
	groups := []string{t.TempDir(), t.TempDir()}
	var out bytes.Buffer
	c := Command{Path: "/bin/sh", Args: []string{"-c", "echo $$ $0 $1", "a b", "--"}, Cgroups: groups}
	if err := Run(t.Context(), c, nil, &out, nil); err != nil {
		t.Fatal(err)
	}
	pid, rest, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
	if rest != "a b --" {
		t.Errorf("the program was given %q, want its arguments as they are", rest)
	}
	for _, dir := range groups {
		joined, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || strings.TrimSpace(string(joined)) != pid {
			t.Errorf("process %s joined as %q, %v", pid, joined, err)
		}
	}
}

func TestAProgramThatCannotJoinDoesNotRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := Command{Path: "/bin/echo", Args: []string{"ran"}, Cgroups: []string{filepath.Join(t.TempDir(), "none")}}
	err := Run(t.Context(), c, nil, &out, nil)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || out.Len() > 0 {
		t.Errorf("got %v and %q, want a failure and nothing run", err, &out)
	}
}
