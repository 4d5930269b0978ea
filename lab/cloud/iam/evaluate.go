package iam

import (
	"slices"
	"strings"
)

// Request is one action on one resource. A call that names several resources becomes several requests, all
// of which must be allowed.
type Request struct {
	Action   string // "ec2:AttachNetworkInterface"
	Resource string // an ARN; "*" for actions without resource types
	// Keys are the values of condition keys, such as ResourceTag("a"). Keys that the request does not have
	// are absent.
	Keys map[string][]string
}

// Decision is the result of evaluating policies.
type Decision int

// Decisions. A request is denied unless a statement allows it; an explicit denial overrides all allows.
const (
	NotAllowed Decision = iota
	Allowed
	Denied
)

// Decide evaluates a request.
func (p Policy) Decide(r Request) Decision {
	keys := make(map[string][]string, len(r.Keys))
	for k, v := range r.Keys {
		keys[strings.ToLower(k)] = v
	}
	out := NotAllowed
	for _, s := range p.statements {
		if !s.applies(r, keys) {
			continue
		}
		if s.deny {
			return Denied
		}
		out = Allowed
	}
	return out
}

// Never reports whether no statement allows an action on any resource.
func (p Policy) Never(action string) bool {
	return !slices.ContainsFunc(p.statements, func(s statement) bool { return !s.deny && s.covers(action) })
}

func (s statement) covers(action string) bool {
	action = strings.ToLower(action)
	return slices.ContainsFunc(s.actions, func(p string) bool { return glob(p, action) })
}

func (s statement) applies(r Request, keys map[string][]string) bool {
	return s.covers(r.Action) &&
		slices.ContainsFunc(s.resources, func(p string) bool { return p == "*" || r.Resource != "*" && arnLike(p, r.Resource) }) &&
		!slices.ContainsFunc(s.conditions, func(c condition) bool { return !c.holds(keys) })
}

// arnParts is the number of parts in an ARN: arn:partition:service:region:account:resource.
const arnParts = 6

// arnLike compares part by part, with wildcards in each.
func arnLike(pattern, arn string) bool {
	p, a := strings.SplitN(pattern, ":", arnParts), strings.SplitN(arn, ":", arnParts)
	return len(p) == arnParts && len(a) == arnParts && slices.EqualFunc(p, a, glob)
}

// glob reports whether a text matches a pattern with * and ?.
func glob(pattern, text string) bool {
	// Position of the last *, and the number of characters of the text that it matches so far.
	star, mark, p, t := -1, 0, 0, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p++
			t++
		case star >= 0:
			mark++
			p, t = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
