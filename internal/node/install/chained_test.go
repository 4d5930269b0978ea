package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without addresses of the node's own the plugin is there and no configuration, and the report
// says what to add until some network has it.
func TestInstallChained(t *testing.T) {
	o := node(t)
	o.Network.Tells = []string{"io.kubernetes.cri.pod-annotations"}
	other := filepath.Join(o.ConfDir, "05-other.conflist")
	const list = `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"ptp"},{"type":"portmap"}]}`
	todo := func(says string) {
		t.Helper()
		r, err := New(o).InstallChained()
		if err != nil {
			t.Fatal(err)
		}
		if r.Unchained == "" && says != "" || !strings.Contains(r.Unchained, says) || says == "" && r.Unchained != "" {
			t.Errorf("the report says %q, want %q", r.Unchained, says)
		}
		if text := read(t, o.plugin()); text != "plugin v1" {
			t.Errorf("the plugin is %q", text)
		}
		if _, err := os.Lstat(o.conf()); err == nil {
			t.Error("there is a configuration of Berth's own")
		}
	}
	todo("there is no network configuration")
	mustInstall(t, o) // as when the node's addresses were Berth's
	todo(`add {"type":"berth","socket":"/run/berth/berthd.sock","capabilities":{"io.kubernetes.cri.pod-annotations":true}} as the last`)
	write(t, other, list, 0o600)
	todo(other + " is what a runtime that takes one network takes")
	if read(t, other) != list {
		t.Error("the other network's configuration was changed")
	}
	write(t, other, strings.Replace(list, `{"type":"portmap"}`, `{"type":"portmap"},{"type":"berth"}`, 1), 0o600)
	todo("")

	// A folder for configurations is not made: it is the other network's.
	o = node(t)
	todo("there is no network configuration")
	if _, err := os.Stat(o.ConfDir); err == nil {
		t.Error("the folder of configurations was made")
	}
}

// A list of that name to which somebody added the plugin stays.
func TestInstallChainedLeavesOthersListsAlone(t *testing.T) {
	o := node(t)
	write(t, o.conf(), `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"ptp"},{"type":"berth"}]}`, 0o600)
	r, err := New(o).InstallChained()
	if err != nil || r.Unchained != "" || len(r.Changed) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	read(t, o.conf())
}
