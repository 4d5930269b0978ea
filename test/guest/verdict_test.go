package guest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/lab/vm"
	"github.com/berthnet/berth/test/harness"
)

// VerdictsVar is the environment variable that disables kept verdicts: "none".
const VerdictsVar = "BERTH_VERDICTS"

// verdicts are the outcomes of packages that have passed and need only the guest's kernel and the
// machine's programs, kept under a hash of all that they depend on.
type verdicts struct {
	dir    string // empty: none are taken or kept
	module string // folder of the module
	bin    string // folder of the test programs
	common string // hash of what all depend on
}

// mostVerdicts is how many of the latest are kept: a change of a common dependency makes one for each
// package.
const mostVerdicts = 200

// verdict is a file of them.
type verdict struct {
	Package string
	When    time.Time
	Output  []byte // of the test program
}

// openVerdicts are those for the programs in a folder. All depend on the guest's kernel, on how tests
// run there, and on the Debian packages.
func openVerdicts(module, bin string, image vm.Image) (*verdicts, error) {
	if os.Getenv(VerdictsVar) == "none" || long {
		return &verdicts{}, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the folder for verdicts: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", []string{filepath.Base(string(image)), fmt.Sprint(cpus, memory, sample() == "all")})
	err = errors.Join(hashFile(h, "/var/lib/dpkg/status"),
		hashFiles(h, filepath.Join(module, "lab/vm"), func(name string) bool { return !strings.HasSuffix(name, "_test.go") }),
		hashFiles(h, filepath.Join(module, "test/guest"), func(string) bool { return true }))
	return &verdicts{dir: filepath.Join(cache, "berth", "verdicts"), module: module, bin: bin, common: hex.EncodeToString(h.Sum(nil))}, err
}

// file is the path of a package's verdict. A program without the name of the sample variable has no
// sample.
func (v *verdicts) file(p found) (string, error) {
	program, err := os.ReadFile(filepath.Join(v.bin, p.program()))
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %q %x\n", v.common, p.dir, p.tests, sha256.Sum256(program))
	if bytes.Contains(program, []byte(harness.SampleVar)) {
		fmt.Fprintln(h, sample())
	}
	err = hashFiles(h, filepath.Join(v.module, p.dir), func(name string) bool { return !strings.HasSuffix(name, ".go") })
	return filepath.Join(v.dir, hex.EncodeToString(h.Sum(nil))), err
}

// of returns the outcome of a package that has passed as it is, and its time; nil if there is none.
func (v *verdicts) of(p found) (*outcome, time.Time) {
	if v.dir == "" || p.api {
		return nil, time.Time{}
	}
	name, err := v.file(p)
	if err != nil {
		return nil, time.Time{}
	}
	data, err := os.ReadFile(name)
	var d verdict
	if err != nil || json.Unmarshal(data, &d) != nil || d.Package != p.dir {
		return nil, time.Time{}
	}
	return &outcome{dir: p.dir, output: d.Output, ended: true}, d.When
}

// keep keeps the outcome of a package that has passed.
func (v *verdicts) keep(p found, o *outcome) error {
	if v.dir == "" || p.api {
		return nil
	}
	name, err := v.file(p)
	if err != nil {
		return err
	}
	data, err := json.Marshal(verdict{p.dir, time.Now(), o.output})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(v.dir, 0o755); err != nil {
		return err
	}
	half, err := os.CreateTemp(v.dir, ".half-") // another run may keep the same
	if err != nil {
		return err
	}
	_, err = half.Write(data)
	if err = errors.Join(err, half.Close(), os.Rename(half.Name(), name)); err != nil {
		return errors.Join(err, os.Remove(half.Name()))
	}
	return v.removeOld()
}

func (v *verdicts) removeOld() error {
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	type file struct {
		name string
		at   time.Time
	}
	var files []file
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // another run may have removed it
			files = append(files, file{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return b.at.Compare(a.at) })
	for _, f := range files[min(mostVerdicts, len(files)):] {
		if err := os.Remove(filepath.Join(v.dir, f.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// hashFiles hashes the wanted files below a folder, with their paths.
func hashFiles(h io.Writer, dir string, wanted func(name string) bool) error {
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !wanted(e.Name()) {
			return err
		}
		below, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%q\n", below)
		return hashFile(h, name)
	})
}

func hashFile(h io.Writer, name string) error {
	data, err := os.ReadFile(name)
	if err == nil {
		fmt.Fprintf(h, "%x\n", sha256.Sum256(data))
	}
	return err
}

// TestUnchangedPackagesKeepTheirVerdict checks that a verdict is used for an unchanged package, and not after any change.
func TestUnchangedPackagesKeepTheirVerdict(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(VerdictsVar, "")
	t.Setenv(harness.SampleVar, "3")
	module, bin := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		harness.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
		harness.OK(t, os.WriteFile(name, []byte(text), 0o600))
	}
	in := func(name string) string { return filepath.Join(module, name) }
	write(in("lab/vm/machine.go"), "machine")
	write(in("lab/vm/machine_test.go"), "test")
	write(in("test/guest/guest_test.go"), "guest")
	write(in("a/b/testdata/x"), "data")
	write(in("a/b/b.go"), "code")
	write(filepath.Join(bin, "b.test"), "program, BERTH_SAMPLE")
	p := found{dir: "a/b", tests: []string{"TestOne"}}
	open := func(image string) *verdicts {
		t.Helper()
		v, err := openVerdicts(module, bin, vm.Image(image))
		harness.OK(t, err)
		return v
	}
	taken := func(v *verdicts, p found) bool {
		o, when := v.of(p)
		return o != nil && o.dir == p.dir && o.ended && o.code == 0 && string(o.output) == "said" && time.Since(when) < time.Hour
	}
	if taken(open("/x/image"), p) {
		t.Fatal("there is a verdict at first")
	}
	harness.OK(t, open("/x/image").keep(p, &outcome{dir: "a/b", output: []byte("said"), ended: true}))
	for what, c := range map[string]struct {
		change, undo func()
		image        string
		pkg          found
		want         bool
	}{
		"nothing":             {image: "/y/image", pkg: p, want: true},
		"code that is built":  {change: func() { write(in("a/b/b.go"), "") }, undo: func() { write(in("a/b/b.go"), "code") }, image: "/x/image", pkg: p, want: true},
		"a test of machines":  {change: func() { write(in("lab/vm/machine_test.go"), "") }, undo: func() { write(in("lab/vm/machine_test.go"), "test") }, image: "/x/image", pkg: p, want: true},
		"the program":         {change: func() { write(filepath.Join(bin, "b.test"), "") }, undo: func() { write(filepath.Join(bin, "b.test"), "program, BERTH_SAMPLE") }, image: "/x/image", pkg: p},
		"a file of testdata":  {change: func() { write(in("a/b/testdata/x"), "") }, undo: func() { write(in("a/b/testdata/x"), "data") }, image: "/x/image", pkg: p},
		"the machine":         {change: func() { write(in("lab/vm/machine.go"), "") }, undo: func() { write(in("lab/vm/machine.go"), "machine") }, image: "/x/image", pkg: p},
		"how tests are run":   {change: func() { write(in("test/guest/guest_test.go"), "") }, undo: func() { write(in("test/guest/guest_test.go"), "guest") }, image: "/x/image", pkg: p},
		"the sample":          {change: func() { t.Setenv(harness.SampleVar, "4") }, undo: func() { t.Setenv(harness.SampleVar, "3") }, image: "/x/image", pkg: p},
		"verdicts are not on": {change: func() { t.Setenv(VerdictsVar, "none") }, undo: func() { t.Setenv(VerdictsVar, "") }, image: "/x/image", pkg: p},
		"the kernel":          {image: "/x/other", pkg: p},
		"which tests are run": {image: "/x/image", pkg: found{dir: "a/b", tests: []string{"TestOne", "TestTwo"}}},
		"it needs an API":     {image: "/x/image", pkg: found{dir: "a/b", tests: []string{"TestOne"}, api: true}},
		"nothing, in the end": {image: "/x/image", pkg: p, want: true},
	} {
		if c.change != nil {
			c.change()
		}
		if got := taken(open(c.image), c.pkg); got != c.want {
			t.Errorf("%s: a verdict is taken: %t, want %t", what, got, c.want)
		}
		if c.undo != nil {
			c.undo()
		}
	}
	write(filepath.Join(bin, "b.test"), "program without samples")
	harness.OK(t, open("/x/image").keep(p, &outcome{dir: "a/b", output: []byte("said"), ended: true}))
	t.Setenv(harness.SampleVar, "4")
	if !taken(open("/x/image"), p) {
		t.Error("a program that has no samples has another verdict with another sample")
	}
	v := open("/x/image")
	for i := range mostVerdicts + 5 {
		write(filepath.Join(v.dir, fmt.Sprint(i)), "")
	}
	harness.OK(t, v.removeOld())
	if left, err := os.ReadDir(v.dir); err != nil || len(left) != mostVerdicts {
		t.Errorf("%d verdicts are kept, %v", len(left), err)
	}
}
