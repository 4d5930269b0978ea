package rollout

import (
	"encoding/json"
	"testing"
)

// The former DaemonSet keeps all that it required before, in each of its terms, and runs on no labelled node.
func TestAffinity(t *testing.T) {
	const (
		expr  = `{"key":"berth.dev/network","operator":"NotIn","values":["moving","berth"]}`
		linux = `{"key":"kubernetes.io/os","operator":"In","values":["linux"]}`
		req   = `requiredDuringSchedulingIgnoredDuringExecution`
	)
	for name, tt := range map[string]struct{ in, want string }{
		"none":  {``, `{"nodeAffinity":{"` + req + `":{"nodeSelectorTerms":[{"matchExpressions":[` + expr + `]}]}}}`},
		"null":  {`null`, `{"nodeAffinity":{"` + req + `":{"nodeSelectorTerms":[{"matchExpressions":[` + expr + `]}]}}}`},
		"terms": {`{"nodeAffinity":{"` + req + `":{"nodeSelectorTerms":[{"matchExpressions":[` + linux + `]},{"matchFields":[{"key":"metadata.name","operator":"In","values":["a"]}]}]}}}`, `{"nodeAffinity":{"` + req + `":{"nodeSelectorTerms":[{"matchExpressions":[` + linux + `,` + expr + `]},{"matchExpressions":[` + expr + `],"matchFields":[{"key":"metadata.name","operator":"In","values":["a"]}]}]}}}`},
		"other": {`{"podAntiAffinity":{"x":[1]},"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1}]}}`, `{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1}],"` + req + `":{"nodeSelectorTerms":[{"matchExpressions":[` + expr + `]}]}},"podAntiAffinity":{"x":[1]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			if is, err := IsAway(json.RawMessage(tt.in)); is || err != nil {
				t.Errorf("before: IsAway() = %t, %v", is, err)
			}
			got, err := Away(json.RawMessage(tt.in))
			if err != nil || string(got) != tt.want {
				t.Errorf("Away() = %s, %v\nwant %s", got, err, tt.want)
			}
			if is, err := IsAway(got); !is || err != nil {
				t.Errorf("after: IsAway() = %t, %v", is, err)
			}
			if again, err := Away(got); err != nil || string(again) != tt.want {
				t.Errorf("again: Away() = %s, %v", again, err)
			}
		})
	}
	if _, err := Away(json.RawMessage(`{"nodeAffinity":[]}`)); err == nil {
		t.Error("an affinity that is no object is accepted")
	}
	in := func(terms string) json.RawMessage {
		return json.RawMessage(`{"nodeAffinity":{"` + req + `":{"nodeSelectorTerms":[` + terms + `]}}}`)
	}
	only := `{"matchExpressions":[{"key":"berth.dev/network","operator":"In","values":["berth"]}]}`
	for text, want := range map[string]bool{only: true, only + `,{"matchExpressions":[` + linux + `]}`: false, `{"matchExpressions":[{"key":"berth.dev/network","operator":"In","values":["berth","moving"]}]}`: false, ``: false} {
		if got, err := OnlyServing(in(text)); got != want || err != nil {
			t.Errorf("OnlyServing(%s) = %t, %v", text, got, err)
		}
	}
}
