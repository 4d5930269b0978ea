package plan

import (
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
