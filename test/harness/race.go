//go:build race

package harness

// raceFlags make the daemons under test report data races when the test does.
var raceFlags = []string{"-race"}

// RaceMemory is how many times as much memory a daemon under test takes at most
// as it does without the race detector (Go documentation, "Data Race Detector":
// five to ten times).
const RaceMemory = 10
