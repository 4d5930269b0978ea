package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
			t.Errorf("%s: %q, %v, want an error that says %q", name, data, err, says)
		}
	}
	if _, err := Read(at("missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := Read("/dev/zero"); err == nil {
		t.Error("a device was read")
	}
}

func TestCreateReplacesWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for range 2 {
		must(t, Create(path, []byte("x"), 0o600))
	}
	must(t, os.Remove(path))
	must(t, unix.Mkfifo(path, 0o600))
	must(t, Create(path, []byte("y"), 0o600))
	if data, err := Read(path); err != nil || string(data) != "y" {
		t.Errorf("%q, %v", data, err)
	}
}

// A file of another version is refused, one without a version is of the first, and
// fields that are not known are passed over.
func TestVersions(t *testing.T) {
	type content struct {
		A int `json:"a"`
	}
	data, err := Encode(content{7})
	if err != nil || string(data) != "{\n  \"version\": 1,\n  \"a\": 7\n}" {
		t.Errorf("%s, %v", data, err)
	}
	for text, says := range map[string]string{
		string(data): "", `{"a":7}`: "", `{"version":1,"a":7,"later":{"b":[1]}}`: "",
		`{"version":2,"a":7}`: "version is 2, expected 1", `{"version":0,"a":7}`: "version is 0", `{"version":"1","a":7}`: "cannot unmarshal", `{"a":`: "unexpected end",
	} {
		var c content
		err := Decode([]byte(text), &c)
		if says == "" && (err != nil || c.A != 7) || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %+v, %v, want an error that says %q", text, c, err, says)
		}
	}
	for _, v := range []any{content{}, 7, []int{}, nil, struct{}{}} {
		if _, err := Encode(v); (err == nil) != (v == content{}) {
			t.Errorf("%T: %v", v, err)
		}
	}
}
