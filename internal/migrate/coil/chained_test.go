package coil

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/statefile"
)

// A configuration that the other network writes while Coil's plugin is removed, or before it comes back, is kept.
func TestConfigurationsWrittenMeanwhile(t *testing.T) {
	const (
		former = `{"name": "net", "mtu": 1, "plugins": [{"type": "ptp"}, {"type": "coil", "socket": "s"}]}`
		later  = `{"name": "net", "mtu": 2, "plugins": [{"type": "ptp"}, {"type": "coil", "socket": "s"}]}`
		latest = `{"name": "net", "mtu": 3, "plugins": [{"type": "bridge"}]}`
	)
	is := func(what, path, want string) {
		t.Helper()
		data, err := statefile.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		var got, wanted any
		if err := errors.Join(json.Unmarshal(data, &got), json.Unmarshal([]byte(want), &wanted)); err != nil || !reflect.DeepEqual(got, wanted) {
			t.Errorf("%s = %s, %v, want %s", what, data, err, want)
		}
	}
	conf := filepath.Join(t.TempDir(), "10-net.conflist")
	write := func(text string) {
		t.Helper()
		if err := statefile.Replace(conf, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(former)
	n := &Node{cfg: Config{ConfFolder: filepath.Dir(conf)}}
	calls := 0
	if did, err := edit(conf, func(was []byte) ([]byte, error) {
		if calls++; calls == 1 {
			write(later)
		}
		return setAside(conf, was)
	}); err != nil || !did || calls != 2 {
		t.Fatalf("edit = %t, %v after %d calls", did, err, calls)
	}
	is("configuration", conf, `{"name": "net", "mtu": 2, "plugins": [{"type": "ptp"}]}`)
	is("file aside", conf+aside, later)

	write(latest)
	if did, err := n.rechain(); err != nil || !slices.Equal(did, []string{"restored " + conf}) {
		t.Fatalf("rechain = %v, %v", did, err)
	}
	is("configuration", conf, `{"name": "net", "mtu": 3, "plugins": [{"type": "bridge"}, {"type": "coil", "socket": "s"}]}`)
	if files, err := os.ReadDir(n.cfg.ConfFolder); err != nil || len(files) != 1 {
		t.Errorf("files = %v, %v, want the configuration alone", files, err)
	}
}

// Nothing that the other network writes is lost if the tool is killed while it edits the configuration, which keeps its
// permissions and may be a symbolic link. Nothing stays beside it.
func TestConfigurationsWrittenWhileKilled(t *testing.T) {
	const (
		former = `{"plugins": [{"type": "ptp"}, {"type": "coil"}]}`
		later  = `{"mtu": 2, "plugins": [{"type": "ptp"}, {"type": "coil"}]}`
	)
	compact := func(path string) string {
		data, err := statefile.Read(path)
		var b bytes.Buffer
		if err := errors.Join(err, json.Compact(&b, data)); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, point := range []string{"coil.draft.after", "coil.exchange.after"} {
		for name, want := range map[string]string{"apply": `{"mtu":2,"plugins":[{"type":"ptp"}]}`, "rollback": `{"mtu":2,"plugins":[{"type":"ptp"},{"type":"coil"}]}`} {
			file, folder := filepath.Join(t.TempDir(), "net"), t.TempDir()
			conf := filepath.Join(folder, "10-net.conflist")
			ago := time.Now().Add(-time.Hour)
			if err := errors.Join(statefile.Create(file, []byte(former), 0o600), os.Chtimes(file, ago, ago), os.Symlink(file, conf)); err != nil {
				t.Fatal(err)
			}
			n := &Node{cfg: Config{ConfFolder: folder}}
			restore, err := failpoint.Set(point + "=error")
			if err != nil {
				t.Fatal(err)
			}
			_, err = edit(conf, func(was []byte) ([]byte, error) {
				want, err := setAside(conf, was)
				return want, errors.Join(err, statefile.Replace(file, []byte(later), 0))
			})
			if restore(); !errors.Is(err, failpoint.ErrHit) {
				t.Fatalf("edit = %v", err)
			}
			if name == "apply" {
				_, err = n.unchain(state{chained: point == "coil.draft.after", conf: conf})
			} else {
				_, err = n.rechain()
			}
			if got := compact(file); err != nil || got != want {
				t.Errorf("%s after a kill at %s: configuration = %s, %v, want %s", name, point, got, err, want)
			}
			if name == "apply" {
				if aside, err := os.Lstat(conf + aside); err != nil || aside.Mode() != 0o600 || compact(conf+".berth") != `{"mtu":2,"plugins":[{"type":"ptp"},{"type":"coil"}]}` {
					t.Errorf("after a kill at %s: file aside = %v, %v", point, aside, err)
				}
			}
			if err := n.forgetChained(); err != nil {
				t.Error(err)
			}
			if info, err := os.Lstat(file); err != nil || info.Mode() != 0o600 {
				t.Errorf("%s: file = %v, %v, want its permissions kept", name, info, err)
			}
			for _, dir := range []string{folder, filepath.Dir(file)} {
				if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
					t.Errorf("%s after a kill at %s: files = %v, %v, want one", name, point, files, err)
				}
			}
		}
	}
}
