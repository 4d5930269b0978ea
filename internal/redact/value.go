package redact

import (
	"bytes"
	"encoding/json"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/yamlalias"
)

// Value returns a decoded JSON document (maps, lists, texts, numbers) without secrets.
// v is not modified.
func Value(v any) any { return value(v, false) }

// value redacts v; if all of v is secret, every text in it.
func value(v any, secret bool) any {
	switch v := v.(type) {
	case map[string]any:
		return fields(v, secret)
	case []any:
		out := make([]any, len(v))
		after := "" // flag before the argument
		for i, e := range v {
			s, isText := e.(string)
			if isText && after != "" && isValue(s) {
				s = Mark
				out[i] = s
			} else {
				out[i] = value(e, secret)
			}
			after = ""
			if isText && strings.HasPrefix(s, "-") && !strings.Contains(s, "=") && Secret(s) {
				after = s
			}
		}
		return out
	case string:
		if secret && isValue(v) {
			return Mark
		}
		return text(v)
	case float64, json.Number, int, int64:
		if secret {
			return Mark
		}
	}
	return v
}

// fields redacts the fields of an object. A variable is an object with a name and a value;
// all data of a Secret is secret.
func fields(m map[string]any, secret bool) map[string]any {
	out := make(map[string]any, len(m))
	name, _ := m["name"].(string)
	isSecret := m["kind"] == "Secret"
	for k, v := range m {
		_, isObject := v.(map[string]any)
		switch {
		case isObject:
			out[k] = value(v, secret || secretWithin(k) || isSecret && (k == "data" || k == "stringData"))
		default:
			out[k] = value(v, secret || Secret(k) && k != "name" || k == "value" && Secret(name))
		}
	}
	return out
}

// text redacts the text of a field, which may contain a document (as
// kubectl.kubernetes.io/last-applied-configuration does).
func text(s string) string {
	if trimmed := strings.TrimSpace(s); strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[") {
		if v, err := decode([]byte(trimmed)); err == nil {
			if out, err := encode(Value(v), ""); err == nil {
				return string(bytes.TrimSpace(out))
			}
		}
	}
	return Text(s)
}

// JSON returns a JSON document without secrets, indented. Anything else is redacted as text.
func JSON(data []byte) []byte {
	v, err := decode(data)
	if err != nil {
		return []byte(Text(string(data)))
	}
	out, err := encode(Value(v), "  ")
	if err != nil {
		return []byte(Text(string(data)))
	}
	return out
}

// Document returns a configuration file without secrets: JSON, YAML such as a kubeconfig, or
// text. YAML with aliases is treated as text. YAML loses its comments and the order of its fields.
func Document(data []byte) []byte {
	if _, err := decode(data); err == nil {
		return JSON(data)
	}
	var out [][]byte
	for _, doc := range bytes.Split(data, []byte("\n---")) {
		if aliased, err := yamlalias.In(doc); aliased || err != nil {
			return []byte(Text(string(data)))
		}
		var m map[string]any
		if err := yaml.Unmarshal(doc, &m); err != nil {
			return []byte(Text(string(data)))
		}
		if m == nil { // comments only, as before the first or after the last separator
			continue
		}
		one, err := yaml.Marshal(Value(m))
		if err != nil {
			return []byte(Text(string(data)))
		}
		out = append(out, one)
	}
	if len(out) == 0 {
		return []byte(Text(string(data)))
	}
	return bytes.Join(out, []byte("---\n"))
}

func decode(data []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, &json.SyntaxError{}
	}
	return v, nil
}

func encode(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	return b.Bytes(), err
}
