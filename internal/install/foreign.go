package install

import (
	"encoding/json"
	"os"
	"slices"
)

// Other software adds plugins of its own to the list in place, such as a service mesh's. Its
// entries stay, in their order among Berth's, for as long as they are in the file. The list
// says which plugins Berth put there, so that one which Berth no longer wants is not taken for
// somebody else's.

// foreign is an entry of other software in the list.
type foreign struct {
	kind   string          // its type
	entry  json.RawMessage // as it was written
	before string          // type of Berth's entry that follows it; empty: it is at the end
}

// foreignIn finds those in a list, to which Berth will write the plugins of types own, berth
// among them.
func foreignIn(text []byte, own []string) (found []foreign) {
	var c struct {
		Berths  []string          `json:"berthPlugins"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(text, &c) != nil {
		return nil
	}
	if c.Berths == nil { // by a person, or by a version that did not say
		for kind := range capabilities {
			c.Berths = append(c.Berths, kind)
		}
	}
	following := ""
	for _, entry := range slices.Backward(c.Plugins) {
		var p pluginConf
		switch {
		case json.Unmarshal(entry, &p) != nil || p.Type == "":
		case slices.Contains(own, p.Type):
			following = p.Type
		case !slices.Contains(c.Berths, p.Type):
			found = append(found, foreign{p.Type, entry, following})
		}
	}
	slices.Reverse(found)
	return found
}

// foreign are the entries of other software in the configuration in place, where the runtime
// looks or, as after the link to it was removed, where it lies.
func (o *Options) foreign(path string) []foreign {
	own := append([]string{pluginName}, o.Network.Chain...)
	for _, file := range []string{path, o.Volatile} {
		if text, err := os.ReadFile(file); err == nil && owner(text) == ours {
			return foreignIn(text, own)
		}
	}
	return nil
}

// merged are Berth's entries with those of other software.
func merged(own []pluginConf, others []foreign) (all []any) {
	add := func(before string) {
		for _, f := range others {
			if f.before == before {
				all = append(all, f.entry)
			}
		}
	}
	for _, p := range own {
		add(p.Type)
		all = append(all, p)
	}
	add("")
	return all
}
