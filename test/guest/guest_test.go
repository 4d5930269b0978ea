// Package guest runs the tests that need a kernel with Foo-over-UDP or VLANs, in two virtual machines,
// of which one has a control plane of the host's. They are in the packages that they test, in files
// with the build tag guest.
package guest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/lab/vm"
	"github.com/berthnet/berth/lab/vm/guestapi"
	"github.com/berthnet/berth/test/harness"
)

// The machines' size. A second processor costs the host a third more, while it runs the tests of other
// packages.
const (
	cpus   = 1
	memory = 4096 // MiB
)

// The values of make test; long_test.go has those of make e2e.
var (
	long   = false            // also what takes minutes, and all cases of what else runs a sample
	within = 40 * time.Minute // it only ends what hangs
)

// root is the module's, from this package.
const root = "../.."

// TestGuest has a subtest for each test in a machine, below that of its package. Packages that need
// only the kernel have one machine, those that share a control plane another. A package that has
// passed and is unchanged is not run again (verdict_test.go).
func TestGuest(t *testing.T) {
	all, err := find(os.DirFS(root), long)
	harness.OK(t, err)
	if len(all) == 0 {
		t.Fatal("no package has tests for the guest")
	}
	module, err := filepath.Abs(root)
	harness.OK(t, err)
	dir := t.TempDir()
	say := progress(t)

	say("building the tests of %d packages", len(all))
	harness.OK(t, build(t, module, dir, all))
	image, err := vm.Prepare(t.Context(), func(what string) { say("%s", what) })
	harness.OK(t, err)

	kept, err := openVerdicts(module, dir, image)
	harness.OK(t, err)
	outcomes, settled := map[string]*outcome{}, map[string]bool{}
	kernel := &stream{name: "kernel", module: module, bin: dir, image: image, say: say}
	api := &stream{name: "API", module: module, bin: dir, image: image, say: say, api: true}
	for _, p := range all {
		switch o, when := kept.of(p); {
		case p.api:
			api.left = append(api.left, p)
		case o != nil:
			say("%s: verdict of %s, since nothing has changed that it depends on", p.dir, when.UTC().Format(time.DateTime))
			outcomes[p.dir], settled[p.dir] = o, true
		default:
			kernel.left = append(kernel.left, p)
		}
	}

	ctx, cancel := context.WithTimeoutCause(t.Context(), within, errors.New("the tests in the guest take too long"))
	defer cancel()
	var streams sync.WaitGroup
	for _, s := range []*stream{kernel, api} {
		streams.Go(func() { s.err = s.run(ctx) })
	}
	streams.Wait()
	for _, s := range []*stream{kernel, api} {
		if s.err != nil {
			t.Errorf("the machine of the stream %s: %v", s.name, s.err)
		}
		for _, o := range s.outcomes {
			outcomes[o.dir] = o
		}
	}
	for _, p := range all {
		t.Run(p.dir, func(t *testing.T) {
			o := outcomes[p.dir]
			if o == nil {
				t.Fatal("was not run: the machine had ended")
			}
			harness.OK(t, o.read(t.Context()))
			if o.report(t, p.tests) && !settled[p.dir] {
				if err := kept.keep(p, o); err != nil {
					t.Logf("The verdict is not kept: %v", err)
				}
			}
		})
	}
}

// progress returns what prints lines at once, with the time since its call. go test shows lines of a
// running test only after it has failed, so they are marked as the package's, as package testing does.
// No other test may run.
func progress(t *testing.T) func(format string, args ...any) {
	began := time.Now()
	before, after := "", ""
	if f := flag.Lookup("test.v"); f != nil && f.Value.String() == "test2json" {
		before, after = "\x16=== NAME  \n", "\x16=== NAME  "+t.Name()+"\n"
	}
	return func(format string, args ...any) {
		fmt.Printf("%sguest: %4.0f s: %s\n%s", before, time.Since(began).Seconds(), fmt.Sprintf(format, args...), after)
	}
}

// stream is a machine with what it runs.
type stream struct {
	name        string
	module, bin string // folders
	image       vm.Image
	api         bool // with a control plane
	say         func(format string, args ...any)

	left     []found // not run to its end yet
	outcomes []*outcome
	err      error
}

// run runs one package after the other. When a machine locks up, another one runs the rest.
func (s *stream) run(ctx context.Context) error {
	if len(s.left) == 0 {
		return nil
	}
	return vm.Again(func(what string) { s.say("%s: %s", s.name, what) }, func() error { return s.once(ctx) })
}

func (s *stream) once(ctx context.Context) (err error) {
	m := vm.Machine{Image: s.image, CPUs: cpus, Memory: memory, Booted: func(took time.Duration) { s.say("%s: the machine booted in %.1f s", s.name, took.Seconds()) }}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "BERTH_TEST_BIN=" + filepath.Join(s.bin, "bin"), harness.SampleVar + "=" + sample()}
	if s.api {
		s.say("%s: starting a control plane", s.name)
		starting, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		api, err := guestapi.Start(starting, os.Getenv("KUBEBUILDER_ASSETS"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, api.Close()) }()
		env = append(env, api.Join(&m)...)
	}
	output, guest := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := m.Run(ctx, vm.Command{Argv: []string{"sh", "-c", script(s.module, s.bin, s.left)}, Env: env, Stdout: guest})
		_ = guest.Close()
		ended <- err
	}()
	var spoke time.Time
	outcomes, err := split(output, func(n int, what string, test bool) {
		if !test || long || time.Since(spoke) > 10*time.Second {
			s.say("%s: package %d of %d: %s", s.name, n, len(s.left), what)
			spoke = time.Now()
		}
	})
	err = errors.Join(err, <-ended)
	for _, o := range outcomes {
		s.outcomes = slices.DeleteFunc(s.outcomes, func(other *outcome) bool { return other.dir == o.dir })
		s.outcomes = append(s.outcomes, o)
		if o.ended {
			s.left = slices.DeleteFunc(s.left, func(p found) bool { return p.dir == o.dir })
		}
	}
	return err
}

// sample is the slice that the tests run.
func sample() string {
	if long {
		return "all"
	}
	return cmp.Or(os.Getenv(harness.SampleVar), "0")
}

// build builds the test programs in dir, and in bin below it the programs that harness.Main would
// build in the guest. Neither has the race detector, which would be ten times as slow.
func build(t *testing.T, module, dir string, all []found) error {
	t.Helper()
	tags := "guest,grpcnotrace"
	if long {
		tags += "," + longTag
	}
	run := func(args ...string) error {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
		return nil
	}
	// One command is a third of the work of many. The programs do not depend on the module's folder.
	flags := []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w"}
	args := append([]string{"test", "-c", "-tags=" + tags, "-o", dir + "/"}, flags...)
	for _, p := range all {
		args = append(args, "./"+p.dir)
	}
	if err := run(args...); err != nil {
		return err
	}
	programs := needed(t, module, all)
	if len(programs) == 0 {
		return nil
	}
	return run(append(append([]string{"build", "-tags=grpcnotrace", "-o", filepath.Join(dir, "bin") + "/"}, flags...), programs...)...)
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

func TestProgramsOfAPackage(t *testing.T) {
	got := programsOf(`func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth-operator")) }`)
	if want := []string{"./cmd/berthd", "./cmd/berth-operator"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
