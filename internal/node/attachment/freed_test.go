package attachment

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func freedAt(addr string, at time.Duration) Freed { return Freed{netip.MustParseAddr(addr), at} }

func TestFreedAddressesSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	for _, list := range [][]Freed{
		{freedAt("10.0.0.5", 9), freedAt("10.0.0.6", 3)},
		{freedAt("fd00::1", 5), freedAt("10.0.0.5", 7), freedAt("10.0.0.6", 8)}, // a later release of .6, an outdated one of .5
	} {
		must(t, s.AddFreed(list))
	}
	s, bad := openStore(t, dir, testNode)
	want := []Freed{freedAt("fd00::1", 5), freedAt("10.0.0.6", 8), freedAt("10.0.0.5", 9)}
	if got := s.Freed(); len(bad) != 0 || !slices.Equal(got, want) {
		t.Errorf("Freed() = %v (damaged: %v), want %v", got, bad, want)
	}
	for _, other := range []Node{{"i-other", testNode.BootID}, {testNode.InstanceID, "boot-other"}} {
		if s, bad := openStore(t, dir, other); len(s.Freed())+len(bad) != 0 {
			t.Errorf("store of %v: Freed() = %v, damaged %v; want none", other, s.Freed(), bad)
		}
	}
}

func TestFreedAddressesAreBounded(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	var list []Freed
	addr := netip.MustParseAddr("10.0.0.0")
	for i := range maxFreed + 10 {
		list = append(list, Freed{addr, time.Duration(i)})
		addr = addr.Next()
	}
	must(t, s.AddFreed(list))
	s, _ = openStore(t, dir, testNode)
	if got := s.Freed(); !slices.Equal(got, list[10:]) {
		t.Errorf("kept %d addresses from %v, want %d from %v", len(got), got[0], len(list)-10, list[10])
	}
	if info, err := os.Stat(filepath.Join(dir, freedFile)); err != nil || info.Size() > 256<<10 {
		t.Errorf("file size = %v bytes, error %v; want at most 256 KiB", info.Size(), err)
	}
}

// A damaged file only costs the order in which addresses are leased.
func TestDamagedFreedFileIsIgnored(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "garbage": "\x00\x01", "cut off": `{"version":1,"freed":[{"addr`,
		"another version": `{"version":2,"instanceID":"i-1","bootID":"boot-1"}`,
		"no address":      `{"version":1,"instanceID":"i-1","bootID":"boot-1","freed":[{"releasedBoot":1}]}`,
		"a zone":          `{"version":1,"instanceID":"i-1","bootID":"boot-1","freed":[{"address":"fe80::1%eth0","releasedBoot":1}]}`,
		"before the boot": `{"version":1,"instanceID":"i-1","bootID":"boot-1","freed":[{"address":"10.0.0.5","releasedBoot":-1}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, freedFile), []byte(content), 0o600))
			s, bad := openStore(t, dir, testNode)
			if len(s.Freed())+len(bad) != 0 {
				t.Errorf("Freed() = %v, damaged %v; want none", s.Freed(), bad)
			}
			must(t, s.AddFreed([]Freed{freedAt("10.0.0.9", 1)}))
			if s, _ = openStore(t, dir, testNode); len(s.Freed()) != 1 {
				t.Errorf("Freed() = %v after a save, want one address", s.Freed())
			}
		})
	}
}

// Files are replaced atomically, an overwritten file keeps its size, and a failed write leaves no file behind.
func TestFolder(t *testing.T) {
	f, err := newFolder(filepath.Join(t.TempDir(), "records"))
	must(t, err)
	must(t, f.write("a.json", []byte("0123456789\n")))
	must(t, f.overwrite("a.json", []byte("01\n")))
	if got, err := f.read("a.json"); err != nil || string(got) != "01        \n" {
		t.Errorf("read() = %q, %v, want the padded content", got, err)
	}
	must(t, os.Mkdir(filepath.Join(f.dir, "taken"), 0o700))
	if f.write("taken", nil) == nil {
		t.Error("write() replaced a directory")
	}
	must(t, f.remove("a.json"))
	must(t, f.remove("a.json"))
	if left, err := os.ReadDir(f.dir); err != nil || len(left) != 1 {
		t.Errorf("directory has %v, error %v; want one file", left, err)
	}
}
