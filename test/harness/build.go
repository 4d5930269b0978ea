// Package harness is what the tests of the whole share: it builds the programs
// under test, raises labs for them, and looks at what they leave behind.
package harness

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// BinDir holds the programs under test while Main runs.
var BinDir string

// parallel is how many tests run at a time: most of the time each waits for
// something, and none needs a processor of its own.
const parallel = "6"

// Main builds programs (names under cmd/) and runs a package's tests with
// them, for TestMain. It returns the exit code. Daemon and operator look for
// data races when the tests do; the others are built as they are shipped.
func Main(m *testing.M, programs ...string) int {
	if os.Geteuid() != 0 {
		fmt.Println("FAIL: these tests make network namespaces: run them as root (make test does)")
		return 1
	}
	dir, err := os.MkdirTemp("", "berth-bin-")
	if err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	BinDir = dir
	for _, p := range programs {
		flags := []string{"-ldflags=-s -w"}
		if p == "berthd" || p == "berth-operator" {
			flags = raceFlags
		}
		if err := build(p, flags...); err != nil {
			fmt.Println("FAIL:", err)
			return 1
		}
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	return m.Run()
}

func build(program string, flags ...string) error {
	args := append(append([]string{"build", "-tags=grpcnotrace"}, flags...),
		"-o", filepath.Join(BinDir, program), "github.com/berthnet/berth/cmd/"+program)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
