package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// bundled is node with plugins that come with berthd.
func bundled(t *testing.T) Options {
	t.Helper()
	o := node(t)
	o.Bundle = filepath.Join(t.TempDir(), "cni")
	for _, name := range []string{"portmap", "bandwidth", "loopback", "vlan"} {
		plugin(t, o.Bundle, name, speaks("1.0.0")+" # berth's "+name)
	}
	return o
}

func TestMissingPluginsAreInstalled(t *testing.T) {
	o := bundled(t)
	in := func(name string) string { return filepath.Join(o.BinDir, name) }
	theirs := read(t, in("portmap"))
	r := mustInstall(t, o)
	if diff := cmp.Diff([]string{o.plugin(), in("loopback"), in("bandwidth"), o.conf()}, r.Changed); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if r.LeftOut != nil || r.Failed != nil || read(t, in("portmap")) != theirs {
		t.Errorf("%+v; another's portmap is %q", r, read(t, in("portmap")))
	}
	if _, err := os.Lstat(in("vlan")); err == nil {
		t.Error("what nobody asked for is installed")
	}
	if m := modeOf(t, in("bandwidth")); m != pluginMode {
		t.Errorf("mode %v", m)
	}

	for _, tc := range []struct {
		name  string
		spoil func()
		want  []string
	}{
		{"nothing", func() {}, nil},
		{"a later version", func() { plugin(t, o.Bundle, "bandwidth", speaks("1.0.0")+" # v2") }, []string{in("bandwidth")}},
		{"an earlier version again", func() { plugin(t, o.Bundle, "bandwidth", speaks("1.0.0")+" # v1") }, []string{in("bandwidth")}},
		{"gone", func() { _ = os.Remove(in("bandwidth")) }, []string{in("bandwidth")}},
		{"no longer executable", func() { _ = os.Chmod(in("bandwidth"), 0o644) }, []string{in("bandwidth")}},
		{"somebody else's came", func() { plugin(t, o.BinDir, "bandwidth", speaks("1.0.0")+" # theirs") }, nil},
		{"and a later version of ours", func() { plugin(t, o.Bundle, "bandwidth", speaks("1.0.0")+" # v3") }, nil},
		{"what is written down is damaged", func() {
			write(t, in(bundledName), "{", 0o644)
			plugin(t, o.Bundle, "loopback", speaks("1.0.0")+" # v2")
		}, nil},
		{"a link that leads nowhere", func() {
			_ = os.Remove(in("loopback"))
			if err := os.Symlink("/no/such/file", in("loopback")); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		tc.spoil()
		r := mustInstall(t, o)
		if diff := cmp.Diff(tc.want, r.Changed); diff != "" || r.Failed != nil {
			t.Errorf("%s: changed (-want +got):\n%s%v", tc.name, diff, r.Failed)
		}
	}
}

// A crash between what is written down and the file, either way.
func TestBundledPluginAfterACrash(t *testing.T) {
	o := bundled(t)
	mustInstall(t, o)
	path := filepath.Join(o.BinDir, "bandwidth")
	old := read(t, path)
	plugin(t, o.Bundle, "bandwidth", speaks("1.0.0")+" # v2")
	mustInstall(t, o)
	write(t, path, old, 0o755) // as if the rename had not come
	if got := mustInstall(t, o).Changed; len(got) != 1 || read(t, path) != read(t, filepath.Join(o.Bundle, "bandwidth")) {
		t.Errorf("changed %v: the old version stays for ever", got)
	}
}

// A disk that was full for two versions: what is in place is Berth's all the same.
func TestBundledPluginOfLongAgo(t *testing.T) {
	for name, back := range map[string]bool{"two that did not come": false, "after going back": true} {
		o := bundled(t)
		mustInstall(t, o)
		path := filepath.Join(o.BinDir, "bandwidth")
		old := read(t, path)
		plugin(t, o.Bundle, "bandwidth", speaks("1.0.0")+" # v2")
		mustInstall(t, o)
		if back {
			write(t, filepath.Join(o.Bundle, "bandwidth"), old, 0o755)
			mustInstall(t, o)
		} else {
			write(t, path, old, 0o755)
		}
		plugin(t, o.Bundle, "bandwidth", speaks("1.0.0")+" # v3")
		mustInstall(t, o)
		write(t, path, old, 0o755) // as if the rename had not come
		if got := mustInstall(t, o).Changed; len(got) != 1 || read(t, path) != read(t, filepath.Join(o.Bundle, "bandwidth")) {
			t.Errorf("%s: changed %v: the old version stays for ever", name, got)
		}
	}
}

func TestBundledIsWrittenDownAsNull(t *testing.T) {
	o := bundled(t)
	write(t, filepath.Join(o.BinDir, bundledName), "null", 0o644)
	if r := mustInstall(t, o); r.Failed != nil || len(r.LeftOut) != 0 {
		t.Errorf("%+v", r)
	}
}

// What cannot be installed is told, and keeps nothing else from it.
func TestBundledPluginThatCannotBeInstalled(t *testing.T) {
	o := bundled(t)
	write(t, filepath.Join(o.Bundle, "bandwidth"), "", 0o755)
	r := mustInstall(t, o)
	if len(r.Failed) != 1 || r.Failed[0].Plugin != "bandwidth" || len(r.LeftOut) != 1 {
		t.Errorf("%+v", r)
	}
	o.Bundle = filepath.Join(t.TempDir(), "none")
	if r := mustInstall(t, o); r.Failed != nil {
		t.Errorf("without a bundle: %v", r.Failed)
	}
}
