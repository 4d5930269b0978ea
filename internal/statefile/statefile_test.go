package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// must ends the test with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, err := range map[string]error{
		"fifo": unix.Mkfifo(at("fifo"), 0o600), "device": os.Symlink("/dev/zero", at("device")), "folder": os.Mkdir(at("folder"), 0o700),
		"file": os.WriteFile(at("file"), []byte("x"), 0o600), "large": os.WriteFile(at("large"), nil, 0o600), "grows": os.Truncate(at("large"), Largest+1),
	} {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for name, says := range map[string]string{
		"fifo": "expected a regular file", "device": "too many levels", "folder": "expected a regular file", "large": "larger than", "file": "",
	} {
		data, err := Read(at(name))
		if says == "" && (err != nil || string(data) != "x") || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: Read() = %q, %v, want error containing %q", name, data, err, says)
		}
	}
	if _, err := Read(at("missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read() of a missing file = %v, want fs.ErrNotExist", err)
	}
	if _, err := Read("/dev/zero"); err == nil {
		t.Error("Read(/dev/zero) succeeded")
	}
}

func TestCreateReplacesFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for range 2 {
		must(t, Create(path, []byte("x"), 0o600))
	}
	must(t, os.Remove(path))
	must(t, unix.Mkfifo(path, 0o600))
	must(t, Create(path, []byte("y"), 0o600))
	if data, err := Read(path); err != nil || string(data) != "y" {
		t.Errorf("Read() = %q, %v, want y", data, err)
	}
}

// A file is created once, whoever was first.
func TestCreateOnly(t *testing.T) {
	a := filepath.Join(t.TempDir(), "a")
	must(t, CreateOnly(a, []byte("1"), 0o600))
	if err := CreateOnly(a, []byte("2"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("CreateOnly() of an existing file = %v, want fs.ErrExist", err)
	}
	if data, err := Read(a); err != nil || string(data) != "1" {
		t.Errorf("Read(%s) = %q, %v, want 1", a, data, err)
	}
	if left, _ := filepath.Glob(a + "*.new"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A file of another version is rejected, one without a version counts as the first version, and
// unknown fields are ignored.
func TestVersions(t *testing.T) {
	type content struct {
		A int `json:"a"`
	}
	data, err := Encode(content{7})
	if err != nil || string(data) != "{\n  \"version\": 1,\n  \"a\": 7\n}" {
		t.Errorf("Encode() = %s, %v", data, err)
	}
	for text, says := range map[string]string{
		string(data): "", `{"a":7}`: "", `{"version":1,"a":7,"later":{"b":[1]}}`: "",
		`{"version":2,"a":7}`: "version is 2, expected 1", `{"version":0,"a":7}`: "version is 0", `{"version":"1","a":7}`: "cannot unmarshal", `{"a":`: "unexpected end",
	} {
		var c content
		err := Decode([]byte(text), &c)
		if says == "" && (err != nil || c.A != 7) || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("Decode(%s) = %+v, %v, want error containing %q", text, c, err, says)
		}
	}
	for _, v := range []any{content{}, 7, []int{}, nil, struct{}{}} {
		if _, err := Encode(v); (err == nil) != (v == content{}) {
			t.Errorf("Encode(%T) = %v, want an error unless it is an object with fields", v, err)
		}
	}
}

func TestReplaceKeepsPermissions(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "file")
	for i, mode := range []os.FileMode{0o600, 0o640} {
		must(t, Replace(at, []byte(strconv.Itoa(i)), 0o600))
		data, err := os.ReadFile(at)
		must(t, err)
		info, err := os.Stat(at)
		must(t, err)
		if string(data) != strconv.Itoa(i) || info.Mode() != mode {
			t.Errorf("file = %q with %v, want %d with %v", data, info.Mode(), i, mode)
		}
		must(t, os.Chmod(at, 0o640))
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files = %v, %v, want one", files, err)
	}
}
