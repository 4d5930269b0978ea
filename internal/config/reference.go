package config

import (
	"fmt"
	"io"
	"log/slog"
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

// logLevel accepts slog's levels, and fatal as in the Amazon VPC CNI.
func logLevel(dst *string) parser {
	word := oneOf(dst, "debug", "info", "warn", "error", "fatal")
	return parser{func(s string) error {
		err := word.store(s)
		if *dst == "fatal" {
			*dst = "error"
		}
		return err
	}, word.form}
}

// LogSettings are the log settings of every program.
type LogSettings struct {
	LogLevel  string
	LogFormat string
}

func (l *LogSettings) rows() []Setting {
	return []Setting{
		{Flag: "log-level", Env: []string{"AWS_VPC_K8S_CNI_LOGLEVEL"}, Default: "info", parse: logLevel(&l.LogLevel),
			Doc: "Lowest severity that is logged: debug, info, warn or error. fatal, a level of the Amazon VPC CNI, counts as error."},
		{Flag: "log-format", Default: "text", parse: oneOf(&l.LogFormat, "text", "json"),
			Doc: "Format of log lines: text or json."},
	}
}

// Logger returns a logger with these settings.
func (l LogSettings) Logger(w io.Writer) *slog.Logger {
	var least slog.Level
	_ = least.UnmarshalText([]byte(l.LogLevel)) // one of four names, checked
	o := &slog.HandlerOptions{Level: least}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
