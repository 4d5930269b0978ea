package samples

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

type content struct {
	A     int        `json:"a"`
	Addr  netip.Addr `json:"addr,omitzero"`
	List  []item     `json:"list"`
	Plain string
	inner string
}

type item struct {
	B *item `json:"b"`
	C map[string]item
}

// Check finds values that an earlier program would miss.
func TestCheckFindsMissingValues(t *testing.T) {
	sample := []byte(`{"a": 7, "list": [{"b": null}], "Plain": "x"}`)
	for _, tt := range []struct{ written, says string }{
		{`{"a":7,"list":[{"b":null,"new":1}],"Plain":"x","more":true}`, ""},
		{`{"list":[{"b":null}],"Plain":"x"}`, ".a was 7 and is <nil>"},
		{`{"a":"7","list":[{"b":null}],"Plain":"x"}`, ".a was 7 and is 7"},
		{`{"a":7,"list":[],"Plain":"x"}`, ".list was a list of 1"},
		{`{"a":7,"list":[{"b":{}}],"Plain":"x"}`, ".list[0].b was <nil>"},
		{`{"a":7,"list":[7],"Plain":"x"}`, ".list[0] was an object"},
		{`x`, "written: "},
	} {
		err := check(sample, Format{Again: func([]byte) ([]byte, error) { return []byte(tt.written), nil }}, map[string]bool{})
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: error = %v, want %q", tt.written, err, tt.says)
		}
	}
	refuse := func([]byte) ([]byte, error) { return nil, errors.New("version is 2") }
	if err := check(sample, Format{Again: refuse}, map[string]bool{}); err == nil || !strings.Contains(err.Error(), "version is 2") {
		t.Errorf("unreadable sample: error = %v, want \"version is 2\"", err)
	}
}

func TestFieldsOfATypeAndOfASample(t *testing.T) {
	want := []string{".a", ".addr", ".list", ".list.b", ".list.c", ".plain"}
	if got := fields(reflect.TypeFor[content](), "", map[reflect.Type]bool{}); !slices.Equal(got, want) {
		t.Errorf("fields() = %v, want %v", got, want)
	}
	data, err := json.Marshal(content{List: []item{{}}, Addr: netip.MustParseAddr("10.0.0.1"), inner: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	note(v, "", seen)
	for _, f := range want {
		if !seen[f] {
			t.Errorf("field %s was not found in %s", f, data)
		}
	}
}
