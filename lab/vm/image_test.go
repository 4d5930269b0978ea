package vm

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestParseKernel(t *testing.T) {
	for _, tt := range []struct {
		text string
		want kernel
		err  bool
	}{
		{"Package: linux-image-amd64\nVersion: 6.1.172-1\nDepends: linux-image-6.1.0-48-amd64 (= 6.1.172-1)\n", kernel{"linux-image-6.1.0-48-amd64", "6.1.172-1"}, false},
		{"Depends: linux-image-6.12.9-amd64 (= 1:6.12.9-1), linux-base\n", kernel{"linux-image-6.12.9-amd64", "1:6.12.9-1"}, false},
		{"Depends: linux-image-generic\n", kernel{}, true},
		{"Package: linux-image-amd64\n", kernel{}, true},
	} {
		got, err := parseKernel(tt.text)
		if got != tt.want || (err != nil) != tt.err {
			t.Errorf("%q: got %v, %v", tt.text, got, err)
		}
	}
}

// TestPrepareOnce has concurrent callers prepare an image once, where a killed one has left half an image.
func TestPrepareOnce(t *testing.T) {
	dir := t.TempDir()
	k := kernel{"linux-image-x", "1:2"}
	half := filepath.Join(dir, halfMade)
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, "vmlinux"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("no network")
	if _, err := prepareIn(t.Context(), dir, k, func(context.Context, string) error { return failed }); !errors.Is(err, failed) {
		t.Fatalf("got %v, want %v", err, failed)
	}
	var made atomic.Int32
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			i, err := prepareIn(t.Context(), dir, k, func(_ context.Context, dir string) error {
				made.Add(1)
				if _, err := os.Stat(Image(dir).kernel()); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("what was left half-made is there: %v", err)
				}
				return os.WriteFile(Image(dir).kernel(), []byte("whole"), 0o600)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if data, err := os.ReadFile(i.kernel()); string(data) != "whole" {
				t.Errorf("the image has %q, %v", data, err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("the image was made %d times, want once", made.Load())
	}
}

func TestPayload(t *testing.T) {
	image := func(change func([]byte)) []byte {
		b := make([]byte, 3*sector+8)
		b[setupSectsAt] = 1
		copy(b[headerMagicAt:], "HdrS")
		binary.LittleEndian.PutUint16(b[versionAt:], payloadSinceBoot)
		binary.LittleEndian.PutUint32(b[payloadOffsetAt:], sector)
		binary.LittleEndian.PutUint32(b[payloadLengthAt:], 6)
		copy(b[3*sector:], "kernel..")
		change(b)
		return b
	}
	for _, tt := range []struct {
		name, want, err string
		image           []byte
	}{
		{"a bzImage", "kernel", "", image(func([]byte) {})},
		{"four sectors by default", "", "bytes 3072 to 3078", image(func(b []byte) { b[setupSectsAt] = 0 })},
		{"something else", "", "no bzImage", image(func(b []byte) { b[headerMagicAt] = 'x' })},
		{"nothing", "", "no bzImage", nil},
		{"one of old", "", "boot protocol is 0x207", image(func(b []byte) { b[versionAt]-- })},
		{"one that is cut off", "", "to 1545", image(func(b []byte) { b[payloadLengthAt] = 9 })},
	} {
		got, err := payload(tt.image)
		if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got %q, %v; want %q, %q", tt.name, got, err, tt.want, tt.err)
		}
	}
}

func TestWanted(t *testing.T) {
	for name, want := range map[string]bool{
		"lib/modules/6.1/kernel/net/ipv4/fou.ko":                true,
		"lib/modules/6.1/modules.builtin":                       true,
		"lib/modules/6.1/kernel/drivers/net/tun.ko":             true,
		"lib/modules/6.1/kernel/drivers/net/ethernet/x/y.ko":    false,
		"lib/modules/6.1/kernel/drivers/char/virtio_console.ko": true,
		"lib/modules/6.1/kernel/drivers/gpu/drm/i915/i915.ko":   false,
		"lib/modules/6.1/kernel/sound/soundcore.ko":             false,
		"share/doc/linux-image-6.1/changelog.gz":                false,
	} {
		if got := wanted(name); got != want {
			t.Errorf("%s: wanted is %v, want %v", name, got, want)
		}
	}
}

// TestWhatIsMissing checks that errors name what is missing.
func TestWhatIsMissing(t *testing.T) {
	if err := rightArchitecture("arm64"); err == nil || !strings.Contains(err.Error(), "arm64") {
		t.Errorf("on arm64: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := find("no-such-program", "such-package"); err == nil || !strings.Contains(err.Error(), "no-such-program, of the Debian package such-package") {
		t.Errorf("without a program: %v", err)
	}
	if _, err := os.Stat("/bin/ls"); err == nil {
		if err := static("/bin/ls"); err == nil || !strings.Contains(err.Error(), "busybox-static") {
			t.Errorf("of a program with libraries: %v", err)
		}
	}
	t.Setenv(Environment, t.TempDir())
	if _, err := Prepare(t.Context(), func(string) {}); err == nil || !strings.Contains(err.Error(), Environment) {
		t.Errorf("with a folder that is no image: %v", err)
	}
}
