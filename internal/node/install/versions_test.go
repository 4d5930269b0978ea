package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
)

func TestChoose(t *testing.T) {
	var (
		newPortmap = answer{plugin: "portmap", versions: spoken}
		oldPortmap = answer{plugin: "portmap", versions: common}
		unaskable  = answer{plugin: "portmap", versions: common, unasked: "no loader"}
		bandwidth  = answer{plugin: "bandwidth", versions: spoken}
		ancient    = answer{plugin: "ancient", versions: []string{"0.3.1"}}
		newOnly    = answer{plugin: "new", versions: []string{"1.1.0"}}
		broken     = answer{plugin: "broken", broken: "it is not executable"}
	)
	for _, tc := range []struct {
		name    string
		want    string
		answers []answer
		chain   string
		one     string // cniVersion
		all     string // cniVersions
		leftOut string // what is said of it
		held    string
	}{
		{"berth alone", Auto, nil, "", "1.0.0", "1.0.0 1.1.0", "", ""},
		{"all speak all", Auto, []answer{newPortmap, bandwidth}, "portmap bandwidth", "1.0.0", "1.0.0 1.1.0", "", ""},
		{"Debian's portmap", Auto, []answer{oldPortmap, bandwidth}, "portmap bandwidth", "1.0.0", "", "", "portmap"},
		{"one that cannot be asked", Auto, []answer{unaskable, bandwidth}, "portmap bandwidth", "1.0.0", "", "", "portmap"},
		{"an ancient one", Auto, []answer{ancient, newPortmap}, "ancient portmap", "0.3.1", "", "", "ancient"},
		{"one that does not fit to those before it", Auto, []answer{oldPortmap, newOnly}, "portmap", "1.0.0", "", "it speaks CNI 1.1.0", "portmap"},
		{"one that needs what is new", Auto, []answer{newOnly, bandwidth}, "new bandwidth", "1.1.0", "", "", ""},
		{"a broken one", Auto, []answer{broken, bandwidth}, "bandwidth", "1.0.0", "1.0.0 1.1.0", "not executable", ""},
		{"a version that was asked for", "1.1.0", []answer{oldPortmap, bandwidth}, "bandwidth", "1.1.0", "", "it speaks CNI 0.3.1, 0.4.0, 1.0.0", ""},
		{"one that cannot be asked for it", "1.1.0", []answer{unaskable}, "", "1.1.0", "", "cannot be asked whether it speaks CNI 1.1.0", ""},
		{"an old version that was asked for", "0.4.0", []answer{bandwidth, unaskable}, "bandwidth portmap", "0.4.0", "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := choose(tc.want, tc.answers)
			one, all := offered(c.versions)
			var why string
			for _, u := range c.leftOut {
				why += u.Why
			}
			if strings.Join(c.chain, " ") != tc.chain || one != tc.one || strings.Join(all, " ") != tc.all ||
				!strings.Contains(why, tc.leftOut) || (why == "") != (tc.leftOut == "") || strings.Join(c.held, " ") != tc.held {
				t.Errorf("%+v as %q and %q", c, one, all)
			}
		})
	}
}

// The runtime's library knows all versions, or is from before cniVersions and
// reads cniVersion.
func TestRuntimesChooseTheNewestVersion(t *testing.T) {
	o := node(t)
	plugin(t, o.BinDir, "portmap", `case $CNI_COMMAND in VERSION) `+speaks("0.3.1", "0.4.0", "1.0.0", "1.1.0")+`;; esac`)
	mustInstall(t, o)
	list, err := libcni.NetworkConfFromFile(o.conf())
	if err != nil || list.CNIVersion != "1.1.0" {
		t.Errorf("a new runtime takes it as %q, %v", list.CNIVersion, err)
	}
	if text := read(t, o.conf()); !strings.Contains(text, `"cniVersion": "1.0.0"`) {
		t.Errorf("an old runtime has no 1.0.0 of %s", text)
	}
}

// Debian's plugins of version 1.1.1 have no STATUS.
func TestPluginsOfTheDistribution(t *testing.T) {
	const dir = "/usr/lib/cni"
	if _, err := os.Stat(filepath.Join(dir, "portmap")); err != nil {
		t.Fatalf("containernetworking-plugins (hack/deps.sh): %v", err)
	}
	o := node(t)
	o.BinDir = t.TempDir()
	for _, name := range o.Network.Chain {
		link(t, filepath.Join(dir, name), filepath.Join(o.BinDir, name))
	}
	r := mustInstall(t, o)
	want := Report{Changed: []string{o.plugin(), o.conf()}, Versions: []string{"0.3.1", "0.4.0", "1.0.0"}, Held: o.Network.Chain}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// A plugin that misbehaves when it is asked does not stop the rest of the node.
func TestPluginsThatMisbehave(t *testing.T) {
	foreign := []byte(read(t, "/proc/self/exe")[:4096])
	foreign[18], foreign[19] = 0xf3, 0 // elf(5): e_machine, EM_RISCV
	lies := `case $CNI_COMMAND in
VERSION) ` + speaks("1.0.0", "1.1.0") + `;;
*) echo '{"code":4,"msg":"required env variables [CNI_CONTAINERID] missing"}'; exit 1;; esac`
	for _, tc := range []struct {
		name    string
		content string
		mode    os.FileMode
		chained bool
		newest  string
		why     string
	}{
		{"hangs", "#!/bin/sh\nsleep 1000 & sleep 1000\n", 0o755, false, "1.1.0", "did not answer VERSION within"},
		{"leaves a child that holds its output", "#!/bin/sh\n" + speaks("1.0.0") + "\nsleep 1000 &\n", 0o755, false, "1.1.0", "does not answer VERSION"},
		{"prints garbage", "#!/bin/sh\necho portmap 1.0\n", 0o755, false, "1.1.0", "does not answer VERSION"},
		{"prints nothing", "#!/bin/sh\n", 0o755, false, "1.1.0", "does not answer VERSION"},
		{"prints without end", "#!/bin/sh\nexec yes\n", 0o755, false, "1.1.0", "printed more than 65536 bytes"},
		{"fails", "#!/bin/sh\nexit 3\n", 0o755, false, "1.1.0", "exit status 3"},
		{"fails as CNI says", "#!/bin/sh\necho '{\"code\":100,\"msg\":\"no licence\"}'; exit 1\n", 0o755, false, "1.1.0", "no licence"},
		{"speaks what nobody does", "#!/bin/sh\n" + speaks("99.0", "x") + "\n", 0o755, false, "1.1.0", "speaks none of CNI"},
		{"knows no VERSION", "#!/bin/sh\necho '{\"msg\":\"unknown CNI_COMMAND: VERSION\"}'; exit 1\n", 0o755, false, "1.1.0", "speaks none of CNI"},
		{"is not executable", "#!/bin/sh\n" + speaks("1.0.0") + "\n", 0o644, false, "1.1.0", "is not executable"},
		{"is for another architecture", string(foreign), 0o755, false, "1.1.0", "no program for this machine"},
		{"is empty", "", 0o755, false, "1.1.0", "no program for this machine"},
		{"lies about STATUS", "#!/bin/sh\n" + lies + "\n", 0o755, true, "1.0.0", ""},
		{"has a loader that is not here", "#!/no/such/loader\n", 0o755, true, "1.0.0", ""},
		{"misses a library", "#!/bin/sh\necho 'libc.so.6: cannot open shared object file' >&2; exit 127\n", 0o755, true, "1.0.0", ""},
		{"is not available now", "#!/bin/sh\ncase $CNI_COMMAND in VERSION) " + speaks("1.0.0", "1.1.0") + ";; *) echo '{\"code\":50,\"msg\":\"not yet\"}'; exit 1;; esac\n", 0o755, true, "1.1.0", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := node(t)
			o.Network.Chain = []string{"portmap"}
			write(t, filepath.Join(o.BinDir, "portmap"), tc.content, tc.mode)
			i := New(o)
			if tc.name == "hangs" {
				i.asker.timeout = 200 * time.Millisecond
			}
			r, err := i.Install(t.Context())
			must(t, err)
			if newest(r.Versions) != tc.newest {
				t.Errorf("the configuration is in %v, want up to %s", r.Versions, tc.newest)
			}
			if tc.chained != (len(r.Unusable) == 0) || !tc.chained && !strings.Contains(r.Unusable[0].Why, tc.why) {
				t.Errorf("left out: %v, want %q", r.Unusable, tc.why)
			}
			list, err := libcni.NetworkConfFromFile(o.conf())
			if err != nil || (len(list.Plugins) == 2) != tc.chained {
				t.Errorf("the list has %d plugins, %v", len(list.Plugins), err)
			}
		})
	}
}

// A file is asked once, and again when it is another. One that did not answer in
// time is asked each time: the machine may have been busy.
func TestPluginsAreAskedOnce(t *testing.T) {
	o := node(t)
	o.Network.Chain = []string{"portmap"}
	calls := filepath.Join(t.TempDir(), "calls")
	script := "echo $CNI_COMMAND ${AWS_SECRET_ACCESS_KEY:-none} >>" + calls + "\n" + speaks("1.0.0")
	plugin(t, o.BinDir, "portmap", script)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
	i := New(o)
	install := func() {
		t.Helper()
		_, err := i.Install(t.Context())
		must(t, err)
	}
	for range 3 {
		install()
	}
	if got := read(t, calls); got != "VERSION none\n" {
		t.Errorf("it was called with %q, want one VERSION that has nothing of berthd's environment", got)
	}
	plugin(t, o.BinDir, "portmap", script+" #")
	install()
	if got := strings.Count(read(t, calls), "VERSION"); got != 2 {
		t.Errorf("another file was asked %d times in all, want twice", got)
	}
	i.asker.timeout = time.Nanosecond
	plugin(t, o.BinDir, "portmap", script+" ##")
	install()
	i.asker.timeout = askTimeout
	install()
	if list, err := libcni.NetworkConfFromFile(o.conf()); err != nil || len(list.Plugins) != 2 {
		t.Errorf("one that had no time is not asked again: %v, %v", list, err)
	}
}

// One that was killed, as when memory is short, is asked again.
func TestKilledPluginIsAskedAgain(t *testing.T) {
	for _, verb := range []string{"VERSION", "STATUS"} {
		o := node(t)
		o.Network.Chain = []string{"portmap"}
		once := filepath.Join(t.TempDir(), "once")
		plugin(t, o.BinDir, "portmap", "[ $CNI_COMMAND = "+verb+" ] && [ ! -e "+once+" ] && { : >"+once+"; kill -KILL $$; }\n"+
			"[ $CNI_COMMAND = VERSION ] && "+speaks("1.0.0", "1.1.0")+" || true")
		i := New(o)
		first, err := i.Install(t.Context())
		if err != nil || (len(first.Unusable) == 1) != (verb == "VERSION") || (len(first.Held) == 1) != (verb == "STATUS") {
			t.Errorf("killed under %s: %v, %+v", verb, err, first)
		}
		if r, err := i.Install(t.Context()); err != nil || len(r.Unusable)+len(r.Held) != 0 || newest(r.Versions) != withStatus {
			t.Errorf("after %s: %v, %+v", verb, err, r)
		}
	}
}

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
		must(t, err)
		if r.Unchained == "" && says != "" || !strings.Contains(r.Unchained, says) || says == "" && r.Unchained != "" {
			t.Errorf("the report says %q, want %q", r.Unchained, says)
		}
		if text := read(t, o.plugin()); text != "plugin v1" {
			t.Errorf("the plugin is %q", text)
		}
		absent(t, o.conf())
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
	absent(t, o.ConfDir)
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
