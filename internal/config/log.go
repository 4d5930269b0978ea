package config

import (
	"io"
	"log/slog"
)

// logLevel takes slog's levels, and the one that the Amazon VPC CNI has above them.
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

// LogSettings are every program's.
type LogSettings struct {
	LogLevel  string
	LogFormat string
}

func (l *LogSettings) rows() []Setting {
	return []Setting{
		{Flag: "log-level", Env: []string{"AWS_VPC_K8S_CNI_LOGLEVEL"}, Default: "info", parse: logLevel(&l.LogLevel),
			Doc: "Least severity that is logged: debug, info, warn or error. fatal, which the Amazon VPC CNI has besides, counts as error."},
		{Flag: "log-format", Default: "text", parse: oneOf(&l.LogFormat, "text", "json"),
			Doc: "Form of a log line: text or json."},
	}
}

// Logger returns a logger as the settings ask for.
func (l LogSettings) Logger(w io.Writer) *slog.Logger {
	var least slog.Level
	_ = least.UnmarshalText([]byte(l.LogLevel)) // one of four names, checked
	o := &slog.HandlerOptions{Level: least}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
