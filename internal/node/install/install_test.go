package install

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
)

// node returns options with a plugin to install, and directories in which the portmap
// plugin already exists.
func node(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	o := Options{
		Plugin: filepath.Join(dir, "image", "berth"), BinDir: filepath.Join(dir, "opt/cni/bin"),
		ConfDir: filepath.Join(dir, "etc/cni/net.d"), ConfName: "10-berth.conflist",
		CNIVersion: Auto,
		Network:    Network{Name: "berth", Socket: "/run/berth/berthd.sock", Chain: []string{"portmap", "bandwidth"}},
	}
	write(t, o.Plugin, "plugin v1", 0o644)
	plugin(t, o.BinDir, "portmap", speaks("0.4.0", "1.0.0"))
	return o
}

// plugin creates a plugin that runs a shell script.
func plugin(t *testing.T, dir, name, script string) {
	t.Helper()
	write(t, filepath.Join(dir, name), "#!/bin/sh\n"+script+"\n", 0o755)
}

// speaks returns the script of a plugin that supports these CNI versions.
func speaks(versions ...string) string {
	return `echo '{"cniVersion":"1.0.0","supportedVersions":["` + strings.Join(versions, `","`) + `"]}'`
}

func (o Options) plugin() string { return filepath.Join(o.BinDir, "berth") }
func (o Options) conf() string   { return filepath.Join(o.ConfDir, o.ConfName) }

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), mode), os.Chmod(path, mode)))
}

// link replaces a file by a symbolic link.
func link(t *testing.T, to, path string) {
	t.Helper()
	_ = os.Remove(path)
	must(t, os.Symlink(to, path))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// absent asserts that these files do not exist.
func absent(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s exists (error: %v)", path, err)
		}
	}
}

func mustInstall(t *testing.T, o Options) Report {
	t.Helper()
	r, err := New(o).Install(t.Context())
	must(t, err)
	return r
}

func lstat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return info
}

func modeOf(t *testing.T, path string) fs.FileMode {
	t.Helper()
	return lstat(t, path).Mode()
}

func TestInstall(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	o := node(t)
	o.Network.MTU, o.Network.Timeout, o.Network.Tells = 1500, 90*time.Second, []string{"io.kubernetes.cri.pod-annotations"}
	r := mustInstall(t, o)
	if diff := cmp.Diff(Report{
		Changed: []string{o.plugin(), o.conf()}, Versions: []string{"0.4.0", "1.0.0"}, LeftOut: []string{"bandwidth"}, Held: []string{"portmap"},
	}, r); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if got := read(t, o.plugin()); got != "plugin v1" {
		t.Errorf("plugin = %q, want %q", got, "plugin v1")
	}
	if p, c := modeOf(t, o.plugin()), modeOf(t, o.conf()); p != 0o755 || c != 0o600 {
		t.Errorf("modes = %v and %v, want 0755 and 0600", p, c)
	}
	list, err := libcni.ConfListFromFile(o.conf())
	if err != nil {
		t.Fatalf("reading the configuration like a runtime: %v", err)
	}
	if list.Name != "berth" || list.CNIVersion != "1.0.0" || len(list.Plugins) != 2 || !list.Plugins[1].Network.Capabilities["portMappings"] {
		t.Errorf("configuration as a runtime reads it = %+v", list)
	}
	const want = `{
  "cniVersion": "1.0.0",
  "name": "berth",
  "plugins": [
    {
      "type": "berth",
      "socket": "/run/berth/berthd.sock",
      "mtu": 1500,
      "timeout": "1m30s",
      "capabilities": {
        "io.kubernetes.cri.pod-annotations": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ],
  "berthPlugins": [
    "berth",
    "portmap"
  ]
}
`
	if diff := cmp.Diff(want, read(t, o.conf())); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

// inode returns a file's inode number, which shows whether the file was replaced.
func inode(t *testing.T, path string) uint64 {
	t.Helper()
	return lstat(t, path).Sys().(*syscall.Stat_t).Ino
}

func TestOnlyChangedFilesAreReplaced(t *testing.T) {
	o := node(t)
	mustInstall(t, o)
	for _, tc := range []struct {
		name    string
		spoil   func()
		changed []string
	}{
		{"nothing", func() {}, nil},
		{"another plugin of the same size", func() { write(t, o.Plugin, "plugin v2", 0o755) }, []string{o.plugin()}},
		{"larger plugin", func() { write(t, o.Plugin, strings.Repeat("plugin v3", 20_000), 0o755) }, []string{o.plugin()}},
		{"truncated plugin", func() { write(t, o.plugin(), "plugin", 0o755) }, []string{o.plugin()}},
		{"plugin not executable", func() { write(t, o.plugin(), read(t, o.Plugin), 0o644) }, []string{o.plugin()}},
		{"world-readable configuration", func() { write(t, o.conf(), read(t, o.conf()), 0o644) }, []string{o.conf()}},
		{"edited configuration", func() {
			write(t, o.conf(), strings.Replace(read(t, o.conf()), "1.0.0", "0.4.0", 1), 0o600)
		}, []string{o.conf()}},
		{"damaged configuration", func() { write(t, o.conf(), `{"cniVer`, 0o600) }, []string{o.conf()}},
		{"empty configuration", func() { write(t, o.conf(), ``, 0o600) }, []string{o.conf()}},
		{"missing plugin", func() { _ = os.Remove(o.plugin()) }, []string{o.plugin()}},
		{"symbolic link", func() { link(t, o.Plugin, o.plugin()) }, []string{o.plugin()}},
		{"chained plugin added later", func() { plugin(t, o.BinDir, "bandwidth", speaks("1.0.0")) }, []string{o.conf()}},
		{"temporary file of a crash", func() { write(t, staged(o.conf()), "{", 0o600) }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.spoil()
			before := [2]uint64{}
			if len(tc.changed) == 0 {
				before = [2]uint64{inode(t, o.plugin()), inode(t, o.conf())}
			}
			if diff := cmp.Diff(tc.changed, mustInstall(t, o).Changed); diff != "" {
				t.Errorf("changed (-want +got):\n%s", diff)
			}
			if len(tc.changed) == 0 && before != [2]uint64{inode(t, o.plugin()), inode(t, o.conf())} {
				t.Error("a file was replaced by an equal one")
			}
			if got := mustInstall(t, o).Changed; got != nil {
				t.Errorf("a repeated installation changed %v", got)
			}
			if read(t, o.plugin()) != read(t, o.Plugin) || modeOf(t, o.plugin()) != 0o755 || modeOf(t, o.conf()) != 0o600 {
				t.Error("the installed files have wrong content or modes")
			}
			absent(t, staged(o.plugin()), staged(o.conf()))
		})
	}
}

// A crash at any point while writing leaves the old file in place, and
// nothing that a runtime would read.
func TestCrashBeforeRename(t *testing.T) {
	o := node(t)
	mustInstall(t, o)
	before := read(t, o.conf())
	_, err := stage(o.conf(), strings.NewReader(`{"half`), confMode)
	must(t, err)
	if got := read(t, o.conf()); got != before {
		t.Errorf("staging changed the installed file to %q", got)
	}
	files, err := libcni.ConfFiles(o.ConfDir, []string{".conf", ".conflist", ".json"})
	must(t, err)
	if diff := cmp.Diff([]string{o.conf()}, files); diff != "" {
		t.Errorf("files that a runtime sees (-want +got):\n%s", diff)
	}
}

// Concurrent readers see one version or the other, never a partial file.
func TestReadersNeverSeePartialFiles(t *testing.T) {
	o := node(t)
	one, two := strings.Repeat("1", 300_000), strings.Repeat("2", 200_000)
	write(t, o.Plugin, one, 0o644)
	mustInstall(t, o)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 40 {
			write(t, o.Plugin, []string{two, one}[i%2], 0o644)
			if _, err := New(o).Install(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		if got := read(t, o.plugin()); got != one && got != two {
			t.Fatalf("read %d bytes that are neither version", len(got))
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestForeignConfigurationIsNotReplaced(t *testing.T) {
	for _, foreign := range []string{
		`{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"bridge"},{"type":"portmap"}]}`,
		`{"cniVersion":"1.0.0","name":"x","type":"ptp"}`,
		`{"cniVersion":"0.4.0","name":"aws-cni","plugins":[{"name":"aws-cni","type":"aws-cni","mtu":"9001"}]}`,
	} {
		o := node(t)
		write(t, o.conf(), foreign, 0o644)
		if _, err := New(o).Install(t.Context()); err == nil || !strings.Contains(err.Error(), o.conf()) || !strings.Contains(err.Error(), "--cni-conf-name") {
			t.Errorf("Install() = %v, want error that names the file and the flag", err)
		}
		absent(t, o.plugin())
		if removed, err := Uninstall(o.ConfDir, o.ConfName); removed || err != nil {
			t.Errorf("Uninstall() = %v, %v; want false", removed, err)
		}
		if read(t, o.conf()) != foreign {
			t.Error("the foreign configuration was changed")
		}
	}
}

func TestPreferredConfigurations(t *testing.T) {
	o := node(t)
	for _, name := range []string{"05-first.conf", "00-multus.conflist", "07-readme.txt", "99-last.conflist", "10-berth.conflist.bak"} {
		write(t, filepath.Join(o.ConfDir, name), "{}", 0o644)
	}
	want := []string{filepath.Join(o.ConfDir, "00-multus.conflist"), filepath.Join(o.ConfDir, "05-first.conf")}
	if diff := cmp.Diff(want, mustInstall(t, o).Preferred); diff != "" {
		t.Errorf("preferred (-want +got):\n%s", diff)
	}
}

// Fields of other plugins have other types than Berth's.
func TestConfigurations(t *testing.T) {
	o := node(t)
	write(t, filepath.Join(o.ConfDir, "05-aws.conflist"), `{"name":"aws-cni","plugins":[{"type":"aws-cni","mtu":"9001"},{"type":"portmap","timeout":5}]}`, 0o644)
	write(t, filepath.Join(o.ConfDir, "06-ptp.conf"), `{"name":"x","type":"ptp","mtu":1500}`, 0o644)
	write(t, filepath.Join(o.ConfDir, "07-broken.conflist"), "{", 0o644)
	want := []Configuration{
		{filepath.Join(o.ConfDir, "05-aws.conflist"), []string{"aws-cni", "portmap"}}, {filepath.Join(o.ConfDir, "06-ptp.conf"), []string{"ptp"}},
		{filepath.Join(o.ConfDir, "07-broken.conflist"), nil},
	}
	got, err := Configurations(o.ConfDir)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configurations (-want +got):\n%s", diff)
	}
}

func TestUninstall(t *testing.T) {
	o := node(t)
	mustInstall(t, o)
	for _, want := range []bool{true, false} {
		if got, err := Uninstall(o.ConfDir, o.ConfName); got != want || err != nil {
			t.Errorf("Uninstall() = %v, %v; want %v", got, err, want)
		}
	}
	absent(t, o.conf())
	read(t, o.plugin()) // running pods need the plugin for their DEL
}

// The runtime has a configuration without STATUS until berthd completes it, also where a reboot has emptied that of berthd.
func TestHold(t *testing.T) {
	o := volatile(t)
	must(t, os.MkdirAll(o.ConfDir, 0o755))
	for _, after := range []string{"nothing", "a reboot"} {
		for _, want := range []bool{true, false} {
			if got, err := Hold(o.ConfDir, o.ConfName, o.Network); got != want || err != nil {
				t.Errorf("after %s: Hold() = %v, %v; want %v", after, got, err, want)
			}
		}
		held := read(t, o.conf())
		if p := pluginsOf([]byte(held)); len(p) != 1 || p[0].Type != pluginName || !strings.Contains(held, o.Network.Socket) || strings.Contains(held, withStatus) {
			t.Errorf("after %s: held configuration: %s", after, held)
		}
		mustInstall(t, o)
		if got, err := Hold(o.ConfDir, o.ConfName, o.Network); got || err != nil || read(t, o.conf()) == held {
			t.Errorf("after %s: Hold() beside berthd's = %v, %v\n%s", after, got, err, read(t, o.conf()))
		}
		o.reboot(t)
	}
}

func TestInstallFailures(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*Options)
		want  string
	}{
		{"missing plugin", func(o *Options) { _ = os.Remove(o.Plugin) }, "opening the source file"},
		{"empty plugin", func(o *Options) { write(t, o.Plugin, "", 0o755) }, "not a regular file or is empty"},
		{"directory as plugin", func(o *Options) { o.Plugin = filepath.Dir(o.Plugin) }, "not a regular file or is empty"},
		{"directory with the plugin's name", func(o *Options) { write(t, filepath.Join(o.plugin(), "x"), "", 0o644) }, "in the way"},
		{"wrong file extension", func(o *Options) { o.ConfName = "10-berth.conf" }, ".conflist"},
		{"file in place of the directory", func(o *Options) { write(t, o.ConfDir, "", 0o644) }, "directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := node(t)
			tc.spoil(&o)
			if _, err := New(o).Install(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Install() = %v, want error containing %q", err, tc.want)
			}
			if _, err := os.Lstat(o.conf()); err == nil {
				t.Error("the configuration was installed without the plugin")
			}
		})
	}
}

func TestEqualComparesWholeFiles(t *testing.T) {
	big := strings.Repeat("x", 100_000)
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"", "", true}, {"a", "", false}, {"", "a", false}, {"a", "b", false},
		{big, big, true}, {big, big + "x", false}, {big[:32<<10], big[:32<<10], true}, {big[:32<<10], big[:32<<10+1], false},
	} {
		if got, err := equal(strings.NewReader(tc.a), bytes.NewReader([]byte(tc.b))); got != tc.want || err != nil {
			t.Errorf("equal() of %d and %d bytes = %v, %v, want %v", len(tc.a), len(tc.b), got, err, tc.want)
		}
	}
}
