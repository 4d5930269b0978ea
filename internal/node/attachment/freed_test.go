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

func TestFreedOutlastsTheStore(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	for _, list := range [][]Freed{
		{freedAt("10.0.0.5", 9), freedAt("10.0.0.6", 3)},
		{freedAt("fd00::1", 5), freedAt("10.0.0.5", 7), freedAt("10.0.0.6", 8)}, // later news of .6, old news of .5
	} {
		must(t, s.AddFreed(list))
	}
	s, bad := openStore(t, dir, testNode)
	want := []Freed{freedAt("fd00::1", 5), freedAt("10.0.0.6", 8), freedAt("10.0.0.5", 9)}
	if got := s.Freed(); len(bad) != 0 || !slices.Equal(got, want) {
		t.Errorf("read %v (damaged: %v), want %v", got, bad, want)
	}
	for _, other := range []Node{{"i-other", testNode.BootID}, {testNode.InstanceID, "boot-other"}} {
		if s, bad := openStore(t, dir, other); len(s.Freed())+len(bad) != 0 {
			t.Errorf("%v read %v, damaged %v", other, s.Freed(), bad)
		}
	}
}

func TestFreedKeepsTheLatest(t *testing.T) {
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
		t.Errorf("kept %d from %v", len(got), got[0])
	}
	if info, err := os.Stat(filepath.Join(dir, freedFile)); err != nil || info.Size() > 256<<10 {
		t.Errorf("the file has %v bytes, %v", info.Size(), err)
	}
}

// A damaged file costs the order, and nothing else.
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
				t.Errorf("read %v, damaged %v", s.Freed(), bad)
			}
			must(t, s.AddFreed([]Freed{freedAt("10.0.0.9", 1)}))
			if s, _ = openStore(t, dir, testNode); len(s.Freed()) != 1 {
				t.Errorf("not replaced: %v", s.Freed())
			}
		})
	}
}

// A file is replaced as a whole, keeps its size where it is overwritten, and a failed write leaves nothing.
func TestFolder(t *testing.T) {
	f, err := newFolder(filepath.Join(t.TempDir(), "records"))
	must(t, err)
	must(t, f.write("a.json", []byte("0123456789\n")))
	must(t, f.overwrite("a.json", []byte("01\n")))
	if got, err := f.read("a.json"); err != nil || string(got) != "01        \n" {
		t.Errorf("read %q, %v", got, err)
	}
	must(t, os.Mkdir(filepath.Join(f.dir, "taken"), 0o700))
	if f.write("taken", nil) == nil {
		t.Error("a directory was replaced by a file")
	}
	must(t, f.remove("a.json"))
	must(t, f.remove("a.json"))
	if left, err := os.ReadDir(f.dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}
