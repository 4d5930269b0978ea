package plugins

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthnet/berth/test/harness/check"
)

// Files of the system are removed by their names, unless something else uses them or they are something else.
func TestRemovedPlugins(t *testing.T) {
	self, err := os.Executable()
	check.OK(t, err)
	result, err := json.Marshal(map[string]any{"kind": "cniCacheV1", "config": []byte(`{"name":"n","plugins":[{"type":"mine"}]}`)})
	check.OK(t, err)
	for name, c := range map[string]struct {
		conf    map[string]string // CNI configurations
		links   map[string]string // of the folder with configurations, to files of another folder or of no folder
		linked  bool              // that folder is itself behind a link
		program bool              // the file is a program of this module
		module  string            // of the system
		results bool              // the container runtime uses results
		kept    string            // empty: it is removed
	}{
		"of no use":             {conf: map[string]string{"10-berth.conflist": `{"name":"mine","plugins":[{"type":"berth"}]}`}},
		"in a list":             {conf: map[string]string{"10-x.conflist": `{"name":"x","plugins":[{"type":"x"},{"type":"mine"}]}`}, kept: "it is used by /10-x.conflist"},
		"alone":                 {conf: map[string]string{"10-x.conf": `{"name":"x","type":"mine"}`}, kept: "it is used by /10-x.conf"},
		"as IPAM":               {conf: map[string]string{"10-x.conf": `{"name":"x","type":"x","ipam":{"type":"mine"}}`}, kept: "it is used by /10-x.conf"},
		"a delegate of Multus":  {conf: map[string]string{"multus.d/x.json": `{"type":"multus","delegates":[{"type":"mine"}]}`}, kept: "it is used by /multus.d/x.json"},
		"in a damaged file":     {conf: map[string]string{"10-x.conf": `{"type":"mine"`}, kept: "it is used by /10-x.conf"},
		"behind a link":         {links: map[string]string{"10-x.conf": "x"}, kept: "it is used by /10-x.conf"},
		"in a linked folder":    {links: map[string]string{"multus.d": "."}, kept: "it is used by /multus.d/x.conf"},
		"behind a dead link":    {links: map[string]string{"10-x.conf": "missing"}, kept: "it is used by /10-x.conf, a link that does not resolve"},
		"links in a circle":     {links: map[string]string{"again": "../conf"}},
		"folder behind a link":  {conf: map[string]string{"10-x.conf": `{"name":"x","type":"mine"}`}, linked: true, kept: "it is used by /10-x.conf"},
		"set aside":             {conf: map[string]string{"10-x.conf.berth": `{"type":"mine"}`}},
		"in results":            {results: true, kept: "the container runtime ends a pod with it, according to /"},
		"in results, not used":  {},
		"program of the system": {program: true, module: "github.com/berthnet/berth"},
		"another program":       {program: true, module: "github.com/berthnet/ber", kept: "it is built from github.com/berthnet/berth/internal/migrate/plugins.test, not from github.com/berthnet/ber"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			f := Folders{Bin: t.TempDir(), Conf: filepath.Join(root, "conf")}
			write := func(folder, name, text string) {
				path := filepath.Join(folder, name)
				check.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
				check.OK(t, os.WriteFile(path, []byte(text), 0o755))
			}
			for file, text := range c.conf {
				write(f.Conf, file, text)
			}
			check.OK(t, os.MkdirAll(f.Conf, 0o755))
			write(filepath.Join(root, "other"), "x", `{"type":"mine"}`)
			write(filepath.Join(root, "other"), "x.conf", `{"type":"mine"}`)
			for link, to := range c.links {
				check.OK(t, os.Symlink(filepath.Join("..", "other", to), filepath.Join(f.Conf, link)))
			}
			if c.linked {
				f.Conf = filepath.Join(root, "link")
				check.OK(t, os.Symlink("conf", f.Conf))
			}
			results := t.TempDir()
			write(results, "results/n-c1-eth0", string(result))
			if c.results {
				f.Results = results
			}
			mine := filepath.Join(f.Bin, "mine")
			if c.program {
				check.OK(t, os.Symlink(self, mine))
			} else {
				write(f.Bin, "mine", "#!/bin/sh")
			}
			removed, kept, err := f.Remove(c.module, "mine", "absent")
			check.OK(t, err)
			_, missing := os.Lstat(mine)
			said := strings.NewReplacer(f.Conf, "", results+"/results", "").Replace(strings.Join(kept, " "))
			if c.kept == "" && (said != "" || missing == nil || len(removed) != 1) || c.kept != "" && (!strings.HasPrefix(said, mine+": "+c.kept) || missing != nil || len(removed) != 0) {
				t.Errorf("removed %q, kept %q, want kept %q", removed, said, c.kept)
			}
		})
	}
}

// A container runtime that is not known may be CRI-O.
func TestEndsByResult(t *testing.T) {
	for socket, want := range map[string]bool{"": true, "/var/run/crio/crio.sock": true, "/run/containerd/containerd.sock": false} {
		check.Equal(t, EndsByResult(socket), want, "%q", socket)
	}
}
