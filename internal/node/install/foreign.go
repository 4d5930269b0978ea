package install

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
)

// Other software, such as a service mesh, adds plugins to the list in place. Berth keeps these entries
// in their order among its own for as long as they are in the file. The list names Berth's own
// plugins, so that one which Berth no longer wants is not mistaken for a foreign one.

// foreign is an entry of other software in the list.
type foreign struct {
	kind   string          // its type
	entry  json.RawMessage // as it was written
	before []string        // types of Berth's entries after it, in order
}

// anchor is the type of Berth's entry before which it is placed; empty: at the end.
func (f foreign) anchor(own []pluginConf) string {
	for _, kind := range f.before {
		if slices.ContainsFunc(own, func(p pluginConf) bool { return p.Type == kind }) {
			return kind
		}
	}
	return ""
}

// foreignIn returns the foreign entries of a list, to which Berth will write the plugins of types own,
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

// isPlain reports whether an entry looks as Berth writes chained plugins. In a list that does not name
// Berth's plugins, from a person or an earlier version, such an entry is Berth's.
func isPlain(entry json.RawMessage) bool {
	var is, berths any
	var p pluginConf
	if json.Unmarshal(entry, &p) != nil {
		return false
	}
	own, err := json.Marshal(chained(p.Type))
	return err == nil && json.Unmarshal(own, &berths) == nil && json.Unmarshal(entry, &is) == nil && reflect.DeepEqual(is, berths)
}

// foreign returns the foreign entries of the configuration in place, where the runtime looks or, if
// the link was removed, at its target.
func (o *Options) foreign(path string) []foreign {
	own := append([]string{pluginName}, o.Network.Chain...)
	for _, file := range []string{path, o.Volatile} {
		if text, err := os.ReadFile(file); err == nil && placeIn(text) != nowhere {
			return foreignIn(text, own)
		}
	}
	return nil
}

// merged returns Berth's entries with the foreign ones.
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
