package install

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// volatile is node with a configuration that a reboot removes.
func volatile(t *testing.T) Options {
	t.Helper()
	o := node(t)
	o.Volatile = filepath.Join(t.TempDir(), "run", "berth", "cni", o.ConfName)
	return o
}

func (o Options) reboot(t *testing.T) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Dir(filepath.Dir(o.Volatile))))
}

// After a reboot there is no configuration until berthd has installed it again, and
// a runtime sees that, and the moment when there is one.
func TestRebootTakesTheConfiguration(t *testing.T) {
	o := volatile(t)
	for range 2 {
		mustInstall(t, o)
		if list, err := libcni.NetworkConfFromFile(o.conf()); err != nil || list.Name != "berth" {
			t.Fatalf("a runtime reads %v, %v", list, err)
		}
		if m := modeOf(t, o.Volatile); m != confMode {
			t.Errorf("mode %v", m)
		}
		before := inode(t, o.conf())
		if r := mustInstall(t, o); r.Changed != nil || inode(t, o.conf()) != before {
			t.Errorf("installing again changed %v", r.Changed)
		}
		o.reboot(t)
		if _, err := libcni.NetworkConfFromFile(o.conf()); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("after a reboot a runtime reads it: %v", err)
		}
		r := mustInstall(t, o)
		if diff := cmp.Diff([]string{o.conf()}, r.Changed); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		if inode(t, o.conf()) == before {
			t.Error("the link is the old one: a runtime that watches its directory does not see the file come back")
		}
	}
}

func TestVolatileConfigurationIsMended(t *testing.T) {
	o := volatile(t)
	mustInstall(t, o)
	for _, tc := range []struct {
		name  string
		spoil func()
	}{
		{"edited", func() { write(t, o.Volatile, strings.Replace(read(t, o.Volatile), "1.0.0", "0.4.0", 1), 0o600) }},
		{"damaged", func() { write(t, o.Volatile, "{", 0o600) }},
		{"readable", func() { write(t, o.Volatile, read(t, o.Volatile), 0o644) }},
		{"gone", func() { _ = os.Remove(o.Volatile) }},
		{"a plain file, of an earlier version", func() {
			text := read(t, o.conf())
			_ = os.Remove(o.conf())
			write(t, o.conf(), text, 0o600)
		}},
		{"a link elsewhere", func() { link(t, "/no/such/file", o.conf()) }},
		{"no link", func() { _ = os.Remove(o.conf()) }},
		{"broken off before the file", func() { link(t, o.Volatile, staged(o.conf())); _ = os.Remove(o.Volatile) }},
		{"broken off after the file", func() { link(t, o.Volatile, staged(o.conf())) }},
		{"broken off in the file", func() { link(t, o.Volatile, staged(o.conf())); write(t, staged(o.Volatile), "{", 0o600) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.spoil()
			// The kernel may give a new file the number of one that is gone.
			held, err := os.OpenFile(o.conf(), os.O_RDONLY, 0)
			if err == nil {
				defer func() { _ = held.Close() }()
			}
			if diff := cmp.Diff([]string{o.conf()}, mustInstall(t, o).Changed); diff != "" {
				t.Errorf("changed (-want +got):\n%s", diff)
			}
			if to, err := os.Readlink(o.conf()); to != o.Volatile || err != nil {
				t.Errorf("links to %q, %v", to, err)
			}
			if _, err := libcni.NetworkConfFromFile(o.conf()); err != nil {
				t.Error(err)
			}
			if got := mustInstall(t, o).Changed; got != nil {
				t.Errorf("installing again changed %v", got)
			}
			absent(t, staged(o.conf()), staged(o.Volatile))
		})
	}
	o.Volatile = ""
	mustInstall(t, o)
	if !modeOf(t, o.conf()).IsRegular() {
		t.Error("it is still a link, and is to be volatile no more")
	}
}

func TestUninstallOfALink(t *testing.T) {
	o := volatile(t)
	mustInstall(t, o)
	for _, want := range []bool{true, false} {
		if got, err := Uninstall(o.ConfDir, o.ConfName); got != want || err != nil {
			t.Errorf("Uninstall = %v, %v; want %v", got, err, want)
		}
	}
	absent(t, o.Volatile)
	mustInstall(t, o)
	o.reboot(t)
	if got, err := Uninstall(o.ConfDir, o.ConfName); !got || err != nil {
		t.Errorf("Uninstall after a reboot = %v, %v", got, err)
	}
	write(t, o.Volatile, `{"name":"x","plugins":[{"type":"bridge"}]}`, 0o600)
	link(t, o.Volatile, o.conf())
	if got, err := Uninstall(o.ConfDir, o.ConfName); got || err != nil {
		t.Errorf("Uninstall of another's = %v, %v", got, err)
	}
	if _, err := New(o).Install(t.Context()); err == nil {
		t.Error("another's configuration was replaced")
	}
}

// smallDisk gives a folder a file system of its own, of 64 KiB. full leaves no space
// on it, and roomy makes some again.
func smallDisk(t *testing.T, dir string) (full, roomy func()) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=755")); err != nil {
		t.Fatalf("this test mounts a file system and needs root: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	filler := filepath.Join(dir, "filler")
	full = func() {
		if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("%s is not full: %v", dir, err)
		}
	}
	return full, func() { must(t, os.Remove(filler)) }
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
				absent(t, o.conf())
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
			absent(t, staged(o.plugin()), staged(o.conf()))
		})
	}
}
