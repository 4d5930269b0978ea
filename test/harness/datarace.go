package harness

import "strings"

// dataRace begins each report of the race detector (Go documentation, "Data Race Detector").
const dataRace = "WARNING: DATA RACE"

// races are the reports of data races in a program's log.
func races(log string) (reports []string) {
	for _, rest := range strings.Split(log, dataRace)[1:] {
		report, _, _ := strings.Cut(rest, "\n==================")
		reports = append(reports, dataRace+report)
	}
	return reports
}

// ofOVSDBLibrary reports whether a report is of libovsdb's own race and of nothing else: in
// version 0.8.1, connect adds to its WaitGroup while handleDisconnectNotification, which it
// has started, may wait for it already, when a connection is lost as soon as it is made. Of
// such a group the detector shows no access to memory but a call of its own, from the
// library's client at both sides.
func ofOVSDBLibrary(report string) bool {
	stacks := strings.Split(report, "\n\n")
	return len(stacks) >= 2 && waitGroupOfOVSDB(stacks[0]) && waitGroupOfOVSDB(stacks[1])
}

// waitGroupOfOVSDB reports whether a stack, innermost call first, is of a call of a WaitGroup
// by the library's client.
func waitGroupOfOVSDB(stack string) bool {
	marked := false
	for line := range strings.Lines(stack) {
		call, isCall := strings.CutPrefix(line, "  ")
		switch {
		case !isCall || strings.HasPrefix(call, " "): // a heading, or the line of a file
		case strings.HasPrefix(call, "runtime.raceread("), strings.HasPrefix(call, "runtime.racewrite("):
			marked = true
		case strings.HasPrefix(call, "internal/race."), strings.HasPrefix(call, "sync.(*WaitGroup)."):
		default:
			return marked && strings.HasPrefix(call, "github.com/ovn-kubernetes/libovsdb/client.(*ovsdbClient).")
		}
	}
	return false
}
