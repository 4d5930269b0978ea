package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/config"
)

// Settings that the chart sets from other values or from the mode are not allowed below settings.
var (
	ofDaemon   = []string{"node-name", "cluster-name", "ipam", "vpc-ports", "egress", "egress-port", "node-network-templates", "network-policies", "network-policy-namespace", "kubeconfig", "sysctl-dir"}
	ofOperator = []string{"cluster-name", "ipam", "egress", "egress-image", "egress-port", "first-interface-is-port", "kubeconfig", "leader-election-namespace", "network-policies", "network-policy-daemons"}
)

// needed are settings that the probes depend on.
var needed = []string{"introspection-address", "health-address"}

// writeSchema inserts the schemas of the programs' settings into the schema.
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

// duration matches the syntax of a Go duration (time.ParseDuration).
const duration = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

// schema returns the schema of one setting. Lists and pairs may be YAML lists and maps.
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
