package install

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
)

// Other software, such as a service mesh, adds plugins to the installed list. Berth keeps these entries
// in their order among its own for as long as they are in the file. The list names Berth's own
// plugins, so that one that Berth no longer installs is not mistaken for a foreign one.

// foreign is an entry of other software in the list.
type foreign struct {
	kind   string          // type of the plugin
	entry  json.RawMessage // as found in the file
	before []string        // types of Berth's entries after it, in order
}

// anchor is the type of Berth's entry before which it is placed, or "" for the end.
func (f foreign) anchor(own []pluginConf) string {
	for _, kind := range f.before {
		if slices.ContainsFunc(own, func(p pluginConf) bool { return p.Type == kind }) {
			return kind
		}
	}
	return ""
}

// foreignIn returns the foreign entries of a list into which Berth will write the plugins of types own,
// including berth.
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
		var p named
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

// isPlain reports whether an entry looks like Berth's chained plugins. In a list that does not name
// Berth's plugins, written by hand or by an earlier version, such an entry counts as Berth's.
func isPlain(entry json.RawMessage) bool {
	var is, berths any
	var p named
	if json.Unmarshal(entry, &p) != nil {
		return false
	}
	own, err := json.Marshal(chained(p.Type))
	return err == nil && json.Unmarshal(own, &berths) == nil && json.Unmarshal(entry, &is) == nil && reflect.DeepEqual(is, berths)
}

// foreign returns the foreign entries of the existing configuration, from the runtime's directory or, if
// the link was removed, from its target.
func (o *Options) foreign(path string) []foreign {
	own := append([]string{pluginName}, o.Network.Chain...)
	for _, file := range []string{path, o.Volatile} {
		if text, err := os.ReadFile(file); err == nil && placeIn(text) != nowhere {
			return foreignIn(text, own)
		}
	}
	return nil
}

// merged returns Berth's entries merged with the foreign ones.
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
