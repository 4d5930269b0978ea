// Command generate writes the schema of the chart's values, including the programs' settings, and
// the chart's README with all values. It runs in the folder deploy.
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	schema, err := os.ReadFile("generate/values.schema.json")
	if err != nil {
		return err
	}
	if schema, err = writeSchema(string(schema)); err != nil {
		return fmt.Errorf("generate/values.schema.json: %w", err)
	}
	readme, err := os.ReadFile("generate/README.md")
	if err != nil {
		return err
	}
	values, err := os.ReadFile("chart/values.yaml")
	if err != nil {
		return err
	}
	if readme, err = writeReadme(string(readme), values); err != nil {
		return err
	}
	//nolint:gosec // the paths are constant
	return errors.Join(os.WriteFile("chart/values.schema.json", schema, 0o644), os.WriteFile("chart/README.md", readme, 0o644))
}
