package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk gives a folder a file system of its own, of 64 KiB. full leaves no space
// on it, and roomy makes some again.
func smallDisk(t *testing.T, dir string) (full, roomy func()) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=755")); err != nil {
		t.Fatalf("this test mounts a file system and needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(dir, "filler")
	full = func() {
		if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("%s is not full: %v", dir, err)
		}
	}
	return full, func() {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
}

// On a full disk the error names the file and says so; what is in place stays, whole,
// and the next attempt with space puts the new one there.
func TestInstallOnAFullDisk(t *testing.T) {
	for name, dirOf := range map[string]func(Options) string{
		"plugins":        func(o Options) string { return o.BinDir },
		"configurations": func(o Options) string { return o.ConfDir },
	} {
		t.Run(name, func(t *testing.T) {
			o := node(t)
			o.Network.Chain = nil
			dir := dirOf(o)
			full, roomy := smallDisk(t, dir)
			full()
			if _, err := New(o).Install(t.Context()); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("a first installation: %v", err)
			}
			if o.BinDir == dir {
				if _, err := os.Stat(o.conf()); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("there is a configuration for a plugin that there is not: %v", err)
				}
			}
			roomy()
			mustInstall(t, o)

			before, conf := read(t, o.plugin()), read(t, o.conf())
			full()
			if r := mustInstall(t, o); len(r.Changed) != 0 {
				t.Errorf("what is as it should be was changed: %v", r.Changed)
			}
			write(t, o.Plugin, "plugin v2", 0o644)
			o.Network.MTU = 1400
			if _, err := New(o).Install(t.Context()); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("another version: %v", err)
			}
			if o.BinDir == dir && read(t, o.plugin()) != before || read(t, o.conf()) != conf {
				t.Error("what was in place was changed")
			}
			roomy()
			if mustInstall(t, o); read(t, o.plugin()) != "plugin v2" || read(t, o.conf()) == conf {
				t.Error("with space again the new version is not in place")
			}
			for _, left := range []string{staged(o.plugin()), staged(o.conf())} {
				if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is left: %v", left, err)
				}
			}
		})
	}
}
