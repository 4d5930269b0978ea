// Package guest runs the tests that need a kernel with Foo-over-UDP, which the host's may
// lack: all of them in one virtual machine, with a control plane of the host's. They are
// in the packages that they test, in files with the build tag guest.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/internal/lab/vm"
	"github.com/berthnet/berth/internal/lab/vm/guestapi"
	"github.com/berthnet/berth/test/harness"
)

// The machine's. A second processor costs the host a third more, and the tests of other
// packages run meanwhile.
const (
	cpus   = 1
	memory = 4096 // MiB
)

// What make test runs; make e2e sets them otherwise (long_test.go).
var (
	long   = false            // also what takes minutes, and all cases of what else runs a sample
	within = 40 * time.Minute // it only ends what hangs
)

// root is the module's, from this package.
const root = "../.."

// TestGuest has a subtest for each test that was run in the machine, below that of its
// package.
func TestGuest(t *testing.T) {
	all, err := find(os.DirFS(root), long)
	harness.OK(t, err)
	if len(all) == 0 {
		t.Fatal("no package has tests for the guest")
	}
	module, err := filepath.Abs(root)
	harness.OK(t, err)
	dir := t.TempDir()
	began := time.Now()
	progress := func(what string) { t.Logf("%5.1f s: %s", time.Since(began).Seconds(), what) }

	// Before the machine has to share the processors.
	progress("building the tests of " + fmt.Sprint(len(all)) + " packages")
	build(t, module, dir, all)
	progress("starting a control plane")
	api, err := guestapi.Start(harness.Deadline(t, 10*time.Minute), os.Getenv("KUBEBUILDER_ASSETS"))
	harness.OK(t, err)
	t.Cleanup(func() { harness.OK(t, api.Close()) })
	progress("booting the machine")
	image, err := vm.Prepare(t.Context(), progress)
	harness.OK(t, err)
	m := vm.Machine{Image: image, CPUs: cpus, Memory: memory, Booted: func(time.Duration) { progress("it has booted") }}
	env := append(api.Join(&m), "PATH="+os.Getenv("PATH"), "HOME=/root", "BERTH_TEST_BIN="+filepath.Join(dir, "bin"))
	if long {
		env = append(env, harness.SampleVar+"=all")
	}

	ctx, cancel := context.WithTimeoutCause(t.Context(), within, errors.New("the tests in the guest take too long"))
	defer cancel()
	output, guest := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := m.Run(ctx, vm.Command{Argv: []string{"sh", "-c", script(module, dir, all)}, Env: env, Stdout: guest})
		_ = guest.Close()
		ended <- err
	}()
	outcomes, err := split(output, func(what string) { progress("testing " + what) })
	harness.OK(t, err)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	progress("done")
	for i, p := range all {
		t.Run(p.dir, func(t *testing.T) {
			if i >= len(outcomes) {
				t.Fatal("was not run: the machine had ended")
			}
			harness.OK(t, outcomes[i].read(t.Context()))
			outcomes[i].report(t, p.tests)
		})
	}
}

// build builds the test programs, as script wants them, and in bin below dir the
// programs that harness.Main would build in the guest. Neither looks for data races,
// which would make the machine ten times as slow once more.
func build(t *testing.T, module, dir string, all []found) {
	t.Helper()
	tags := "guest,grpcnotrace"
	if long {
		tags += "," + longTag
	}
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(runtime.NumCPU())
	run := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
		return nil
	}
	for i, p := range all {
		g.Go(func() error {
			return run("test", "-c", "-trimpath", "-tags="+tags, "-ldflags=-s -w", "-o", filepath.Join(dir, fmt.Sprint(i)+".test"), "./"+p.dir)
		})
	}
	if programs := needed(t, module, all); len(programs) > 0 {
		harness.OK(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
		g.Go(func() error {
			args := []string{"build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", filepath.Join(dir, "bin") + "/"}
			return run(append(args, programs...)...)
		})
	}
	harness.OK(t, g.Wait())
}

// needed are the programs that harness.Main builds for these packages.
func needed(t *testing.T, module string, all []found) (programs []string) {
	t.Helper()
	for _, p := range all {
		files, err := filepath.Glob(filepath.Join(module, p.dir, "*_test.go"))
		harness.OK(t, err)
		for _, f := range files {
			source, err := os.ReadFile(f)
			harness.OK(t, err)
			programs = append(programs, programsOf(string(source))...)
		}
	}
	slices.Sort(programs)
	return slices.Compact(programs)
}

// asks is a call of harness.Main.
var asks = regexp.MustCompile(`\bharness\.Main\(m((?:, *"[a-z-]+")*)\)`)

// programsOf are the packages of the programs that a file has harness.Main build.
func programsOf(source string) (programs []string) {
	for _, call := range asks.FindAllStringSubmatch(source, -1) {
		for _, name := range strings.FieldsFunc(call[1], func(r rune) bool { return strings.ContainsRune(`," `, r) }) {
			programs = append(programs, "./cmd/"+name)
		}
	}
	return programs
}

func TestProgramsOf(t *testing.T) {
	got := programsOf(`func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth-operator")) }`)
	if want := []string{"./cmd/berthd", "./cmd/berth-operator"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
