package statefile

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

// Two files exchange their names.
func TestExchange(t *testing.T) {
	a := filepath.Join(t.TempDir(), "a")
	b := a + ".b"
	must(t, Create(a, []byte("1"), 0o600))
	if err := Exchange(a, b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Exchange() with a missing file = %v, want fs.ErrNotExist", err)
	}
	must(t, Create(b, []byte("3"), 0o600))
	must(t, Exchange(a, b))
	for path, want := range map[string]string{a: "3", b: "1"} {
		if data, err := Read(path); err != nil || string(data) != want {
			t.Errorf("Read(%s) = %q, %v, want %s", path, data, err, want)
		}
	}
}
