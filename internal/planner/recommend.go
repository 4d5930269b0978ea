package planner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// Recommendation is the alternative that serves a workload best, and why.
type Recommendation struct {
	Name     string   `json:"name"`
	Keep     bool     `json:"keep"` // it is the first alternative, so nothing has to change
	Reasons  []string `json:"reasons"`
	Settings Settings `json:"settings"` // the values to set
	Changes  string   `json:"changes"`  // the fields of a template's spec.eni, as JSON
}

// tolerated is the increase of the 99th percentile of waits, in seconds, that is accepted for fewer idle addresses.
const tolerated = 1.0

// Recommend compares the alternatives of a result. Pods come first: those that never get an address, then those that
// wait. Among alternatives that serve pods equally well, the one with the fewest idle addresses is best, and then the one
// with the fewest throttled calls.
func Recommend(s Scenario, r *Result) Recommendation {
	best := slices.MinFunc(r.Alternatives, func(a, b OfAlternative) int { return compare(a.Totals, b.Totals) })
	i := slices.IndexFunc(r.Alternatives, func(a OfAlternative) bool { return a.Name == best.Name })
	first := r.Alternatives[0]
	out := Recommendation{Name: best.Name, Keep: i == 0 || compare(best.Totals, first.Totals) == 0, Settings: s.Settings}
	if out.Keep {
		out.Name, best = first.Name, first
	} else if a := s.Alternatives[i-1]; a.Settings != nil {
		out.Settings = *a.Settings
	}
	eni := out.Settings.ENI
	eni.VPCID, eni.AvailabilityZone, eni.IPFamilies = "", "", "" // a template cannot set them
	if eni.MaxPods != nil && *eni.MaxPods == 0 {
		eni.MaxPods = nil // unlimited, as if it were not set
	}
	text, _ := json.Marshal(eni)
	out.Changes = string(text)
	for _, a := range r.Alternatives {
		if a.Name == out.Name {
			continue
		}
		b, o := best.Totals, a.Totals
		why := fmt.Sprintf("%.0f idle addresses on average, and %.0f with %s", b.MeanIdle, o.MeanIdle, a.Name)
		switch {
		case b.lacking() != o.lacking():
			why = fmt.Sprintf("%d pods are left without an address, and %d with %s", b.lacking(), o.lacking(), a.Name)
		case o.Wait.P99-b.Wait.P99 > tolerated:
			why = fmt.Sprintf("99 of 100 pods wait at most %.1f s, and %.1f s with %s", b.Wait.P99, o.Wait.P99, a.Name)
		}
		out.Reasons = append(out.Reasons, why)
	}
	return out
}

// lacking returns the number of pods without an address, or without a node, at the end.
func (t Totals) lacking() int { return t.Waiting + t.Pending }

// compare orders totals from best to worst.
func compare(a, b Totals) int {
	if d := a.Wait.P99 - b.Wait.P99; a.lacking() == b.lacking() && (d > tolerated || d < -tolerated) {
		return cmp.Compare(a.Wait.P99, b.Wait.P99)
	}
	return cmp.Or(cmp.Compare(a.lacking(), b.lacking()), cmp.Compare(a.MeanIdle, b.MeanIdle), cmp.Compare(a.Throttled, b.Throttled))
}

// Print prints the recommendation.
func (r Recommendation) Print(printf func(format string, args ...any)) {
	if r.Keep {
		printf("\nRecommendation: keep the settings\n")
	} else {
		printf("\nRecommendation: %s\n", r.Name)
	}
	for _, why := range r.Reasons {
		printf("  - %s\n", why)
	}
	if !r.Keep {
		printf("Set spec.eni of a NodeNetworkTemplate, or the flags of the same names, to\n  %s\n", r.Changes)
	}
}
