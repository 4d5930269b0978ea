package coil

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

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
