package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// All configurations in one list are used in one CNI version, which the runtime
// chooses: the newest of the list's that it knows itself (CNI specification 1.1.0,
// "Version considerations"). So the list says all versions in which every plugin of
// it works, and need not know the runtime; one upgraded in place chooses anew. A
// runtime from before the field cniVersions (libcni below 1.2: containerd 1.x)
// knows cniVersion alone, which therefore is one that all of them speak.
//
// A plugin that lacks a version takes it from the list. It is not left out for
// that: what is lost is STATUS and GC, which berthd does without, and a pod
// without its host ports is worse.

// Auto is the CNI version of a configuration that says whatever its plugins speak.
const Auto = "auto"

// spoken are the CNI versions of berth's, oldest first, and those of them that
// every runtime of Kubernetes' knows (CRI v1 came with containerd 1.6).
var (
	spoken = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	common = spoken[:3]
)

// withStatus is the first version that has STATUS and GC.
const withStatus = "1.1.0"

// answer is what is known of a plugin of the chain.
type answer struct {
	plugin   string
	versions []string // of spoken, that it speaks, oldest first
	unasked  string   // why it could not be asked, and common is assumed; empty: it could
	broken   string   // why it cannot work; empty: it may
	foreign  bool     // other software put it there: it stays, whatever it speaks
}

// chosen is in which versions a list is, and with which plugins.
type chosen struct {
	versions []string // oldest first, at least one
	chain    []string
	leftOut  []Unusable
	held     []string // plugins for whose sake newer versions are not offered
}

// Unusable is a plugin of the chain that is there and cannot be used.
type Unusable struct{ Plugin, Why string }

// choose decides by what the plugins of a chain answered, in its order. want is
// Auto or the one version that the list is to have.
func choose(want string, answers []answer) chosen {
	c := chosen{versions: spoken}
	if want != Auto {
		c.versions = []string{want}
	}
	for _, a := range answers {
		both := intersection(c.versions, a.versions)
		switch {
		case a.foreign && (a.broken != "" || len(both) == 0):
			continue
		case a.broken != "":
			c.leftOut = append(c.leftOut, Unusable{a.plugin, a.broken})
			continue
		case len(both) == 0 && a.unasked != "":
			c.leftOut = append(c.leftOut, Unusable{a.plugin, fmt.Sprintf("it cannot be asked whether it speaks CNI %s: %s", list(c.versions), a.unasked)})
			continue
		case len(both) == 0:
			c.leftOut = append(c.leftOut, Unusable{a.plugin, fmt.Sprintf("it speaks CNI %s, and the configuration is in %s", list(a.versions), list(c.versions))})
			continue
		case want == Auto && newest(a.versions) != newest(spoken):
			c.held = append(c.held, a.plugin)
		}
		c.versions = both
		if !a.foreign {
			c.chain = append(c.chain, a.plugin)
		}
	}
	return c
}

// offered is how a list says versions: as cniVersion one that every runtime knows,
// if there is one, and as cniVersions all from there on, unless it is the only one.
func offered(versions []string) (one string, all []string) {
	one = versions[0]
	for _, v := range versions {
		if slices.Contains(common, v) {
			one = v
		}
	}
	if all = versions[slices.Index(versions, one):]; len(all) == 1 {
		all = nil
	}
	return one, all
}

// intersection are the elements of a that b has too.
func intersection(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(v string) bool { return !slices.Contains(b, v) })
}

func newest(versions []string) string { return versions[len(versions)-1] }

func list(versions []string) string { return strings.Join(versions, ", ") }

// InstallChained puts the plugin in place, to be called after another network's plugins. It
// writes no configuration, which might win over that network's, and does not change that
// network's either: whoever installs it would take the change back, or keep it for good. It
// tells in Report.Unchained what a person has to do.
//
// A configuration that an Installer wrote before, when the node's addresses were Berth's, is
// removed.
func (i *Installer) InstallChained() (r Report, err error) {
	o := i.options
	o.Bundle = ""
	if err := os.MkdirAll(o.BinDir, 0o755); err != nil {
		return r, fmt.Errorf("creating the directory to install to: %w", err)
	}
	if err := o.installPlugins(&r); err != nil {
		return r, err
	}
	path := filepath.Join(o.ConfDir, o.ConfName)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return r, fmt.Errorf("reading the network configuration in place: %w", err)
	}
	if placeIn(text) != later {
		was, err := Uninstall(o.ConfDir, o.ConfName)
		if err != nil {
			return r, err
		}
		if was {
			r.Changed = append(r.Changed, path)
		}
	}
	r.Unchained, err = o.unchained()
	return r, err
}

// unchained tells what to do so that the plugin is called; empty: it is in a configuration,
// after another network's plugins.
func (o *Options) unchained() (string, error) {
	entry, err := json.Marshal(o.Network.plugin())
	if err != nil {
		return "", fmt.Errorf("writing the plugin's configuration: %w", err)
	}
	todo := fmt.Sprintf(`add %s as the last of "plugins" to the configuration of the pods' network`, entry)
	files, err := configurations(o.ConfDir)
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && placeIn(text) == later {
			return "", nil
		}
	}
	if len(files) == 0 {
		return fmt.Sprintf("there is no network configuration in %s yet; %s", o.ConfDir, todo), nil
	}
	return fmt.Sprintf("no network configuration in %s has berth after another plugin, so that no pod gets egress; %s (%s is what a runtime that takes one network takes)", o.ConfDir, todo, files[0]), nil
}

// place of our plugin in a network configuration.
type place int

const (
	nowhere place = iota
	first         // it makes the interface
	later         // it comes after others
)

// placeIn tells where in a network configuration our plugin is.
func placeIn(text []byte) place {
	for k, p := range pluginsOf(text) {
		switch {
		case p.Type == pluginName && k == 0:
			return first
		case p.Type == pluginName:
			return later
		}
	}
	return nowhere
}
