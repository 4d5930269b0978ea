package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/config"
)

// What the chart sets by itself, from other values or as the mode needs it, is no
// value below settings.
var (
	ofDaemon   = []string{"node-name", "cluster-name", "ipam", "vpc-ports", "egress", "egress-port", "node-network-templates", "kubeconfig", "sysctl-dir"}
	ofOperator = []string{"cluster-name", "ipam", "egress", "egress-image", "egress-port", "first-interface-is-port", "kubeconfig", "leader-election-namespace"}
)

// needed are settings without which the probes have nobody to ask.
var needed = []string{"introspection-address", "health-address"}

// writeSchema puts the schemas of the programs' settings into the schema.
func writeSchema(template string) ([]byte, error) {
	daemon, err := settings(config.Settings(), ofDaemon)
	if err != nil {
		return nil, err
	}
	operator, err := settings(config.OperatorSettings(), ofOperator)
	if err != nil {
		return nil, err
	}
	text := strings.NewReplacer(`"DAEMON_SETTINGS"`, daemon, `"OPERATOR_SETTINGS"`, operator).Replace(template)
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(text), "", "  "); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func settings(all []config.Setting, except []string) (string, error) {
	properties := map[string]any{}
	for _, s := range all {
		if !slices.Contains(except, s.Flag) {
			properties[s.Flag] = schema(s)
		}
	}
	text, err := json.Marshal(map[string]any{"type": "object", "additionalProperties": false, "properties": properties})
	return string(text), err
}

// duration is how Go writes one (time.ParseDuration).
const duration = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

// schema is that of one setting. Lists and pairs may be written as such.
func schema(s config.Setting) map[string]any {
	of := map[string]any{"description": s.Doc}
	form := s.Form()
	switch form.Kind {
	case config.Boolean:
		of["type"] = "boolean"
	case config.Integer:
		of["type"], of["minimum"], of["maximum"] = "integer", form.Low, form.High
	case config.Duration:
		of["type"], of["minimum"], of["pattern"] = []string{"string", "integer"}, 0, duration
	case config.Word:
		of["enum"] = form.Words
	case config.Path:
		of["type"], of["pattern"] = "string", "^/"
	case config.List:
		of["type"], of["items"] = []string{"string", "array"}, map[string]any{"type": "string", "pattern": "^[^,]+$"}
	case config.Pairs:
		of["type"], of["additionalProperties"] = []string{"string", "object"}, map[string]any{"type": "string", "pattern": "^[^,]*$"}
	default:
		of["type"] = "string"
	}
	if slices.Contains(needed, s.Flag) {
		of["minLength"] = 1
	}
	return of
}
