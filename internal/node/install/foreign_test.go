package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
)

// mesh is an entry like that of a service mesh's installer.
const mesh = `{"type":"istio-cni","mtu":"9001","log_level":"info","kubernetes":{"exclude_namespaces":["istio-system"]},"ambient_enabled":false}`

// edit changes the configuration as other software does: by a rename, with its own formatting.
func edit(t *testing.T, o Options, old, with string) {
	t.Helper()
	text := strings.NewReplacer("\n", "", " ", "").Replace(read(t, o.conf()))
	if !strings.Contains(text, old) {
		t.Fatalf("%s lacks %s", text, old)
	}
	write(t, o.conf()+".tmp", strings.Replace(text, old, with, 1), 0o644)
	must(t, os.Rename(o.conf()+".tmp", o.conf()))
}

// chain returns the plugin types of the installed configuration, as a runtime reads it, and checks the mesh's entry.
func chain(t *testing.T, o Options) (types string) {
	t.Helper()
	list, err := libcni.ConfListFromFile(o.conf())
	must(t, err)
	for _, p := range list.Plugins {
		types += " " + p.Network.Type
		if p.Network.Type == "istio-cni" && !strings.Contains(string(p.Bytes), `"exclude_namespaces":["istio-system"]`) {
			t.Errorf("entry of the mesh = %s, want it unchanged", p.Bytes)
		}
	}
	return strings.TrimSpace(types)
}

// Entries that other software adds to the configuration stay, in their order, across restarts and changes of Berth.
func TestForeignEntriesAreKept(t *testing.T) {
	atEnd := func(o Options) { edit(t, o, `],"berthPlugins"`, ","+mesh+`],"berthPlugins"`) }
	first := func(o Options) { edit(t, o, `"plugins":[`, `"plugins":[{"type":"first"},`) }
	second := func(o Options) { edit(t, o, `{"type":"portmap"`, `{"type":"linkerd-cni"},{"type":"portmap"`) }
	for name, tc := range map[string]struct {
		theirs []func(Options)
		change func(*Options) // change of Berth's options
		want   string
	}{
		"restart":                        {[]func(Options){atEnd}, func(*Options) {}, "berth portmap istio-cni"},
		"several entries":                {[]func(Options){atEnd, second, first}, func(*Options) {}, "first berth linkerd-cni portmap istio-cni"},
		"other settings":                 {[]func(Options){atEnd, second}, func(o *Options) { o.Network.MTU = 1500 }, "berth linkerd-cni portmap istio-cni"},
		"plugin added":                   {[]func(Options){atEnd, second}, func(o *Options) { plugin(t, o.BinDir, "bandwidth", speaks("1.0.0")) }, "berth linkerd-cni portmap bandwidth istio-cni"},
		"plugin removed from the chain":  {[]func(Options){atEnd, second}, func(o *Options) { o.Network.Chain = nil }, "berth linkerd-cni istio-cni"},
		"plugin binary deleted":          {[]func(Options){atEnd, second}, func(o *Options) { _ = os.Remove(filepath.Join(o.BinDir, "portmap")) }, "berth linkerd-cni istio-cni"},
		"foreign plugin becomes Berth's": {[]func(Options){atEnd}, func(o *Options) { o.Network.Chain = []string{"istio-cni"} }, "berth"},
		"list without Berth's plugins": {[]func(Options){atEnd, func(o Options) { edit(t, o, `,"berthPlugins":["berth","portmap"]`, "") }},
			func(o *Options) { o.Network.Chain = nil }, "berth istio-cni"},
		"foreign entry removed": {[]func(Options){atEnd}, func(o *Options) { edit(t, *o, ","+mesh, "") }, "berth portmap"},
	} {
		for _, volatile := range []bool{false, true} {
			o := node(t)
			if volatile {
				name += ", volatile"
				o.Volatile = filepath.Join(t.TempDir(), "run/berth/cni", o.ConfName)
			}
			mustInstall(t, o)
			for _, add := range tc.theirs {
				add(o)
				mustInstall(t, o)
			}
			tc.change(&o)
			mustInstall(t, o)
			if got := chain(t, o); got != tc.want {
				t.Errorf("%s: chain = %q, want %q", name, got, tc.want)
			}
			if again := mustInstall(t, o).Changed; again != nil {
				t.Errorf("%s: a repeated installation changed %v", name, again)
			}
			if _, err := os.Readlink(o.conf()); (err == nil) != volatile {
				t.Errorf("%s: link = %v (%v), want %v", name, err == nil, err, volatile)
			}
		}
	}
}

// The target file may exist after the link was removed.
func TestForeignEntriesAreKeptWithoutTheLink(t *testing.T) {
	o := node(t)
	o.Volatile = filepath.Join(t.TempDir(), o.ConfName)
	mustInstall(t, o)
	edit(t, o, `],"berthPlugins"`, ","+mesh+`],"berthPlugins"`)
	mustInstall(t, o)
	if err := os.Remove(o.conf()); err != nil {
		t.Fatal(err)
	}
	mustInstall(t, o)
	if got := chain(t, o); got != "berth portmap istio-cni" {
		t.Errorf("chain = %q", got)
	}
}

// Foreign entries affect the choice of versions and are reported. One that does not work is kept.
func TestForeignEntriesAreReported(t *testing.T) {
	o := node(t)
	o.Network.Chain = nil
	if r := mustInstall(t, o); !cmp.Equal(r.Versions, spoken) || r.Foreign != nil {
		t.Fatalf("report = %+v, want all versions and no foreign entry", r)
	}
	edit(t, o, `],"berthPlugins"`, ","+mesh+`],"berthPlugins"`)
	if r := mustInstall(t, o); len(r.Failed) != 1 || !strings.Contains(r.Failed[0].Why, "istio-cni, which other software put") || !cmp.Equal(r.Versions, spoken) {
		t.Errorf("report without the foreign binary = %+v", r)
	}
	plugin(t, o.BinDir, "istio-cni", speaks("0.4.0", "1.0.0"))
	r := mustInstall(t, o)
	if !cmp.Equal(r.Foreign, []string{"istio-cni"}) || !cmp.Equal(r.Versions, []string{"0.4.0", "1.0.0"}) || !cmp.Equal(r.Held, []string{"istio-cni"}) || r.Failed != nil {
		t.Errorf("report = %+v, want istio-cni as foreign entry that limits the versions", r)
	}
	if got := chain(t, o); got != "berth istio-cni" {
		t.Errorf("chain = %q", got)
	}
}
