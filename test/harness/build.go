// Package harness is shared by tests of the whole system: it builds the programs under test, starts labs, and checks
// what they leave behind.
package harness

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// BinDir holds the programs under test while Main runs.
var BinDir string

// parallel is how many tests of a package run in parallel: all of them, because Slot limits the labs. With fewer,
// tests that wait for a slot could block subtests of a test that holds one.
const parallel = "1000"

// Main builds programs (names below cmd/) and runs a package's tests with them, for TestMain. It returns the exit
// code. Daemon and operator have the race detector if the tests do.
func Main(m *testing.M, programs ...string) int {
	if os.Geteuid() != 0 {
		fmt.Println("FAIL: these tests create network namespaces: run them as root (make test does)")
		return 1
	}
	if _, err := families(os.Getenv(FamiliesVar)); err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	remove, err := buildAll(programs)
	defer remove()
	if err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	ctrllog.SetLogger(logr.Discard()) // log of the labs' clients, whose errors are returned
	if err := flag.Set("test.parallel", parallel); err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	return m.Run()
}

// buildAll sets BinDir and builds missing programs. In a sandbox, packages share them (hack/sandbox.sh removes them).
func buildAll(programs []string) (remove func(), err error) {
	remove = func() {}
	if BinDir = os.Getenv("BERTH_TEST_BIN"); BinDir == "" {
		if BinDir, err = os.MkdirTemp("", "berth-bin-"); err != nil {
			return remove, err
		}
		remove = func() { _ = os.RemoveAll(BinDir) }
	}
	lock, err := os.OpenFile(filepath.Join(BinDir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return remove, err
	}
	defer lock.Close() // also releases the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return remove, fmt.Errorf("wait for the build of another package: %w", err)
	}
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(BinDir, p)); err == nil {
			continue
		}
		if err := build(p, race && (p == "berthd" || p == "berth-operator")); err != nil {
			return remove, err
		}
	}
	return remove, nil
}

// releaseVariable is the directory of a release, whose programs are tested instead of those of the sources (make e2e).
const releaseVariable = "BERTH_RELEASE"

// build builds with the flags of `make build`, to reuse compiled packages. The race detector needs cgo.
func build(program string, race bool) error {
	if release := os.Getenv(releaseVariable); release != "" && !race {
		return unpack(release, program)
	}
	args := []string{"build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w"}
	env := "CGO_ENABLED=0"
	if race {
		args, env = append(args, "-race"), "CGO_ENABLED=1"
	}
	args = append(args, "-o", filepath.Join(BinDir, program), "github.com/berthnet/berth/cmd/"+program)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// unpack takes a program from a release.
func unpack(release, program string) error {
	archive := filepath.Join(release, "berth-v*-linux-"+runtime.GOARCH+".tar.gz")
	found, err := filepath.Glob(archive)
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%s=%s has %d files %s, want one: make release writes it", releaseVariable, release, len(found), filepath.Base(archive))
	}
	if out, err := exec.Command("tar", "-xzf", found[0], "-C", BinDir, program).CombinedOutput(); err != nil { //nolint:gosec // a test names its own release
		return fmt.Errorf("take %s from %s: %w\n%s", program, found[0], err, out)
	}
	return nil
}

// Tree returns the directory of go.mod above the package's, or the root of the file system if there is none.
func Tree() string {
	dir, _ := os.Getwd()
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}
