package iam

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// condition is one operator on one key. All conditions of a statement must hold.
type condition struct {
	key      string // in lower case
	values   []string
	set      string // "forallvalues", "foranyvalue", or ""
	ifExists bool
	null     bool // the operator Null
	negated  bool
	match    func(pattern, value string) bool
}

// operators are the supported operators, without IfExists and the set prefixes.
var operators = map[string]struct {
	negated bool
	match   func(pattern, value string) bool
}{
	"StringEquals":              {false, func(p, v string) bool { return p == v }},
	"StringNotEquals":           {true, func(p, v string) bool { return p == v }},
	"StringEqualsIgnoreCase":    {false, strings.EqualFold},
	"StringNotEqualsIgnoreCase": {true, strings.EqualFold},
	"StringLike":                {false, glob},
	"StringNotLike":             {true, glob},
	"ArnEquals":                 {false, arnLike},
	"ArnNotEquals":              {true, arnLike},
	"ArnLike":                   {false, arnLike},
	"ArnNotLike":                {true, arnLike},
	"Bool":                      {false, strings.EqualFold},
}

// variable matches a policy variable without a default (IAM User Guide, "IAM policy elements: Variables and tags").
var variable = regexp.MustCompile(`\$\{([^}]*)\}`)

// Condition keys that a Request may have. Names of keys, and of tags in them, are compared without regard
// to case.
const (
	TagKeys      = "aws:TagKeys" // tags in the request; a list
	CreateAction = "ec2:CreateAction"
	VPC          = "ec2:Vpc"    // an ARN
	Subnet       = "ec2:Subnet" // an ARN
	InstanceID   = "ec2:InstanceID"
	// SourceInstance is the ARN of the instance whose role signed the request, and absent for other credentials.
	SourceInstance = "ec2:SourceInstanceARN"
)

// plainKeys are the supported keys that contain no tag.
var plainKeys = []string{TagKeys, CreateAction, VPC, Subnet, InstanceID, SourceInstance}

// ResourceTag and RequestTag are the keys of one tag: on the resource, and in the request.
func ResourceTag(tag string) string { return "aws:ResourceTag/" + tag }

// RequestTag is the key of a tag in the request.
func RequestTag(tag string) string { return "aws:RequestTag/" + tag }

// known reports whether a key is supported, and whether it is a list.
func known(key string) (list, ok bool) {
	lower := strings.ToLower(key)
	for _, prefix := range []string{"aws:resourcetag/", "aws:requesttag/", "ec2:resourcetag/"} {
		if tag, found := strings.CutPrefix(lower, prefix); found {
			return false, tag != ""
		}
	}
	return lower == "aws:tagkeys", slices.ContainsFunc(plainKeys, func(k string) bool { return strings.EqualFold(k, key) })
}

func parseConditions(data []byte) (out []condition, err error) {
	var block map[string]map[string]json.RawMessage
	if err := json.Unmarshal(data, &block); err != nil {
		return nil, bad(".Condition", "%s, expected operators with keys and values", brief(data))
	}
	for _, operator := range slices.Sorted(maps.Keys(block)) {
		for _, key := range slices.Sorted(maps.Keys(block[operator])) {
			c, err := parseCondition(operator, key, block[operator][key])
			if err != nil {
				return nil, err
			}
			out = append(out, c)
		}
	}
	return out, nil
}

func parseCondition(operator, key string, data []byte) (condition, error) {
	path := ".Condition." + operator
	c := condition{key: strings.ToLower(key)}
	// EC2 has two names for this key (EC2 User Guide, "Condition keys for Amazon EC2").
	if tag, ok := strings.CutPrefix(c.key, "ec2:resourcetag/"); ok {
		c.key = "aws:resourcetag/" + tag
	}
	name := operator
	if set, rest, ok := strings.Cut(name, ":"); ok {
		c.set, name = strings.ToLower(set), rest
		if c.set != "forallvalues" && c.set != "foranyvalue" {
			return c, bad(path, "unsupported; expected ForAllValues or ForAnyValue before the colon")
		}
	}
	name, c.ifExists = strings.CutSuffix(name, "IfExists")
	o, ok := operators[name]
	c.negated, c.match, c.null = o.negated, o.match, name == "Null" && c.set == "" && !c.ifExists
	if !ok && !c.null {
		return c, bad(path, "unsupported; supported are Null and %s, with ForAllValues:, ForAnyValue: and IfExists",
			strings.Join(slices.Sorted(maps.Keys(operators)), ", "))
	}
	list, ok := known(key)
	switch {
	case !ok:
		return c, bad(path+"."+key, "unsupported condition key; supported are aws:ResourceTag/TAG, ec2:ResourceTag/TAG, aws:RequestTag/TAG, %s",
			strings.Join(plainKeys, ", "))
	case list && c.set == "" && !c.null:
		return c, bad(path+"."+key, "the key has many values: expected ForAllValues: or ForAnyValue: before the operator")
	}
	var err error
	if c.values, err = texts(data); err != nil || len(c.values) == 0 {
		return c, bad(path+"."+key, "%s, expected text or a list of it", brief(data))
	}
	return c, checkValues(path+"."+key, c.values, c.null || name == "Bool")
}

// checkValues rejects variables of unsupported keys, and values of a truth that are neither true nor false.
func checkValues(path string, values []string, truth bool) error {
	for _, v := range values {
		if truth && v != "true" && v != "false" {
			return bad(path, "%q, expected true or false", v)
		}
		for _, of := range variable.FindAllStringSubmatch(v, -1) {
			if list, ok := known(of[1]); list || !ok {
				return bad(path, "%s, expected a supported condition key with one value", of[0])
			}
		}
	}
	return nil
}

// resolved returns a value with its variables replaced, or false if the request lacks the key of one of them. A
// wildcard in a replacement would not be literal, so it counts as lacking.
func resolved(value string, keys map[string][]string) (string, bool) {
	ok := true
	text := variable.ReplaceAllStringFunc(value, func(v string) string {
		of := keys[strings.ToLower(v[2:len(v)-1])]
		if len(of) != 1 || strings.ContainsAny(of[0], "*?") {
			ok = false
			return ""
		}
		return of[0]
	})
	return text, ok
}

// holds evaluates the condition against the request's values of its key.
func (c condition) holds(keys map[string][]string) bool {
	have, exists := keys[c.key]
	if c.null {
		return slices.Contains(c.values, map[bool]string{true: "false", false: "true"}[exists])
	}
	if !exists {
		// Without values, every comparison of a set holds for all and for none of them.
		return c.ifExists || c.set == "forallvalues" || c.set == "" && c.negated
	}
	patterns := make([]string, len(c.values))
	for i, v := range c.values {
		var ok bool
		if patterns[i], ok = resolved(v, keys); !ok {
			return false
		}
	}
	one := func(value string) bool {
		return c.negated != slices.ContainsFunc(patterns, func(pattern string) bool { return c.match(pattern, value) })
	}
	if c.set == "foranyvalue" {
		return slices.ContainsFunc(have, one)
	}
	return !slices.ContainsFunc(have, func(v string) bool { return !one(v) })
}
