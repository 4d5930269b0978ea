package walkthrough

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness"
)

// marker separates the output of steps.
const marker = "::walkthrough-step::"

// Run runs the commands of a page of docs/start in one shell, as somebody would who pastes them, and compares what they print
// with the page. dir is the shell's folder, env is added to the environment.
func Run(t *testing.T, page, dir string, timeout time.Duration, env ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(harness.Tree(), "docs", "start", page))
	harness.OK(t, err)
	blocks, err := parse(string(data))
	harness.OK(t, err)
	all, err := steps(blocks)
	harness.OK(t, err)
	var script strings.Builder
	script.WriteString("set -eo pipefail\n")
	for i, s := range all {
		fmt.Fprintf(&script, "printf '\\n%s%d\\n'\n", marker, i)
		if s.fails != "" {
			fmt.Fprintf(&script, "if %s then exit 1; fi\n", strings.TrimSpace(s.commands)+";")
			continue
		}
		script.WriteString(s.commands)
	}
	file := filepath.Join(t.TempDir(), "page.sh")
	harness.OK(t, os.WriteFile(file, []byte(script.String()), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", file)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("%s: %d steps in %s", page, len(all), time.Since(began).Round(time.Second))
	parts := strings.Split(string(out), marker)
	for _, part := range parts[1:] {
		number, printed, _ := strings.Cut(part, "\n")
		i, bad := strconv.Atoi(number)
		harness.OK(t, bad)
		s := all[i]
		if s.fails != "" && !strings.Contains(printed, strings.TrimPrefix(s.fails, "Error ")) && !pattern(s.fails).MatchString(printed) {
			t.Errorf("%s:%d: printed %q, want %q", page, s.line, printed, s.fails)
		}
		if bad := s.compare(printed); bad != nil && i < len(parts)-2 {
			t.Errorf("%s: %v", page, bad)
		}
		if err != nil && i == len(parts)-2 {
			t.Fatalf("%s:%d: %v\n%s\n%s", page, s.line, err, s.commands, printed)
		}
	}
	harness.OK(t, err)
	if len(parts)-1 != len(all) {
		t.Fatalf("%s: %d of %d steps were run:\n%s", page, len(parts)-1, len(all), out)
	}
}
