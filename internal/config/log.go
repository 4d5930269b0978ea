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

// newLogger takes the values of log-level and log-format.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	var least slog.Level
	_ = least.UnmarshalText([]byte(level)) // one of four names, checked
	o := &slog.HandlerOptions{Level: least}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
