package install

import (
	"fmt"
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
