package install

import (
	"encoding/json"
	"os"
	"reflect"
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
	before []string        // types of Berth's entries that follow it, in their order
}

// anchor is the type of Berth's entry before which it belongs; empty: it is at the end.
func (f foreign) anchor(own []pluginConf) string {
	for _, kind := range f.before {
		if slices.ContainsFunc(own, func(p pluginConf) bool { return p.Type == kind }) {
			return kind
		}
	}
	return ""
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
	var following []string
	for _, entry := range slices.Backward(c.Plugins) {
		var p pluginConf
		switch {
		case json.Unmarshal(entry, &p) != nil || p.Type == "":
		case slices.Contains(own, p.Type):
			following = append([]string{p.Type}, following...)
		case !slices.Contains(c.Berths, p.Type) && !(c.Berths == nil && isPlain(entry)):
			found = append(found, foreign{p.Type, entry, following})
		}
	}
	slices.Reverse(found)
	return found
}

// isPlain tells whether an entry is as Berth writes those of its chain. In a list that does not say
// which are Berth's, of a person or of an earlier version, such an entry is.
func isPlain(entry json.RawMessage) bool {
	var is, berths any
	var p pluginConf
	if json.Unmarshal(entry, &p) != nil {
		return false
	}
	own, err := json.Marshal(chained(p.Type))
	return err == nil && json.Unmarshal(own, &berths) == nil && json.Unmarshal(entry, &is) == nil && reflect.DeepEqual(is, berths)
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
			if f.anchor(own) == before {
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
