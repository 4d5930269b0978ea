// Package iam evaluates identity-based policies for EC2 calls like AWS IAM (IAM User Guide, "Policy
// evaluation logic", "IAM JSON policy elements: Condition operators" and "Multivalued context keys"). It
// rejects policies with unsupported elements or condition keys.
//
// It does no I/O: the caller passes the resources of a call and their tags.
package iam

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Version is the only supported version of the policy language.
const Version = "2012-10-17"

// Policy is the statements of policy documents. The zero Policy allows nothing.
type Policy struct {
	statements []statement
}

// statement is one element of Statement. It applies to a request if all its parts match.
type statement struct {
	deny       bool
	actions    []string // patterns, in lower case
	resources  []string // "*" or ARN patterns
	conditions []condition
}

// Allow returns a policy that allows actions, such as "ec2:Describe*" or "*", on every resource.
func Allow(actions ...string) Policy {
	s := statement{resources: []string{"*"}}
	for _, a := range actions {
		s.actions = append(s.actions, strings.ToLower(a))
	}
	return Policy{[]statement{s}}
}

// Join combines policies.
func Join(policies ...Policy) (out Policy) {
	for _, p := range policies {
		out.statements = append(out.statements, p.statements...)
	}
	return out
}

// Parse reads a policy document. Errors name the field, such as
// Statement[1].Condition.StringEquals.
func Parse(document []byte) (Policy, error) {
	doc, err := fields("", document, "Version", "Id", "Statement")
	if err != nil {
		return Policy{}, fmt.Errorf("IAM policy: %w", err)
	}
	if v, err := texts(doc["Version"]); err != nil || len(v) != 1 || v[0] != Version {
		return Policy{}, fmt.Errorf("IAM policy: Version: %s, expected %q", brief(doc["Version"]), Version)
	}
	list := []json.RawMessage{doc["Statement"]}
	if s := doc["Statement"]; len(s) > 0 && s[0] == '[' {
		if err := json.Unmarshal(s, &list); err != nil {
			return Policy{}, fmt.Errorf("IAM policy: Statement: %w", err)
		}
	}
	var p Policy
	sids := map[string]bool{}
	for i, raw := range list {
		s, err := parseStatement(raw, sids)
		if err != nil {
			return Policy{}, fmt.Errorf("IAM policy: Statement[%d]%w", i, err)
		}
		p.statements = append(p.statements, s)
	}
	return p, nil
}

// fieldError is an error in the field below a path. It reads ".Field: text".
type fieldError struct{ path, text string }

func (e *fieldError) Error() string { return e.path + ": " + e.text }

func bad(path, format string, args ...any) error {
	return &fieldError{path, fmt.Sprintf(format, args...)}
}

// fields parses an object without unknown fields.
func fields(path string, data []byte, known ...string) (map[string]json.RawMessage, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil || m == nil {
		return nil, bad(path, "expected an object, got %s", brief(data))
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, name) {
			return nil, bad(strings.TrimPrefix(path+"."+name, "."), "unsupported; supported are %s", strings.Join(known, ", "))
		}
	}
	return m, nil
}

var sid = regexp.MustCompile(`^[A-Za-z0-9]*$`)

func parseStatement(data []byte, sids map[string]bool) (s statement, err error) {
	m, err := fields("", data, "Sid", "Effect", "Action", "Resource", "Condition")
	if err != nil {
		return s, fmt.Errorf(".%w", err)
	}
	if raw, ok := m["Sid"]; ok {
		name, err := texts(raw)
		if err != nil || len(name) != 1 || !sid.MatchString(name[0]) || sids[name[0]] {
			return s, bad(".Sid", "%s, expected letters and digits, each Sid once", brief(raw))
		}
		sids[name[0]] = true
	}
	effect, err := texts(m["Effect"])
	if err != nil || len(effect) != 1 || effect[0] != "Allow" && effect[0] != "Deny" {
		return s, bad(".Effect", "%s, expected Allow or Deny", brief(m["Effect"]))
	}
	s.deny = effect[0] == "Deny"
	if s.actions, err = parseActions(m["Action"]); err != nil {
		return s, err
	}
	if s.resources, err = parseResources(m["Resource"]); err != nil {
		return s, err
	}
	for _, field := range []string{"Action", "Resource"} {
		if bytes.Contains(m[field], []byte("${")) {
			return s, bad("."+field, "policy variables (${...}) are supported in conditions only")
		}
	}
	if raw, ok := m["Condition"]; ok {
		s.conditions, err = parseConditions(raw)
	}
	return s, err
}

func parseActions(data json.RawMessage) ([]string, error) {
	list, err := texts(data)
	if err != nil || len(list) == 0 {
		return nil, bad(".Action", "%s, expected actions such as ec2:AttachNetworkInterface", brief(data))
	}
	for i, a := range list {
		list[i] = strings.ToLower(a)
		if service, _, ok := strings.Cut(a, ":"); a != "*" && (!ok || service == "" || strings.ContainsAny(service, "*?")) {
			return nil, bad(".Action", "%q, expected the service before a colon, or *", a)
		}
	}
	return list, nil
}

func parseResources(data json.RawMessage) ([]string, error) {
	list, err := texts(data)
	if err != nil || len(list) == 0 {
		return nil, bad(".Resource", "%s, expected ARNs, or *", brief(data))
	}
	for _, r := range list {
		if r != "*" && (!strings.HasPrefix(r, "arn:") || strings.Count(r, ":") < arnParts-1) {
			return nil, bad(".Resource", "%q, expected an ARN of %d parts, or *", r, arnParts)
		}
	}
	return list, nil
}

// texts parses one value or a list. Booleans count as text.
func texts(data json.RawMessage) ([]string, error) {
	list := []json.RawMessage{data}
	if len(data) > 0 && data[0] == '[' {
		if err := json.Unmarshal(data, &list); err != nil {
			return nil, err
		}
	}
	out := make([]string, 0, len(list))
	for _, raw := range list {
		var s string
		if v := string(raw); v == "true" || v == "false" {
			s = v
		} else if err := json.Unmarshal(raw, &s); err != nil || v == "null" {
			return nil, fmt.Errorf("%s is no text", brief(raw))
		}
		out = append(out, s)
	}
	return out, nil
}

// brief shortens a value for errors.
func brief(data []byte) string {
	switch {
	case len(data) == 0:
		return "missing"
	case len(data) > 60:
		return string(data[:60]) + "..."
	default:
		return string(data)
	}
}
