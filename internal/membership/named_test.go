package membership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestNamed(t *testing.T) {
	many := make([]string, MaxEgresses)
	for i := range many {
		many[i] = fmt.Sprintf("nat-%d", i)
	}
	const prefix = "egress.berth.dev/"
	for what, tt := range map[string]struct {
		annotations map[string]string
		want        string
		errs        []string
	}{
		"none":            {map[string]string{"example.com/internet": "nat", "egress.berth.dev": "nat"}, "[]", nil},
		"one":             {map[string]string{prefix + "internet": "nat"}, "[internet/nat]", nil},
		"ordered":         {map[string]string{prefix + "internet": "nat, gate", prefix + "dmz": " a ,b"}, "[dmz/a dmz/b internet/gate internet/nat]", nil},
		"empty":           {map[string]string{prefix + "internet": ""}, "[]", []string{`metadata.annotations[egress.berth.dev/internet]: is "", whose name 1 is empty`}},
		"an empty name":   {map[string]string{prefix + "internet": "nat,,gate"}, "[]", []string{`is "nat,,gate", whose name 2 is empty`}},
		"twice":           {map[string]string{prefix + "internet": "nat,gate,nat"}, "[]", []string{"[egress.berth.dev/internet]: names nat twice"}},
		"no name":         {map[string]string{prefix + "internet": "NAT"}, "[]", []string{`names "NAT", expected the name of an Egress`}},
		"a digit first":   {map[string]string{prefix + "internet": "1nat"}, "[]", []string{`names "1nat"`}},
		"a long name":     {map[string]string{prefix + "internet": strings.Repeat("a", 53)}, "[]", []string{"at most 52"}},
		"the longest":     {map[string]string{prefix + "internet": strings.Repeat("a", 52)}, "[internet/" + strings.Repeat("a", 52) + "]", nil},
		"no namespace":    {map[string]string{prefix: "nat"}, "[]", []string{`[egress.berth.dev/]: names Egresses of ""`}},
		"a bad namespace": {map[string]string{prefix + "Inter_net": "nat", prefix + "dmz": "a"}, "[dmz/a]", []string{`[egress.berth.dev/Inter_net]: names Egresses of "Inter_net"`}},
		"as many":         {map[string]string{prefix + "internet": strings.Join(many, ",")}, "", nil},
		"too many":        {map[string]string{prefix + "internet": strings.Join(many, ",") + ",x"}, "[]", []string{"names 33 Egresses, expected at most 32"}},
		"too many of all": {map[string]string{prefix + "a": strings.Join(many, ","), prefix + "b": "nat"}, "", []string{"[egress.berth.dev/b]: names 1 Egresses, with other annotations more than 32"}},
		"two wrong":       {map[string]string{prefix + "b": "B", prefix + "a": "A"}, "[]", []string{`"A"`, `"B"`}},
	} {
		named, errs := Named(tt.annotations)
		if tt.want == "" {
			if len(named) != MaxEgresses {
				t.Errorf("%s: %d Egresses", what, len(named))
			}
		} else if got := fmt.Sprint(named); got != tt.want {
			t.Errorf("%s: got %s, want %s", what, got, tt.want)
		}
		if len(errs) != len(tt.errs) {
			t.Errorf("%s: got errors %v, want %d", what, errs, len(tt.errs))
			continue
		}
		for i, word := range tt.errs {
			if !strings.Contains(errs[i].Error(), word) {
				t.Errorf("%s: got %q, want %q in it", what, errs[i], word)
			}
		}
		if (errs.Err() == nil) != (len(tt.errs) == 0) {
			t.Errorf("%s: Err is %v", what, errs.Err())
		}
		if slices.Contains([]string{"none"}, what) == Annotated(tt.annotations) {
			t.Errorf("%s: Annotated is %t", what, Annotated(tt.annotations))
		}
	}
}
