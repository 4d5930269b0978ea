//go:build race

package harness

// race tells that the daemons under test report data races, since the test does.
const race = true

// RaceMemory is how many times as much memory a daemon under test takes at most
// as it does without the race detector (Go documentation, "Data Race Detector":
// five to ten times).
const RaceMemory = 10
