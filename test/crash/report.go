package crash

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// violationText is how much of a violation stands in the report.
const violationText = 600

// report is what a soak says at its end.
func report(o options, elapsed time.Duration, interrupted bool, tallies []*tally) string {
	var b strings.Builder
	wrong, end := 0, ""
	for _, t := range tallies {
		wrong += t.violated()
	}
	if interrupted {
		end = ", interrupted"
	}
	fmt.Fprintf(&b, "Soak: %v, seed %d, %d violations%s\n", elapsed.Round(time.Second), o.seed, wrong, end)
	for _, t := range tallies {
		t.report(&b, elapsed)
	}
	if wrong > 0 {
		fmt.Fprintf(&b, "\nViolations\n")
	}
	for _, t := range tallies {
		t.reportViolations(&b)
	}
	return b.String()
}

// progress is a line for each mode while the soak goes on.
func progress(elapsed time.Duration, tallies []*tally) string {
	var b strings.Builder
	for _, t := range tallies {
		made, kills, wrong := t.made(), t.kills(), t.violated()
		t.mu.Lock()
		fmt.Fprintf(&b, "%8v  %v: %d operations, %d kills, %d violations\n", elapsed.Round(time.Second), t.round, made, kills, wrong)
		t.mu.Unlock()
	}
	return b.String()
}

func (t *tally) report(b *strings.Builder, elapsed time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.events
	line := func(what, format string, args ...any) {
		fmt.Fprintf(b, "  %-14s%s\n", what, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(b, "\nMode %s\n", t.mode)
	line("rounds", "%d, %d failed", len(t.rounds), e[failedRound])
	var seeds []string
	for _, p := range t.rounds {
		seeds = append(seeds, fmt.Sprint(p.seed))
	}
	line("seeds", "%s", strings.Join(seeds, " "))
	ops := e[added] + e[deleted]
	line("operations", "%d (%d ADD, %d DEL), %.1f a second, %d failed", ops, e[added], e[deleted], float64(ops)/max(elapsed.Seconds(), 1), e[failed])
	line("kills", "daemons %d, operators %d, API server %d", e[daemonKill], e[operatorKill], e[apiServerKill])
	line("at failpoints", "daemons %d, operators %d", e[daemonDeath], e[operatorDeath])
	line("other trouble", "daemons stopped %d, operators halted %d, operators ended by themselves %d, EC2 away %d",
		e[daemonStop], e[operatorHalt], e[endedByItself], e[ec2Outage])
	if n := e[providerFault] + e[portEdit] + e[ovsdbKill] + e[nodeLoss] + e[forcedDelete]; n > 0 {
		line("of ports", "faults of the provider %d, ports changed behind Berth's back %d, OVSDB killed %d, nodes lost %d, pods deleted by force %d",
			e[providerFault], e[portEdit], e[ovsdbKill], e[nodeLoss], e[forcedDelete])
		line("running pods", "%d NICs given, %d taken", e[given], e[taken])
	}
	if e[egressEdit] > 0 {
		line("of Egresses", "changes of Egresses, pods and namespaces %d, gateways killed %d, their pods deleted %d, rollouts restarted %d, pods given up %d",
			e[egressEdit], e[gatewayKill], e[gatewayDeletion], e[rolloutRestart], e[givenUp])
	}
	line("EC2 faults", "%s", counts(slices.Sorted(maps.Keys(t.faults)), t.faults))
	line("violations", "%s", counts(kinds, t.wrong))
	for _, what := range []event{added, deleted} {
		times := slices.Sorted(slices.Values(t.times[what]))
		line(string(what), "p50 %s, p90 %s, p99 %s, p99.9 %s, longest %s", short(percentile(times, 50)), short(percentile(times, 90)),
			short(percentile(times, 99)), short(percentile(times, 99.9)), short(percentile(times, 100)))
	}
	for i, s := range t.slowest {
		what := ""
		if i == 0 {
			what = "slowest"
		}
		line(what, "%9s  %s (round %d, seed %d)", short(s.took), s.what, s.round, s.seed)
	}
}

// percentile is the shortest of sorted times that p percent do not exceed; 0 of none.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(math.Ceil(p*float64(len(sorted))/100))-1]
}

func (t *tally) reportViolations(b *strings.Builder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.violations {
		text := v.text
		if len(text) > violationText {
			text = text[:violationText] + " ..."
		}
		fmt.Fprintf(b, "  %v: %s: %s\n", v.place, v.kind, strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      "))
		fmt.Fprintf(b, "      again: %s\n", v.again())
	}
	total := 0
	for _, n := range t.wrong {
		total += n
	}
	if left := total - len(t.violations); left > 0 {
		fmt.Fprintf(b, "  and %d more in mode %s\n", left, t.mode)
	}
}

// counts is "a 1, b 0", or "none" without any keys.
func counts[K ~string](keys []K, n map[K]int) string {
	var list []string
	for _, k := range keys {
		list = append(list, fmt.Sprintf("%s %d", k, n[k]))
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// short rounds a duration to three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 100*time.Millisecond:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(100 * time.Microsecond).String()
	}
}
