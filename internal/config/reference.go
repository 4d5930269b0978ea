package config

import (
	"fmt"
	"io"
	"strings"
)

// WriteReference writes the settings as the page docs/reference/configuration.md.
func WriteReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Configuration of berthd

<!-- Generated from internal/config by "make generate". -->

Every setting is a flag and an environment variable. The flag wins over the
variable, and of several variables the first that is set and not empty. A wrong
value stops the daemon at start; all mistakes are listed in one message.
Durations are written 30s, 5m or 1h30m; a bare number means seconds.
`)
	group := ""
	for _, s := range table(&Config{}) {
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
