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
	absent(t, in("vlan")) // nobody asked for it
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
		{"what is written down is null", func() { write(t, in(bundledName), "null", 0o644); _ = os.Remove(in("loopback")) }, []string{in("loopback")}},
		{"what is written down is damaged", func() {
			write(t, in(bundledName), "{", 0o644)
			plugin(t, o.Bundle, "loopback", speaks("1.0.0")+" # v2")
		}, nil},
		{"a link that leads nowhere", func() { link(t, "/no/such/file", in("loopback")) }, nil},
	} {
		tc.spoil()
		r := mustInstall(t, o)
		if diff := cmp.Diff(tc.want, r.Changed); diff != "" || r.Failed != nil {
			t.Errorf("%s: changed (-want +got):\n%s%v", tc.name, diff, r.Failed)
		}
	}
}

// An earlier version of Berth's that is in place is recognized, as after a crash or while a disk was full, and replaced.
func TestEarlierBundledPluginIsReplaced(t *testing.T) {
	for name, tt := range map[string]struct {
		versions []string
		back     bool // the first of them is taken back
	}{
		"a crash before the rename":        {[]string{"v2"}, false},
		"two versions that could not come": {[]string{"v2", "v3"}, false},
		"after going back":                 {[]string{"v2", "v3"}, true},
	} {
		o := bundled(t)
		mustInstall(t, o)
		path, bundle := filepath.Join(o.BinDir, "bandwidth"), filepath.Join(o.Bundle, "bandwidth")
		old := read(t, path)
		for i, version := range tt.versions {
			plugin(t, o.Bundle, "bandwidth", speaks("1.0.0")+" # "+version)
			mustInstall(t, o)
			if i == 0 && tt.back {
				write(t, bundle, old, 0o755)
				mustInstall(t, o)
			} else {
				write(t, path, old, 0o755) // as if the rename had not come
			}
		}
		if got := mustInstall(t, o).Changed; len(got) != 1 || read(t, path) != read(t, bundle) {
			t.Errorf("%s: changed %v: the old version stays for ever", name, got)
		}
	}
}

// It is reported, and the other plugins are installed.
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
