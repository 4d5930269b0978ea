package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/config"
)

func TestValuesNeedComments(t *testing.T) {
	for _, tt := range []struct{ values, want string }{
		{"a: 1\n", "a: no comment"},
		{"# A.\na:\n  # B.\n  b: 1\n  c: 2\n", "a.c: no comment"},
		{"# A.\na:\n  b:\n    # C.\n    c: 1\n    d: {}\n", "a.b.d: no comment"},
		{"# A.\na: {b: 1, c: 2}\n", ""},
		{"# A.\na:\n  b: 1 # One.\n  # Two.\n  c: 2\n", ""},
	} {
		_, err := writeReadme("\nVALUES\n", []byte(tt.values))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("values %q: error = %v, want %s", tt.values, err, tt.want)
		}
	}
}

func TestReadmeListsValues(t *testing.T) {
	got, err := writeReadme("# Chart\n\nVALUES\n", []byte("# Whether\n# to.\na: true\n# B is.\nb:\n  # Or | not.\n  c: {d: x}\n  # All.\n  e:\n    f: [1, 2] # Some.\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := "# Chart\n\n### a\n\nWhether to.\n\nDefault: `true`\n\n### b\n\nB is.\n\n| value | default | meaning |\n|---|---|---|\n" +
		"| `b.c` | `{d: x}` | Or \\| not. |\n| `b.e` | | All. |\n| `b.e.f` | `[1, 2]` | Some. |\n"
	if string(got) != want {
		t.Errorf("README:\n%s\nwant:\n%s", got, want)
	}
}

// The files in the chart are the output of `make generate`.
func TestChartIsCurrent(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	schema, err := writeSchema(string(read("values.schema.json")))
	if err != nil || !bytes.Equal(schema, read("../chart/values.schema.json")) {
		t.Errorf("chart/values.schema.json is outdated, run make generate (error: %v)", err)
	}
	readme, err := writeReadme(string(read("README.md")), read("../chart/values.yaml"))
	if err != nil || !bytes.Equal(readme, read("../chart/README.md")) {
		t.Errorf("chart/README.md is outdated, run make generate (error: %v)", err)
	}
}

// The settings that the chart derives itself exist.
func TestExcludedSettingsExist(t *testing.T) {
	for _, of := range []struct {
		except   []string
		settings []config.Setting
	}{{ofDaemon, config.Settings()}, {ofOperator, config.OperatorSettings()}} {
		text, err := settings(of.settings, nil)
		if err != nil {
			t.Fatal(err)
		}
		var schema struct{ Properties map[string]any }
		if err := json.Unmarshal([]byte(text), &schema); err != nil {
			t.Fatal(err)
		}
		for _, name := range of.except {
			if schema.Properties[name] == nil {
				t.Errorf("%s is not a setting", name)
			}
		}
	}
}
