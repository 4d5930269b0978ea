package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// made returns a bundle of parts.
func made(t *testing.T, limits Limits, atOnce int, parts ...Part) (map[string][]byte, Index) {
	t.Helper()
	var out bytes.Buffer
	a := New(&out, "root", "test", limits, time.Now)
	if err := a.Collect(t.Context(), atOnce, parts); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Close(); err != nil {
		t.Fatal(err)
	}
	files, index, err := Open(&out)
	if err != nil {
		t.Fatal(err)
	}
	return files, index
}

func part(name string, collect func(context.Context, *Sink) error) Part {
	return Part{Name: name, Timeout: time.Minute, Collect: collect}
}

var wide = Limits{File: 1 << 20, Total: 1 << 30}

// Parts that hang, fail or panic do not affect others. Files that a part adds after its timeout are
// ignored.
func TestPartsThatDoNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, late := make(chan struct{}), make(chan error, 1)
		files, index := made(t, wide, 1,
			part("hangs", func(_ context.Context, s *Sink) error {
				if err := s.Bytes("early.txt", []byte("early")); err != nil {
					return err
				}
				<-release
				late <- s.Bytes("late.txt", []byte("late"))
				return nil
			}),
			part("waits", func(ctx context.Context, _ *Sink) error { <-ctx.Done(); return fmt.Errorf("asking: %w", ctx.Err()) }),
			part("fails", func(_ context.Context, s *Sink) error {
				return errors.Join(s.Bytes("half.txt", []byte("half")), errors.New("password=planted"))
			}),
			part("panics", func(context.Context, *Sink) error { panic("oh") }),
			part("works", func(_ context.Context, s *Sink) error { return s.Bytes("works.txt", []byte("works")) }),
		)
		close(release)
		if err := <-late; err == nil {
			t.Error("a file was taken after its part's time")
		}
		for name, want := range map[string]string{"early.txt": "early", "half.txt": "half", "works.txt": "works"} {
			if string(files[name]) != want {
				t.Errorf("%s has %q", name, files[name])
			}
		}
		text := string(files[ErrorsFile])
		for _, want := range []string{"hangs: not done within 1m0s\n", "waits: not done within 1m0s\n", "fails: password=REDACTED\n", "panics: panic: oh\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
		if len(index.Errors) != 4 || len(index.Files) != 3 || index.Files[0].From != "hangs" {
			t.Errorf("index %+v", index)
		}
	})
}

func TestLimits(t *testing.T) {
	var log strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&log, "line %d\n", i)
	}
	onDisk := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(onDisk, []byte(log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	files, index := made(t, Limits{File: 1000, Total: 10000}, 1, part("all", func(_ context.Context, s *Sink) error {
		f, err := os.Open(onDisk)
		if err != nil {
			return err
		}
		defer f.Close()
		return errors.Join(
			s.Log("newest.log", strings.NewReader(log.String())), s.LogFile("file.log", f), s.Text("oldest.txt", strings.NewReader(log.String())),
			s.Log("short.log", strings.NewReader("one\ntwo\n")), s.Document("large.json", []byte(`{"password":"`+strings.Repeat("planted ", 1000)+`"}`)),
			s.Log("newest.log", strings.NewReader("of the same name\n")),
		)
	}), part("more", func(_ context.Context, s *Sink) error {
		for i := range 100 {
			s.Failed(fmt.Sprint(i), s.Text(fmt.Sprintf("%d.txt", i), strings.NewReader(log.String())))
		}
		return nil
	}))
	for _, name := range []string{"newest.log", "file.log"} {
		got := string(files[name])
		if !strings.HasPrefix(got, cutHere+"line ") || !strings.HasSuffix(got, "line 9999\n") || len(got) < 400 || len(got) > 1000+len(cutHere)+2 {
			t.Errorf("%s: %d bytes: %.100q", name, len(got), got)
		}
	}
	if got := string(files["oldest.txt"]); !strings.HasPrefix(got, "line 0\n") || !strings.HasSuffix(got, cutHere) || len(got) > 1000+len(cutHere)+1 {
		t.Errorf("oldest.txt: %d bytes", len(got))
	}
	if string(files["short.log"]) != "one\ntwo\n" || string(files["newest.log.2"]) != "of the same name\n" || bytes.Contains(files["large.json"], []byte("planted")) {
		t.Errorf("%q %q %q", files["short.log"], files["newest.log.2"], files["large.json"])
	}
	total := int64(0)
	cut := map[string]bool{}
	for _, f := range index.Files {
		total += f.Size
		cut[f.Name] = f.Cut
	}
	if total > 10000 || !strings.Contains(string(files[ErrorsFile]), "--max-size") {
		t.Errorf("%d bytes in all: %.300s", total, files[ErrorsFile])
	}
	if !cut["newest.log"] || !cut["file.log"] || !cut["oldest.txt"] || cut["short.log"] {
		t.Errorf("cut %v", cut)
	}
}

// A key is removed even if its first line was cut off.
func TestKeyThatIsCut(t *testing.T) {
	key := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("planted0planted0planted0planted0\n", 30) + "-----END PRIVATE KEY-----\n"
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("x\n", 1000)+key+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	files, _ := made(t, Limits{File: 300, Total: 1 << 20}, 1, part("log", func(_ context.Context, s *Sink) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return s.LogFile("log", f)
	}))
	if got := string(files["log"]); strings.Contains(got, "planted") || !strings.HasSuffix(got, "\nafter\n") {
		t.Errorf("got %q", got)
	}
}

func TestNamesStayInTheFolder(t *testing.T) {
	for in, want := range map[string]string{
		"../../etc/passwd": "_/_/etc/passwd", "/etc/x": "etc/x", "a/./b": "a/_/b", "": "_", "a\x1b[31m/b:c": "a_[31m/b_c", "index.json": "index.json",
	} {
		if got := clean(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	files, index := made(t, wide, 1, part("x", func(_ context.Context, s *Sink) error { return s.Bytes(IndexFile, []byte("{}")) }))
	if string(files["index.json.2"]) != "{}" || index.Format != Format {
		t.Error("a file took the index's place")
	}
}

// A bundle from a node is bounded, also if it ends early.
func TestCopy(t *testing.T) {
	var other bytes.Buffer
	a := New(&other, "theirs", "node", wide, time.Now)
	a.Failed("kernel", errors.New("half"))
	if err := errors.Join(a.add("x", "big.txt", bytes.Repeat([]byte("x\n"), 1000), false), a.add("x", "secret.txt", []byte("token=planted\n"), false)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Close(); err != nil {
		t.Fatal(err)
	}
	whole := other.Bytes()
	var early bytes.Buffer
	b := New(&early, "theirs", "node", wide, time.Now)
	if err := errors.Join(b.add("x", "first.txt", []byte("first"), false), b.tar.Close(), b.gz.Close()); err != nil {
		t.Fatal(err)
	}
	files, _ := made(t, Limits{File: 500, Total: 1 << 20}, 1,
		part("whole", func(_ context.Context, s *Sink) error { return s.Copy("n", bytes.NewReader(whole)) }),
		part("broken", func(_ context.Context, s *Sink) error { return s.Copy("m", bytes.NewReader(whole[:len(whole)/2])) }),
		part("early", func(_ context.Context, s *Sink) error { return s.Copy("e", &early) }),
		part("else", func(_ context.Context, s *Sink) error { return s.Copy("o", strings.NewReader("<html>")) }),
	)
	if n := len(files["n/big.txt"]); n == 0 || n > 650 || string(files["n/secret.txt"]) != "token=REDACTED\n" || len(files["n/index.json"]) == 0 || string(files["e/first.txt"]) != "first" {
		t.Errorf("files %v", len(files))
	}
	for _, want := range []string{"whole, kernel: half\n", "broken: the node's bundle: ", "early: the node's bundle ends early", "else: the node's bundle: "} {
		if !strings.Contains(string(files[ErrorsFile]), want) {
			t.Errorf("%q is missing:\n%s", want, files[ErrorsFile])
		}
	}
}

// An error of the output, such as a full disk, ends the bundle.
func TestOutputThatFails(t *testing.T) {
	a := New(failing{}, "root", "test", wide, time.Now)
	more := 0
	var parts []Part
	for range 100 {
		parts = append(parts, part("x", func(_ context.Context, s *Sink) error {
			more++
			return s.Bytes("x", bytes.Repeat([]byte(fmt.Sprint(time.Now(), more)), 20000))
		}))
	}
	err := a.Collect(t.Context(), 1, parts)
	if err == nil || !strings.Contains(err.Error(), "no space") || more == 100 {
		t.Errorf("%v after %d parts", err, more)
	}
	if _, err := a.Close(); err == nil {
		t.Error("it was closed without an error")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "b.tar.gz")
	o, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it has its name before it is whole")
	}
	if _, err := io.WriteString(o, "x"); err != nil {
		t.Fatal(err)
	}
	if err := o.Keep(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := Create(path); err == nil {
		t.Error("a file is replaced")
	}
	dropped, err := Create(filepath.Join(dir, "c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := dropped.Drop(); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left %v", entries)
	}
}

// A file in a node's bundle may claim petabytes of holes (GNU sparse files, in PAX records).
func TestCopyOfAFileWithoutEnd(t *testing.T) {
	var plain, sparse bytes.Buffer
	w := tar.NewWriter(&plain)
	// The library writes no such records, so that they get their name afterwards.
	records := map[string]string{"VND.sparse.major": "0", "VND.sparse.minor": "1", "VND.sparse.numblocks": "0", "VND.sparse.size": fmt.Sprint(1 << 50)}
	err := errors.Join(
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "theirs/huge.txt", PAXRecords: records, Format: tar.FormatPAX}),
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "theirs/index.json", Size: 2, Format: tar.FormatPAX}),
	)
	if _, writeErr := w.Write([]byte("{}")); errors.Join(err, writeErr, w.Close()) != nil {
		t.Fatal(err, writeErr)
	}
	gz := gzip.NewWriter(&sparse)
	if _, err := gz.Write(bytes.ReplaceAll(plain.Bytes(), []byte("VND.sparse"), []byte("GNU.sparse"))); err != nil || gz.Close() != nil {
		t.Fatal(err)
	}
	p := part("node", func(_ context.Context, s *Sink) error { return s.Copy("n", &sparse) })
	p.Timeout = 20 * time.Second
	files, index := made(t, Limits{File: 500, Total: 1 << 20}, 1, p)
	if len(index.Errors) > 0 || !strings.HasSuffix(string(files["n/huge.txt"]), cutHere) {
		t.Errorf("%v, and it ends with %q", index.Errors, files["n/huge.txt"])
	}
}
