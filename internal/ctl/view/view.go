// Package view prints what Berth's tools for people show: tables, JSON and YAML,
// and a node's document. Nothing that it prints can drive a terminal, whatever
// is in it.
package view

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"sigs.k8s.io/yaml"
)

// WriteJSON writes a value as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, printableJSON(string(text)))
	return err
}

// WriteLine writes a value as a line of JSON.
func WriteLine(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, printableJSON(string(text)))
	return err
}

// WriteYAML writes a value as YAML, with the fields that it has in JSON.
func WriteYAML(w io.Writer, v any) error {
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	// The library escapes what is not printable in strings, which makes them
	// quoted ones; this is for what it lets through.
	_, err = fmt.Fprint(w, printableJSON(string(text)))
	return err
}

// Age is how long ago since was at the moment now: "5s", "3m", "2h10m", "4d".
func Age(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	d := max(0, now.Sub(since))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// Count is a number of things: "1 pod", "2 pods".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
