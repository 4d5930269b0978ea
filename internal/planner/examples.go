package planner

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed examples/*.yaml
var examples embed.FS

// Examples returns the scenarios that ship with Berth, by name.
func Examples() ([]Scenario, error) {
	files, err := fs.Glob(examples, "examples/*.yaml")
	if err != nil {
		return nil, err
	}
	var out []Scenario
	for _, f := range files {
		text, err := examples.ReadFile(f)
		if err != nil {
			return nil, err
		}
		s, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out = append(out, s)
	}
	return out, nil
}

// Example returns the text of a scenario that ships with Berth. The error lists the existing ones.
func Example(name string) ([]byte, error) {
	if text, err := examples.ReadFile("examples/" + name + ".yaml"); err == nil {
		return text, nil
	}
	files, _ := fs.Glob(examples, "examples/*.yaml")
	for i, f := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(f, "examples/"), ".yaml")
	}
	slices.Sort(files)
	return nil, fmt.Errorf("no example has the name %q: expected one of %s", name, strings.Join(files, ", "))
}
