package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
)

// affinity is a pod's affinity as JSON. Other fields are kept.
type affinity map[string]json.RawMessage

// term is a term of a required node affinity. A node must match one of the terms.
type term struct {
	MatchExpressions []requirement `json:"matchExpressions,omitempty"`
	MatchFields      []requirement `json:"matchFields,omitempty"`
}

type requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

const (
	ofNodes  = "nodeAffinity"
	required = "requiredDuringSchedulingIgnoredDuringExecution"
	ofTerms  = "nodeSelectorTerms"
)

// away is the requirement that keeps pods away from labelled nodes.
var away = requirement{Label, "NotIn", []string{Moving, Serving}}

// parse returns an affinity, its node affinity, the required part of that, and its terms. An empty text has no terms.
func parse(text json.RawMessage) (whole, node, must affinity, terms []term, err error) {
	whole, node, must = affinity{}, affinity{}, affinity{}
	into := func(of affinity, key string, v any) {
		if raw := of[key]; err == nil && len(raw) > 0 && string(raw) != "null" {
			err = json.Unmarshal(raw, v)
		}
	}
	into(affinity{"": text}, "", &whole)
	into(whole, ofNodes, &node)
	into(node, required, &must)
	into(must, ofTerms, &terms)
	if err != nil {
		return nil, nil, nil, nil, fmt.Errorf("spec.template.spec.affinity: %w", err)
	}
	return whole, node, must, terms, nil
}

// Away returns an affinity with the additional requirement that keeps pods away from labelled nodes.
func Away(text json.RawMessage) (json.RawMessage, error) {
	whole, node, must, terms, err := parse(text)
	if err != nil {
		return nil, err
	}
	if len(terms) == 0 {
		terms = []term{{}}
	}
	for i := range terms {
		if !terms[i].has(keepsAway) {
			terms[i].MatchExpressions = append(terms[i].MatchExpressions, away)
		}
	}
	for _, level := range []struct {
		in  affinity
		key string
		v   any
	}{{must, ofTerms, terms}, {node, required, must}, {whole, ofNodes, node}} {
		if level.in[level.key], err = json.Marshal(level.v); err != nil {
			return nil, err
		}
	}
	return json.Marshal(whole)
}

// IsAway reports whether pods with an affinity keep away from labelled nodes.
func IsAway(text json.RawMessage) (bool, error) { return all(text, keepsAway) }

// OnlyServing reports whether pods with an affinity run only on nodes that Berth serves.
func OnlyServing(text json.RawMessage) (bool, error) {
	return all(text, func(r requirement) bool {
		return r.Key == Label && r.Operator == "In" && slices.Equal(r.Values, []string{Serving})
	})
}

func keepsAway(r requirement) bool {
	return r.Key == Label && (r.Operator == "DoesNotExist" || r.Operator == "NotIn" && slices.Contains(r.Values, Moving) && slices.Contains(r.Values, Serving))
}

// all reports whether there are terms, and each has such a requirement.
func all(text json.RawMessage, is func(requirement) bool) (bool, error) {
	_, _, _, terms, err := parse(text)
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t term) bool { return !t.has(is) }), err
}

func (t term) has(is func(requirement) bool) bool { return slices.ContainsFunc(t.MatchExpressions, is) }
