package rpc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// protocol lists everything that two versions must agree on: the calls, and the number and
// type of each field.
func protocol() (lines []string) {
	services := File_berth_proto.Services()
	for i := range services.Len() {
		s := services.Get(i)
		for k := range s.Methods().Len() {
			m := s.Methods().Get(k)
			lines = append(lines, fmt.Sprintf("call /%s/%s takes %s gives %s", s.FullName(), m.Name(), m.Input().Name(), m.Output().Name()))
		}
	}
	messages := File_berth_proto.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		lines = append(lines, "message "+string(m.Name()))
		for k := range m.Fields().Len() {
			f := m.Fields().Get(k)
			kind := f.Kind().String()
			if f.IsMap() {
				kind = fmt.Sprintf("map from %s to %s", f.MapKey().Kind(), f.MapValue().Kind())
			} else if f.Kind() == protoreflect.MessageKind {
				kind = string(f.Message().Name())
			}
			lines = append(lines, fmt.Sprintf("field %s %d %s %s %s", m.Name(), f.Number(), f.Name(), f.Cardinality(), kind))
		}
	}
	return lines
}

// The plugin of one release and the daemon of another are compatible: every call and field of a
// release exists in all later ones, with the same number and type. New ones are in the list of
// the next release.
func TestProtocolIsCompatibleWithReleases(t *testing.T) {
	lists, err := filepath.Glob("testdata/stored/*/protocol.txt")
	if err != nil || len(lists) == 0 {
		t.Fatalf("no protocol lists of releases found: %v", err)
	}
	today := protocol()
	listed := map[string]bool{}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSpace(line)
			listed[line] = true
			if !slices.Contains(today, line) {
				t.Errorf("%s: %q was removed or changed", list, line)
			}
		}
	}
	for _, line := range today {
		if !listed[line] {
			t.Errorf("%q is in no list: add it to the list of the next release, and make sure that programs of the previous release work without it", line)
		}
	}
}
