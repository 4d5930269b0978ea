package config

import (
	"fmt"
	"io"
	"strings"
)

// WriteReference writes berthd's settings as the page docs/reference/configuration.md.
func WriteReference(w io.Writer) error { return writeReference(w, "berthd", table(&Config{})) }

// WriteOperatorReference writes berth-operator's settings as the page
// docs/reference/operator-configuration.md.
func WriteOperatorReference(w io.Writer) error {
	return writeReference(w, "berth-operator", operatorTable(&Operator{}))
}

func writeReference(w io.Writer, program string, settings []Setting) error {
	var b strings.Builder
	fmt.Fprintf(&b, `# Configuration of %s

<!-- Generated from internal/config by "make generate". -->

Every setting is a flag and an environment variable. The flag wins over the
variable, and of several variables the first that is set and not empty. A wrong
value stops the program at start; all mistakes are listed in one message.
Durations are written 30s, 5m or 1h30m; a bare number means seconds.
`, program)
	group := ""
	for _, s := range settings {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n## %s\n\n| flag | environment | default | meaning |\n|---|---|---|---|\n", group)
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", s.Flag, codeList(s.Env), defaultCell(s), docCell(s))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func codeList(names []string) string {
	return "`" + strings.Join(names, "`<br>`") + "`"
}

func defaultCell(s Setting) string {
	if s.Default == "" {
		return ""
	}
	return "`" + s.Default + "`"
}

func docCell(s Setting) string {
	doc := strings.ReplaceAll(s.Doc, "|", `\|`)
	if s.Unit != "" {
		return doc + " Unit: " + s.Unit + "."
	}
	return doc
}
