package clientplan

import (
	"reflect"
	"testing"
	"time"
)

func TestHolder(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for what, tt := range map[string]struct{ wins, loses Claim }{
		"a pod's own word":       {Claim{Confirmed: true, Created: at.Add(time.Hour)}, Claim{Served: true, Created: at}},
		"who is served":          {Claim{Confirmed: true, Served: true, Created: at.Add(time.Hour)}, Claim{Confirmed: true, Created: at}},
		"who is served, by word": {Claim{Served: true, Created: at.Add(time.Hour)}, Claim{Created: at}},
		"the older":              {Claim{Created: at}, Claim{Created: at.Add(time.Second)}},
		"any, but always":        {Claim{UID: "a", Created: at}, Claim{UID: "b", Created: at}},
	} {
		for _, claims := range [][]Claim{{tt.wins, tt.loses}, {tt.loses, tt.wins}} {
			if got := Holder(claims); got != tt.wins {
				t.Errorf("%s: %+v has it", what, got)
			}
		}
	}
}

// Gateways serve a pod where its kubelet says that it is. Where only the token of its node says so, they do for a time,
// which no other word of the token begins anew.
func TestConfirm(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	over := now.Add(-Unconfirmed)
	pod, six, server := "10.1.0.5", "fd00::5", "203.0.113.9"
	for name, tt := range map[string]struct {
		node, kubelet []string
		since         time.Time
		want          Confirmed
	}{
		"both say it":                     {node: []string{pod, six}, kubelet: []string{six, pod}, want: Confirmed{Addresses: []string{pod, six}}},
		"late, and both say it":           {node: []string{pod}, kubelet: []string{pod}, since: over, want: Confirmed{Addresses: []string{pod}}},
		"a server":                        {node: []string{server}, kubelet: []string{pod}, want: Confirmed{Elsewhere: []string{server}}},
		"a server besides":                {node: []string{pod, server}, kubelet: []string{pod}, since: now, want: Confirmed{Addresses: []string{pod}, Elsewhere: []string{server}}},
		"the node says nothing":           {kubelet: []string{pod}},
		"nobody says anything":            {},
		"it starts":                       {node: []string{pod}, want: Confirmed{Addresses: []string{pod}, Since: now}},
		"it starts for long":              {node: []string{pod}, since: over.Add(1), want: Confirmed{Addresses: []string{pod}, Since: over.Add(1)}},
		"it starts for too long":          {node: []string{server}, since: over, want: Confirmed{Since: over}},
		"the node says nothing meanwhile": {since: over, want: Confirmed{Since: over}},
	} {
		if got := Confirm(tt.node, tt.kubelet, tt.since, now); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
