package harness

import "strings"

// dataRace starts each report of the race detector (Go documentation, "Data Race Detector").
const dataRace = "WARNING: DATA RACE"

// races returns the reports of data races in a program's log.
func races(log string) (reports []string) {
	for _, rest := range strings.Split(log, dataRace)[1:] {
		report, _, _ := strings.Cut(rest, "\n==================")
		reports = append(reports, dataRace+report)
	}
	return reports
}

// ofOVSDBLibrary reports whether a report concerns only libovsdb's own race. In version 0.8.1, connect adds to its
// WaitGroup while handleDisconnectNotification, which it has started, may already wait for it, if a connection is
// lost right after it was made. For such a WaitGroup the detector shows no memory accesses but one call on each side,
// both from the library's client.
func ofOVSDBLibrary(report string) bool {
	stacks := strings.Split(report, "\n\n")
	return len(stacks) >= 2 && waitGroupOfOVSDB(stacks[0]) && waitGroupOfOVSDB(stacks[1])
}

// waitGroupOfOVSDB reports whether a stack, innermost call first, is a WaitGroup call by the library's client.
func waitGroupOfOVSDB(stack string) bool {
	marked := false
	for line := range strings.Lines(stack) {
		call, isCall := strings.CutPrefix(line, "  ")
		switch {
		case !isCall || strings.HasPrefix(call, " "): // a heading, or a file position
		case strings.HasPrefix(call, "runtime.raceread("), strings.HasPrefix(call, "runtime.racewrite("):
			marked = true
		case strings.HasPrefix(call, "internal/race."), strings.HasPrefix(call, "sync.(*WaitGroup)."):
		default:
			return marked && strings.HasPrefix(call, "github.com/ovn-kubernetes/libovsdb/client.(*ovsdbClient).")
		}
	}
	return false
}
